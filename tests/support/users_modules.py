"""Modules as a user writes them, imported from a folder."""

import importlib
import sys
import textwrap
from pathlib import Path
from typing import Any


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
