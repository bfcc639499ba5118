"""Takes what was handed over to a job (see `handover`), on the cluster: in the driver and in each worker process.

Imports nothing heavy, since each worker of a job starts with it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
from collections.abc import Mapping
from typing import Any

from plugin_core.clusters import env_files
from plugin_core.clusters.secrets import KEPT_S, RENEW_S, USERS_HOOK, VARIABLE, Secrets
from plugin_core.driver import masking
from plugin_core.errors import InfrastructureError

#: Variables set by some workers' own runtime_env, by name.
KEPT = "RAYTRAIN_KEPT_VARIABLES"


# ---- in the driver


class Held:
    """What was handed over to the driver's job, kept on the head for the workers until `end`."""

    def __init__(self, name: str, data: bytes):
        self.secrets = Secrets.unpack(data)
        self._name, self._data = name, data
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True, name="handover")
        self._thread.start()

    def end(self) -> None:
        from plugin_core.ray_internals import kv

        self._over.set()
        env_files.remove()
        self._thread.join(timeout=kv.DELETE_TIMEOUT_S)
        with contextlib.suppress(*kv.ERRORS):  # the head is gone with everything it kept, or Ray deletes it later
            kv.delete(self._name)

    def _renew(self) -> None:
        from plugin_core.ray_internals import kv

        while not self._over.is_set():
            with contextlib.suppress(*kv.ERRORS):  # retried long before Ray deletes it
                kv.put(self._name, self._data, KEPT_S)
            self._over.wait(RENEW_S)


_held: Held | None = None


def take() -> None:
    """In the driver, before it accesses storage: take what was handed over to the job, if anything.

    Raises InfrastructureError if it is gone: the next attempt gets it again.
    """
    from plugin_core.ray_internals import kv

    global _held
    if (name := os.environ.get(VARIABLE)) is None:
        return
    try:
        data = kv.get(name, os.environ["RAY_ADDRESS"])
    except kv.ERRORS as exc:
        raise InfrastructureError(f"cannot ask the head for the cluster's env_vars and env_files ({exc})") from exc
    if data is None:
        gone = "the cluster's env_vars and env_files for this job are gone"
        raise InfrastructureError(f"{gone}; Ray keeps them for {KEPT_S} s at most")
    _held = Held(name, data)
    masking.mask(_held.secrets.masks)
    _held.secrets.install()


def end() -> None:
    """Delete it when it is no longer needed: on disk and, if the head still answers, on the head."""
    if _held is not None:
        _held.end()


def workers_runtime_env(jobs_own: Mapping[str, Any]) -> dict[str, Any]:
    """The runtime_env that makes each worker process take it too, then call the hook of the job's own runtime_env."""
    users_hook = jobs_own.get("worker_process_setup_hook")
    more = {"env_vars": {USERS_HOOK: users_hook}} if users_hook else {}
    return {"worker_process_setup_hook": f"{in_worker.__module__}.{in_worker.__name__}", **more}


# ---- in a worker


def worker_variables(given: dict[str, str]) -> dict[str, str]:
    """Variables for some workers' own runtime_env, which override what is handed over to the job."""
    return {**given, KEPT: ",".join(given)} if given and VARIABLE in os.environ else given


def in_worker() -> None:
    """Ray calls this at the start of each worker process of the job."""
    from plugin_core.ray_internals import kv

    data = kv.get_in_worker(os.environ[VARIABLE])
    if data is None:
        raise InfrastructureError("the cluster's env_vars and env_files for this job are gone: its driver has ended")
    secrets = Secrets.unpack(data)
    masking.mask(secrets.masks)
    secrets.without(os.environ.get(KEPT, "").split(",")).install()
    if hook := os.environ.get(USERS_HOOK):
        module, _, name = hook.rpartition(".")
        getattr(importlib.import_module(module), name)()
