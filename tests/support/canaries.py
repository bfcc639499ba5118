"""Marked secrets, and the search for them in everything that a run leaves behind, in each form they may have."""

import base64
import gzip
import json
import os
import secrets
import tempfile
import urllib.parse
import zipfile
from collections.abc import Iterable
from pathlib import Path

import psutil

from devtools.sampling import Sampler


def canary(place: str) -> str:
    """A unique secret, named after the place that gets it, with characters that each way of quoting writes
    differently."""
    return f"canary-{place}-{secrets.token_hex(6)}/+é\"'&<>"


def plain_canary(place: str) -> str:
    """A canary for places that accept only ASCII."""
    return canary(place).partition("/")[0]


def forms(secret: str) -> list[bytes]:
    """How its mark may appear in a file: as it is, in UTF-16, in hexadecimal, reversed, in base64 at each of the three
    offsets."""
    mark = "-".join(secret.split("-")[:3]).partition("/")[0].encode()
    found = [mark, mark.decode().encode("utf-16-le"), mark.decode().encode("utf-16-be"), mark.hex().encode(), mark[::-1]]
    for offset in range(3):
        coded = base64.b64encode(b"\0" * offset + mark).rstrip(b"=")
        # without the characters that also depend on the mark's neighbours
        inner = coded[(4 if offset else 0) : len(coded) - 2]
        found += [inner, inner.replace(b"+", b"-").replace(b"/", b"_")]
    return list(dict.fromkeys(found))


def found_in(data: bytes, canaries: Iterable[str]) -> list[str]:
    return [secret for secret in canaries if any(form in data for form in forms(secret))]


def found_under(folders: Iterable[Path], canaries: Iterable[str]) -> list[str]:
    """The files under these folders that contain a canary, with the canaries in each; archives are searched too."""
    canaries = list(canaries)
    found = []
    for folder in folders:
        assert folder.exists(), f"{folder}: nothing would be searched"
        for place, _, names in os.walk(folder):
            found += _found_in_files((Path(place, name) for name in names), canaries)
    return found


def found_in_temp(since: float, canaries: Iterable[str]) -> list[str]:
    """The same for what appeared in the system's temporary folder after a given time, except the tests' own folders."""
    canaries, found = list(canaries), []
    for entry in os.scandir(tempfile.gettempdir()):
        try:
            appeared = entry.stat(follow_symlinks=False).st_mtime >= since
        except FileNotFoundError:
            continue
        if appeared and not entry.name.startswith("pytest-of-"):
            found += found_under([Path(entry.path)], canaries) if entry.is_dir() else []
            found += _found_in_files([Path(entry.path)], canaries)
    return found


def _found_in_files(files: Iterable[Path], canaries: list[str]) -> list[str]:
    real = (path for path in files if path.is_file() and not path.is_symlink())
    return [f"{path}: {secret}" for path in real for data in _contents(path) for secret in found_in(data, canaries)]


def _contents(path: Path) -> Iterable[bytes]:
    try:
        data = path.read_bytes()
    except OSError:  # gone in the meantime, or a socket
        return
    yield data
    if data[:2] == b"\x1f\x8b":
        yield gzip.decompress(data)
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            yield from (archive.read(name) for name in archive.namelist())


class CommandLines(Sampler):
    """Repeatedly reads the command line of every process during its `with` block: what `ps` shows."""

    every_s = 0.02

    def __init__(self) -> None:
        self.seen: set[bytes] = set()
        self.rounds = 0

    def sample(self) -> None:
        self.rounds += 1
        for pid in psutil.pids():
            try:
                self.seen.add(Path(f"/proc/{pid}/cmdline").read_bytes())
            except OSError:
                continue

    def holding(self, canaries: Iterable[str]) -> list[bytes]:
        canaries = list(canaries)
        return [line for line in self.seen if found_in(line, canaries)]


def escaped(secret: str) -> dict[str, bytes]:
    """How other writers would encode it, for a test of the search itself."""
    return {
        "plain": secret.encode(),
        "JSON": json.dumps(secret).encode(),
        "URL": urllib.parse.quote(secret, safe="").encode(),
        "base64": base64.b64encode(f"user:{secret}".encode()),
        "base64, shifted": base64.b64encode(f"use:{secret}".encode()),
        "UTF-16": secret.encode("utf-16"),
        "repr": repr(secret).encode(),
    }


def users_hook() -> None:
    """The user's own worker hook, called once the cluster's variables are set. (Defined here because this module
    travels with the test's step.)"""
    os.environ["HOOK_SAW"] = os.environ.get("SERVICE_KEY", "nothing")
