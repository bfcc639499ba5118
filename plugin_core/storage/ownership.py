"""Check local file ownership: files that we execute, or that say where our token is sent, must not belong to other users.

Object stores have no owners: anyone who may write there is trusted.
"""

from __future__ import annotations

import os
import pwd
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path

from plugin_core.errors import SpecError, StorageError

#: Environment variable: users (name or uid) whose files count as our own; * for all.
TRUSTED = "RAYTRAIN_TRUSTED_OWNERS"


def check_run(folder: str, files: Iterable[str]) -> None:
    """Raise SpecError if a run directory, or one of these files in it, belongs to another user.

    Root's files are trusted. So are files of the user that owns what we write: a mount may map all files to one user, as
    NFS does with root's.
    """
    places = [Path(folder), *(Path(folder, file) for file in files)]
    strangers = {place: owner for place in places if (owner := _stranger(place, {0, os.geteuid()})) is not None}
    if strangers and not set(strangers.values()) <= _owner_of_ours(folder):
        place, owner = next(iter(strangers.items()))
        raise SpecError(
            f"run_config.storage_path: got {str(place)!r}, which belongs to {_name(owner)}; expected a run directory of"
            f" your own. To let that user's code run as you, set {TRUSTED}={_name(owner)}"
        )


def check_private(place: Path) -> None:
    """Raise SpecError if a file or folder of the embedded head belongs to, or is writable by, another user."""
    found = place.lstat()
    owner = _stranger(place, {os.geteuid()})
    if stat.S_ISLNK(found.st_mode) or (owner is not None and owner not in _owner_of_ours(str(place.parent))):
        raise SpecError(
            f"RAYTRAIN_HOME: got {str(place)!r}, which belongs to {_name(found.st_uid)}; expected a folder of your own. To"
            f" let that user's code run as you, set {TRUSTED}={_name(found.st_uid)}"
        )
    if owner is None and found.st_mode & 0o022 and not _all_trusted():
        raise SpecError(
            f"RAYTRAIN_HOME: got {str(place)!r}, which other users can write to; expected a private folder (chmod 700)"
        )


def make_own(folder: Path, belongs: str) -> None:
    """Make a folder that nobody else can enter, unless it exists. Raises StorageError with the message `belongs` if it
    is another user's, OSError if it cannot be made."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.lstat().st_uid != os.getuid():
        raise StorageError(belongs)


def is_ours(place: Path, prefix: str) -> bool:
    """Whether we created a temporary folder, judged by its name, parent and owner."""
    roots = {Path("/tmp"), Path(tempfile.gettempdir())}
    try:
        found = place.lstat()
    except OSError:
        return False
    ours = place.name.startswith(prefix) and place.parent in roots and ".." not in place.parts
    return ours and stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def _stranger(place: Path, mine: set[int]) -> int | None:
    """The owner of a file or of its link target, if neither in `mine` nor trusted; else None."""
    for look in (os.lstat, os.stat):
        try:
            owner = look(place).st_uid
        except OSError:
            continue  # a missing file has no owner; a file without stat permission cannot be read either
        if owner not in mine and not _trusted(owner):
            return owner
    return None


def _owner_of_ours(folder: str) -> set[int]:
    """The owner that the file system gives to files we create in this folder."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            return {os.fstat(file.fileno()).st_uid}
    except OSError:
        return set()


def _trusted(owner: int) -> bool:
    listed = [entry.strip() for entry in os.environ.get(TRUSTED, "").split(",")]
    return _all_trusted() or str(owner) in listed or _name(owner) in listed


def _all_trusted() -> bool:
    return "*" in os.environ.get(TRUSTED, "").split(",")


def _name(owner: int) -> str:
    try:
        return pwd.getpwuid(owner).pw_name
    except KeyError:
        return str(owner)
