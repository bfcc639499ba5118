"""python -m devtools.pictures [FOLDER]: regenerate the docs' pictures (default: docs/images). About six minutes."""

import sys
import tempfile
from pathlib import Path

from devtools.pictures import pages, terminals
from devtools.servers import embedded_head


def main(images: Path) -> None:
    images.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pictures-") as name:
        folder = Path(name)
        with embedded_head(folder / "home") as head:
            terminals.draw(images, folder, head)
            pages.photograph(images, folder, head)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else terminals.ROOT / "docs" / "images")
