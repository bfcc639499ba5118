"""Files that go along with a job's submit, as a tracker's credentials file: kept in no spec, log or run directory.

On the cluster the variable NAME holds the path of a file with the content given for it, which only the job's own user can
read. The content travels as an environment variable of the job, so it is short.
"""

from __future__ import annotations

import atexit
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from plugin_core.errors import SpecError

_PREFIX = "RAYTRAIN_FILE_"
#: Linux allows 128 KiB for one variable (MAX_ARG_STRLEN).
MAX_CHARS = 65_536


def as_variables(files: Mapping[str, str]) -> dict[str, str]:
    """The variables in which the files travel. Raises SpecError where one is too large."""
    for name, content in files.items():
        if len(content) > MAX_CHARS:
            raise SpecError(f"env_files.{name}: given {len(content)} characters; accepted are at most {MAX_CHARS}")
    return {f"{_PREFIX}{name}": content for name, content in files.items()}


def write() -> None:
    """In a process of the job: write the files, for as long as it lives, and set the variables that name them."""
    for variable in [variable for variable in os.environ if variable.startswith(_PREFIX)]:
        descriptor, path = tempfile.mkstemp(prefix="raytrain-")  # readable by its owner alone
        atexit.register(Path(path).unlink, missing_ok=True)
        with os.fdopen(descriptor, "w") as file:
            file.write(os.environ.pop(variable))
        os.environ[variable.removeprefix(_PREFIX)] = path
