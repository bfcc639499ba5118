"""Modules as a user writes them, imported from a folder."""

import importlib
import sys
import textwrap
from pathlib import Path
from typing import Any

from plugin_core.specs import sources

#: A package whose train loop imports relatively, on several levels and late.
PACKAGE = {
    "vision_team/__init__.py": "from .names import NAME\n",
    "vision_team/names.py": "NAME = 'vision'\n",
    "vision_team/models/__init__.py": "",
    "vision_team/models/train.py": """
from . import net
from ..names import NAME

def loop(config):
    import ray.train
    from .late import ADDED
    ray.train.report({"width": net.WIDTH + ADDED, "name": NAME})
""",
    "vision_team/models/net.py": "from .sizes import WIDTH\n",
    "vision_team/models/sizes.py": "WIDTH = 3\n",
    "vision_team/models/late.py": "ADDED = 4\n",
}


def pack(archive: Path, files: dict[str, str]) -> None:
    """Write a zip archive of these files, like Airflow's packaged DAGs."""
    archive.write_bytes(sources.pack({name: source.encode() for name, source in files.items()}))


def module(folder: Path, source: str, name: str = "steps") -> dict[str, Any]:
    """Import `source` as a user's module from `folder`."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text(textwrap.dedent(source))
    sys.path.insert(0, str(folder))
    sys.modules.pop(name, None)
    importlib.invalidate_caches()
    try:
        return vars(importlib.import_module(name))
    finally:
        sys.path.remove(str(folder))
