"""The local folders of a runtime environment: Ray packs and uploads them, and unpacks them on each node."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def upload_folders(
    address: str,
    runtime_env: dict[str, Any],
    headers: Mapping[str, str],
    verify: bool | str,
    cert: str | None,
    sent: Callable[[int], None],
) -> dict[str, Any]:
    """The runtime environment with URIs in place of its local folders. `sent` gets the bytes of each request.

    Raises what `requests` raises, AuthenticationError, RuntimeError for an unexpected response; ValueError, TypeError or
    OSError for a folder that cannot be read; ModuleNotFoundError if Ray is not installed.
    """
    from ray.dashboard.modules.dashboard_sdk import SubmissionClient

    class Counting(SubmissionClient):
        def _do_request(self, method: str, endpoint: str, *, data: bytes | None = None, **kwargs: Any) -> Any:
            sent(len(data or b""))
            return super()._do_request(method, endpoint, data=data, cert=cert, **kwargs)

    client = Counting(address, headers=dict(headers), verify=verify, create_cluster_if_needed=False)
    uploaded = dict(runtime_env)
    client._upload_working_dir_if_needed(uploaded)
    client._upload_py_modules_if_needed(uploaded)
    return uploaded


def runtime_env_folders() -> list[str]:
    """The folders on this process's `sys.path` that Ray has unpacked for its job: `working_dir`, and those of
    `py_modules`."""
    return [entry for entry in sys.path if "runtime_resources" in Path(entry).parts]
