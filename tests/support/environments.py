"""Environments that link some of this one's packages: nothing is downloaded or copied."""

import subprocess
import sys
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def make_environment(folder: Path, *wanted: str, without: tuple[str, ...] = ()) -> str:
    """Create an environment in `folder` with these requirements and their dependencies, as installed here, except
    `without`; returns its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in _with_requirements(wanted, without):
        distribution = metadata.distribution(name)
        for top in {Path(str(file)).parts[0] for file in distribution.files or []} - {"..", "__pycache__"}:
            link = packages / top
            if not link.exists():
                link.symlink_to(str(distribution.locate_file(top)))
    return str(folder / "bin" / "python")


def _with_requirements(wanted: tuple[str, ...], without: tuple[str, ...]) -> set[str]:
    found: set[tuple[str, str]] = set()
    missing = [Requirement(each) for each in wanted]
    while missing:
        requirement = missing.pop()
        name = canonicalize_name(requirement.name)
        for extra in ("", *requirement.extras):
            if name in without or (name, extra) in found:
                continue
            found.add((name, extra))
            for line in metadata.requires(name) or []:
                needed = Requirement(line)
                if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                    missing.append(needed)
    return {name for name, _ in found}
