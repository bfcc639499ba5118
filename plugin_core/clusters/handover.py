"""How a cluster's `env_vars` and `env_files` reach a job: past everything that Ray logs, lists or shows in `ps`.

Ray prints a job's `runtime_env.env_vars` in several places. So only a name travels there; the values go as bytes into the
key-value store of the cluster's head, over the same authenticated API (`JobsClient.hand_over`). The driver takes them from
there before it touches storage, and so does each worker process when it starts (`takeover`). They are deleted when the
driver ends; after a driver that was killed, Ray deletes them when nobody renewed them for `KEPT_S`.
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

#: Bytes in total. Linux allows, as a rule, 2 MiB for all variables and arguments of a program that a job starts.
MAX_VARIABLES, MAX_FILES = 1_000_000, 8_000_000
#: What a program or its loader reads before a hook can set it.
_READ_TOO_EARLY = re.compile(r"LD_\w+|DYLD_\w+|PYTHON\w+")


class Takes(Protocol):
    @property
    def env_vars(self) -> dict[str, str]: ...

    @property
    def env_files(self) -> dict[str, str]: ...


def check(cluster: Takes) -> None:
    """Raise SpecError for variables and files that cannot be handed over. No value is told."""
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
                f"env_vars.{name}: is read before a process of the job gets these variables; expected it in the spec's"
                " runtime_env.env_vars, which are not secret"
            )
        if name in cluster.env_files:
            raise SpecError(f"env_files.{name}: is in env_vars too; expected it in one of them")
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
        # without the error itself, which holds the content
        raise SpecError(f"env_files.{name}: got text that UTF-8 cannot hold; expected text that it can") from None


async def hand_over(client: JobsClient, cluster: Takes, submission_id: str, without: Collection[str]) -> dict[str, str]:
    """Hand a cluster's variables and files over to a job; returns the variable by which it finds them, if there are any.

    `without`: names that the job's spec sets itself. Safe to repeat. Raises one of CLUSTER_ERRORS.
    """
    if not (secrets := Secrets(cluster.env_vars, cluster.env_files).without(without)):
        return {}
    name = f"raytrain-{submission_id}"
    await client.hand_over(name, secrets.pack())
    return {VARIABLE: name}
