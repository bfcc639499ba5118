"""Pass a cluster's `env_vars` and `env_files` to a job without exposing them in Ray's logs, job lists or `ps`.

Ray prints a job's `runtime_env.env_vars` in several places, so only a name is passed there. The values go as bytes into
the key-value store on the cluster's head, over the same authenticated API (`JobsClient.hand_over`). The driver reads
them before it touches storage, and each worker process reads them when it starts (`handed_over`). They are deleted when
the driver exits; if it was killed, Ray deletes them once nobody has renewed them for `KEPT_S`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from plugin_core.clusters.secrets import VARIABLE, Secrets
from plugin_core.errors import SpecError
from plugin_core.specs.runtime_env import variables

if TYPE_CHECKING:
    from plugin_core.clusters.jobs_api import JobsClient

#: Bytes in total. Linux usually allows 2 MiB for all variables and arguments of a program.
MAX_VARIABLES, MAX_FILES = 1_000_000, 8_000_000
#: Variables that a program or its loader reads before a hook can set them.
_READ_TOO_EARLY = re.compile(r"LD_\w+|DYLD_\w+|PYTHON\w+")


class Takes(Protocol):
    @property
    def env_vars(self) -> dict[str, str]: ...

    @property
    def env_files(self) -> dict[str, str]: ...


def check(cluster: Takes) -> None:
    """Raise SpecError for variables and files that cannot be handed over. Messages contain no values."""
    try:
        variables(cluster.env_vars, ("env_vars",))
        if not isinstance(cluster.env_files, Mapping):
            variables(cluster.env_files, ("env_files",))  # says so
        for name, content in cluster.env_files.items():
            variables({name: ""}, ("env_files",))
            _check_content(name, content)
    except ValueError as exc:
        raise exc if isinstance(exc, SpecError) else SpecError(str(exc)) from None
    for name in cluster.env_vars:
        if _READ_TOO_EARLY.fullmatch(name):
            raise SpecError(
                f"env_vars.{name}: is read before the job's processes get these variables; expected it in the spec's"
                " runtime_env.env_vars, which are not secret"
            )
        if name in cluster.env_files:
            raise SpecError(f"env_files.{name}: is also in env_vars; expected it in one of them")
    totals = (("env_vars", cluster.env_vars, MAX_VARIABLES), ("env_files", cluster.env_files, MAX_FILES))
    for what, given, limit in totals:
        if (size := sum(len(f"{name}={value}".encode()) for name, value in given.items())) > limit:
            raise SpecError(f"{what}: got {size:,} bytes in total; expected at most {limit:,}")


def _check_content(name: str, content: Any) -> None:
    if not isinstance(content, str):
        raise SpecError(
            f"env_files.{name}: got a value of type {type(content).__name__}; expected text, the file's content"
        )
    try:
        content.encode()
    except UnicodeEncodeError:
        # `from None`: the original error contains the content
        raise SpecError(f"env_files.{name}: got text that cannot be encoded; expected valid UTF-8 text") from None


async def hand_over(client: JobsClient, cluster: Takes, submission_id: str, without: Collection[str]) -> dict[str, str]:
    """Hand a cluster's variables and files over to a job; returns the variable that names them, or {} if there are none.

    `without`: names that the job's spec sets. Idempotent. Raises one of CLUSTER_ERRORS.
    """
    if not (secrets := Secrets(cluster.env_vars, cluster.env_files).without(without)):
        return {}
    name = f"raytrain-{submission_id}"
    await client.hand_over(name, secrets.pack())
    return {VARIABLE: name}
