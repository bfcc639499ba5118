"""Validate Ray's `runtime_env` before submission: Ray validates some of it only on the cluster.

Messages here never contain a value: values of `env_vars` may be secret, and a package index's URL may have a password.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator

from plugin_core.errors.shown import did_you_mean, shown
from plugin_core.specs.fields import inside, plain, readable

#: Linux's limit for one variable including its name (MAX_ARG_STRLEN).
MAX_VARIABLE_BYTES = 128 * 1024
_VARIABLE = re.compile(r"[-._A-Za-z][-._A-Za-z0-9]*")

Check = Callable[[Any, tuple[str, ...]], None]


def _text(value: Any, path: tuple[str, ...]) -> None:
    if not isinstance(value, str) or not value.strip():
        raise inside(path, f"got {_kind(value)}; expected text")


def _flag(value: Any, path: tuple[str, ...]) -> None:
    if not isinstance(value, bool):
        raise inside(path, f"got {_kind(value)}; expected true or false")


def _texts(value: Any, path: tuple[str, ...]) -> None:
    if not isinstance(value, list):
        raise inside(path, f"got {_kind(value)}; expected a list of strings")
    for number, item in enumerate(value):
        _text(item, (*path, str(number)))


def _mapping(value: Any, path: tuple[str, ...]) -> None:
    if not isinstance(value, dict):
        raise inside(path, f"got {_kind(value)}; expected a mapping")


def _seconds(value: Any, path: tuple[str, ...]) -> None:
    if type(value) is not int or not (value == -1 or 0 < value <= 10**9):
        raise inside(path, f"got {_kind(value)}; expected whole seconds, or -1 for no limit")


def _either(words: str, *checks: Check) -> Check:
    def check(value: Any, path: tuple[str, ...]) -> None:
        for each in checks:
            try:
                return each(value, path)
            except ValueError:
                continue
        raise inside(path, f"got {_kind(value)}; expected {words}")

    return check


def _fields(required: str = "", **checks: Check) -> Check:
    def check(value: Any, path: tuple[str, ...]) -> None:
        _mapping(value, path)
        for name, item in value.items():
            if name not in checks:
                raise inside(
                    (*path, name),
                    f"unknown field; expected one of {', '.join(checks)}{did_you_mean(name, checks, cutoff=0.75)}",
                )
            checks[name](item, (*path, name))
        if required and required not in value:
            raise inside((*path, required), "missing")

    return check


def _packages(name: str) -> Check:
    options = {f"{name}_check": _flag, f"{name}_version": _text}
    options |= {"pip_install_options" if name == "pip" else "uv_pip_install_options": _texts}
    as_mapping = _fields("packages", packages=_texts, **options)

    def check(value: Any, path: tuple[str, ...]) -> None:
        if isinstance(value, dict):
            return as_mapping(value, path)
        return _either("a list of requirements, a requirements file, or a mapping with packages", _text, _texts)(
            value, path
        )

    return check


_PROFILER = _either("a name, or a mapping of options", _text, _mapping)
#: The fields that Ray 2.60 knows (`ray.runtime_env.RuntimeEnv.known_fields`). Ray plugins add others.
FIELDS: dict[str, Check] = {
    "working_dir": _text,
    "py_modules": _texts,
    "excludes": _texts,
    "py_executable": _text,
    "pip": _packages("pip"),
    "uv": _packages("uv"),
    "conda": _either("a name, a file, or a mapping", _text, _mapping),
    "env_vars": lambda value, path: None,  # see `variables`
    "container": _mapping,
    "image_uri": _text,
    "java_jars": _texts,
    "worker_process_setup_hook": _text,
    "config": _fields(setup_timeout_seconds=_seconds, eager_install=_flag, log_files=_texts),
    "_nsight": _PROFILER,
    "nsight": _PROFILER,
    "_rocprof_sys": _PROFILER,
    "rocprof_sys": _PROFILER,
    "_ray_release": _text,
    "_ray_commit": _text,
    "_inject_current_ray": _flag,
}


def runtime_env(value: Any) -> dict[str, Any]:
    """Validate a runtime_env. Raises ValueError or SpecError naming the entry that Ray would reject or ignore."""
    if not isinstance(value, Mapping):
        raise ValueError(f"got {_kind(value)}; expected a mapping")
    found: dict[str, Any] = dict(value)
    for name in found:
        if isinstance(name, str) and name not in FIELDS and (hint := did_you_mean(name, FIELDS, cutoff=0.75)):
            raise inside((name,), f"unknown field; expected a field of Ray's runtime_env{hint}")
    if "env_vars" in found:
        found["env_vars"] = variables(found["env_vars"], ("env_vars",))
    found = plain(found)
    for name, item in found.items():
        if name in FIELDS:
            FIELDS[name](item, (name,))
    return found


def variables(value: Any, path: tuple[str, ...] = (), limit: int | None = MAX_VARIABLE_BYTES) -> dict[str, str]:
    """Validate environment variables, each of at most `limit` bytes. Raises ValueError or SpecError that names the
    variable, never its value."""
    if not isinstance(value, Mapping):
        raise inside(path, f"got {_kind(value)}; expected a mapping of names to strings")
    for name, text in value.items():
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            raise inside(path, f"got the name {shown(name)}; expected letters, digits and . _ - (not a digit first)")
        if not isinstance(text, str):
            raise inside((*path, name), f"got {_kind(text)}; expected text (in YAML, in quotes)")
        try:
            readable(text)
        except ValueError:
            raise inside((*path, name), "got text with NUL or invalid UTF-8; expected valid UTF-8 without NUL") from None
        size = len(name.encode()) + len(text.encode()) + 2
        if limit is not None and size > limit:
            raise inside((*path, name), f"got {size:,} bytes; expected at most {limit:,}, Linux's limit")
    return dict(value)


def _kind(value: Any) -> str:
    if isinstance(value, str) and not value.strip():
        return "an empty text"
    return f"a value of type {type(value).__name__}"


RuntimeEnv = Annotated[dict[str, Any], BeforeValidator(runtime_env)]
#: Environment variables, or files keyed by the variable that will hold their path.
Variables = Annotated[dict[str, str], BeforeValidator(variables)]
