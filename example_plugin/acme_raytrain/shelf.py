"""A storage: `shelf://HOST/PATH?root=FOLDER` is the folder HOST/PATH in a mounted one."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem


class Shelf(LocalFileSystem):
    """With a `pipe_file` whose mode "create" is atomic: run directories need it, and prove it before their first use."""

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        target = Path(self._strip_protocol(path))
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        part.write_bytes(value)
        if mode != "create":
            part.replace(target)
            return
        try:
            os.link(part, target)
        finally:
            part.unlink()


def opened(host: str, root: str = "/mnt/shelf") -> DirFileSystem:
    """An fsspec filesystem whose paths begin with the URI's host. Options of the URI are arguments."""
    return DirFileSystem(root, Shelf(auto_mkdir=True, skip_instance_cache=True))
