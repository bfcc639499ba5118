"""What answers in the place of Ray's Jobs API, such as a gateway's login page, says nothing about a job."""

import asyncio
import pickle
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from plugin_core.clusters.fake import FakeCluster
from plugin_core.clusters.jobs_api import JobInfo, JobsClient
from plugin_core.errors import ClusterRefusedError, ClusterUnreachableError
from plugin_core.supervisor.supervisor import Event, Supervisor, prepare, run_sync
from tests.support.fake_steps import spec_at

#: A gateway's answer, and what is said about it.
ANSWERS: dict[str, tuple[Callable[[], web.Response], str]] = {
    "redirect": (
        lambda: web.Response(status=302, headers={"Location": "https://sso.example/?state=secret"}),
        "a redirect (302)",
    ),
    "page": (lambda: web.Response(text="<html>secret</html>", content_type="text/html"), "an HTML page"),
    "broken": (lambda: web.Response(text='{"secret', content_type="application/json"), "JSON that cannot be read"),
    "binary": (lambda: web.Response(body=b'"\xff"', content_type="application/json"), "JSON that cannot be read"),
    "empty": (lambda: web.Response(content_type="application/json"), "not the expected data"),
    "text": (lambda: web.Response(text="secret"), "not the expected data"),
    "list": (lambda: web.json_response(["secret"]), "not the expected data"),
    "other": (lambda: web.json_response({"status": "secret"}), "not the expected data"),
    "half": (lambda: web.json_response({"data": {"result": None}}), "not the expected data"),
}


class Gateway(FakeCluster):
    """A cluster behind a gateway that asks for a login from time to time."""

    answer: Callable[[], web.Response] | None = None

    @web.middleware
    async def _gate(self, request: web.Request, handler: Any) -> web.StreamResponse:
        response: web.StreamResponse = self.answer() if self.answer else await handler(request)
        return response


@pytest.mark.parametrize("name", ANSWERS)
def test_a_live_job_is_waited_for_while_something_else_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("plugin_core.supervisor.timings.POLL_FIRST_S", 0.01)
    answer, said = ANSWERS[name]
    events: list[Event] = []
    with Gateway(plays=["hang"]) as cluster:
        rundir = run_sync(prepare(spec_at(tmp_path), cluster))
        run_sync(Supervisor(rundir, cluster).submit())
        cluster.answer = answer

        def listen(event: Event) -> None:
            events.append(event)
            if "its cluster cannot be queried" in event.text:  # somebody logs in, and the job finishes
                cluster.answer = None
                (job,) = cluster.jobs
                cluster.jobs[job] = cluster._play("succeed", rundir, 1)

        assert run_sync(Supervisor(rundir, cluster, listener=listen).run()).run.attempt == 1
    told = [event.text for event in events if "its cluster cannot be queried" in event.text]
    assert f"{cluster.address} did not answer as Ray's Jobs API does: {said}" in told[0]
    assert not any("secret" in event.text or "sso.example" in event.text for event in events)
    assert cluster.submits == 1


REQUESTS: dict[str, Callable[[JobsClient], Awaitable[Any]]] = {
    "job": lambda client: client.job("a"),
    "jobs": lambda client: client.jobs(),
    "nodes": lambda client: client.nodes(),
    "actors": lambda client: client.has_live_actors(JobInfo("a", "FAILED", driver_id="01000000")),
    "log": lambda client: client.open_log(JobInfo("a", "RUNNING", node_id="n")),
    "stop": lambda client: client.stop("a"),
    "hand over": lambda client: client.hand_over("a", b""),
    "submit": lambda client: client.submit("a", "true", {}, {}),
    "version": lambda client: client.version(),
}


def asked(what: str, answer: Callable[[], web.Response]) -> BaseException | None:
    """The error of a request that got this answer."""

    async def ask() -> None:
        async with await cluster.connect() as client:
            await REQUESTS[what](client)

    with Gateway() as cluster:
        cluster.answer = answer
        try:
            asyncio.run(ask())
        except Exception as exc:
            return exc
    return None


@pytest.mark.parametrize("what", [name for name in REQUESTS if name != "version"])
@pytest.mark.parametrize("answer", ["redirect", "page"])
def test_no_request_takes_a_login_for_an_answer(what: str, answer: str) -> None:
    error = asked(what, ANSWERS[answer][0])
    assert isinstance(error, ClusterUnreachableError)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize("what", ["job", "jobs", "nodes", "actors"])
@pytest.mark.parametrize("answer", ["broken", "empty", "text", "list", "other", "half"])
def test_no_request_takes_other_data_for_an_answer(what: str, answer: str) -> None:
    assert isinstance(asked(what, ANSWERS[answer][0]), ClusterUnreachableError)


def test_an_error_that_is_no_text_is_an_error_of_the_cluster() -> None:
    assert isinstance(asked("job", lambda: web.Response(status=502, body=b"\xff")), ClusterUnreachableError)


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_address_where_the_api_never_answered_is_refused(answer: str) -> None:
    error = asked("version", ANSWERS[answer][0])
    assert isinstance(error, ClusterRefusedError)
    assert "which has no Ray Jobs API; expected the URL of a Ray dashboard" in str(error)
