"""Several clusters for one run: it moves on from one that it gets nothing from, and is never on two of them."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from devtools.chaos import Running, wait_until
from plugin_core import FallbackCluster, KubeRayCluster, KubeRaySettings, LocalCluster, RayCluster, ScalingConfig, run
from plugin_core.clusters import kuberay
from plugin_core.clusters.fake import FakeCluster, Play
from plugin_core.clusters.find import find_cluster
from plugin_core.driver.resources import MOVES_ON, in_limit, patient
from plugin_core.errors import (
    NO_RESOURCES,
    ClusterRefusedError,
    ClusterUnreachableError,
    InfeasibleError,
    InfrastructureError,
    SpecError,
    StepCancelledError,
    StepTimeoutError,
)
from plugin_core.runs.directory import RunDir
from plugin_core.specs import Limits
from plugin_core.supervisor import timings
from plugin_core.supervisor.cancel import acancel
from plugin_core.supervisor.supervisor import Supervisor, prepare, run_sync
from tests.support.fake_kubernetes import FakeKubernetes
from tests.support.fake_steps import spec_at

SETTINGS = KubeRaySettings(image="registry/train:1", workers=2)
NOWHERE = RayCluster("http://127.0.0.1:9")

Fake = Callable[..., FakeCluster]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kuberay, "POLL_S", 0.05)
    monkeypatch.setattr(timings, "POLL_MAX_S", 0.2)


@pytest.fixture
def fake() -> Iterator[Fake]:
    with ExitStack() as stack:

        def start(name: str, *plays: Play, **more: Any) -> FakeCluster:
            return stack.enter_context(FakeCluster(plays=list(plays or ["succeed"]), name=name, **more))

        yield start


@pytest.fixture
def queued(kubernetes: FakeKubernetes, ray: FakeCluster) -> KubeRayCluster:
    """One that waits in Kueue's queue for ever."""
    kubernetes.admits_after = None
    where: dict[str, Any] = {"kubeconfig": str(kubernetes.kubeconfig), "address": ray.address, "namespace": "ml"}
    return KubeRayCluster("spot", settings=SETTINGS, queue="gpus", on_failure="keep", **where)


def living(kubernetes: FakeKubernetes) -> list[str]:
    return [name for name, each in kubernetes.clusters.items() if "deletionTimestamp" not in each["metadata"]]


def texts(events: list[Any]) -> str:
    return "\n".join(event.text for event in events)


class TestItMovesOn:
    def test_from_one_that_cannot_be_reached(self, tmp_path: Path, fake: Fake) -> None:
        events: list[Any] = []
        second = fake("sure")
        result = run(spec_at(tmp_path), FallbackCluster([NOWHERE, second]), events.append)
        assert result.run.attempt == 1
        assert "moving on to a sure cluster" in texts(events)
        receipt = RunDir.at(result.run.uri).receipt(1)
        assert receipt is not None
        assert receipt.cluster == "sure"

    def test_from_one_that_is_too_small(self, tmp_path: Path, fake: Fake) -> None:
        first, second = fake("spot", num_cpus=1.0), fake("sure")
        spec = spec_at(tmp_path, scaling_config=ScalingConfig(num_workers=8))
        assert run(spec, FallbackCluster([first, second])).run.attempt == 1
        assert (first.jobs, len(second.jobs)) == ({}, 1)

    def test_from_a_queue_which_it_leaves(
        self, tmp_path: Path, fake: Fake, queued: KubeRayCluster, kubernetes: FakeKubernetes
    ) -> None:
        """It would be admitted one day, with nobody to use it."""
        events: list[Any] = []
        second = fake("sure")
        run(spec_at(tmp_path), FallbackCluster([queued, second], after_s=1.0), events.append)
        assert "waits in Kueue's queue gpus, 2 ahead, after 1 s; moving on to" in texts(events)
        assert (kubernetes.methods()[:2], living(kubernetes)) == (["POST", "DELETE"], [])

    def test_from_a_cluster_whose_head_does_not_come_up(
        self, tmp_path: Path, fake: Fake, queued: KubeRayCluster, kubernetes: FakeKubernetes
    ) -> None:
        kubernetes.ready_after = None
        first, second = replace(queued, queue=None, start_timeout_s=600.0), fake("sure")
        run(spec_at(tmp_path), FallbackCluster([first, second], after_s=1.0))
        assert (len(second.jobs), living(kubernetes)) == (1, [])

    def test_when_no_resources_come(self, tmp_path: Path, fake: Fake) -> None:
        """It does not count as a lost attempt. The driver is told how long it waits, but on the last cluster."""
        first, second, third = fake("spot", "no_resources"), fake("spot-2", "no_resources"), fake("sure")
        spec = spec_at(tmp_path, limits=Limits(max_attempts=1))
        result = run(spec, FallbackCluster([first, second, third], after_s=45.0))
        assert result.run.attempt == 3
        assert [len(each.jobs) for each in (first, second, third)] == [1, 1, 1]
        given = [each.runtime_envs[0]["env_vars"].get(MOVES_ON) for each in (first, second, third)]
        assert given == ["45", "45", None]

    def test_when_the_cluster_is_lost(self, tmp_path: Path, fake: Fake) -> None:
        """It does not answer any more, for `after_s`, and the driver's heartbeat is silent."""
        first, second = fake("spot", "hang"), fake("sure")
        spec = spec_at(tmp_path, limits=Limits(heartbeat_ttl_s=0.5))
        running = Running(spec, FallbackCluster([first, second], after_s=0.3))
        wait_until(lambda: first.jobs)
        first.answering = False
        assert running.result().run.attempt == 2
        assert len(second.jobs) == 1
        assert "attempt 1 was lost" in texts(running.events)

    def test_but_not_after_a_failure_of_another_kind(self, tmp_path: Path, fake: Fake) -> None:
        first, second = fake("spot", "infrastructure", "killed", "succeed"), fake("sure")
        assert run(spec_at(tmp_path), FallbackCluster([first, second])).run.attempt == 3
        assert second.jobs == {}

    def test_but_not_from_one_that_refuses_its_token(self, tmp_path: Path, fake: Fake) -> None:
        """Whoever wrote it wants to know."""
        first, second = fake("spot", token="another"), fake("sure")
        with pytest.raises(ClusterRefusedError):
            run(spec_at(tmp_path), FallbackCluster([RayCluster(first.address, "wrong"), second]))
        assert second.jobs == {}


@pytest.mark.parametrize("end", ["end_workflow", "leave", "release"])
def test_one_that_cannot_be_ended_does_not_keep_the_others(kubernetes: FakeKubernetes, ray: FakeCluster, end: str) -> None:
    where: dict[str, Any] = {"settings": SETTINGS, "address": ray.address, "namespace": "ml", "share": "workflow"}
    where = {**where, "linger_s": 0.0} if end == "end_workflow" else {**where, "share": "run"}
    lost = KubeRayCluster("spot", kubeconfig="/nowhere", **where)
    second = KubeRayCluster("sure", kubeconfig=str(kubernetes.kubeconfig), **where)
    both = FallbackCluster([lost, second]).of_workflow("flow").of_run("/run")

    async def made_and_ended() -> None:
        await both.clusters[1].connect()
        if end == "end_workflow":
            await both.clusters[1].leave()
        await getattr(both, end)(*[True] * (end == "release"))

    with pytest.raises(SpecError, match="kubeconfig: got '/nowhere'"):
        asyncio.run(made_and_ended())
    assert living(kubernetes) == []


class TestTheLastOne:
    """It is as if it were the only one."""

    def test_fails_the_run_if_it_cannot_be_reached(self, tmp_path: Path) -> None:
        with pytest.raises(ClusterUnreachableError):
            run(spec_at(tmp_path), FallbackCluster([RayCluster("http://127.0.0.1:7"), NOWHERE]))

    def test_fails_the_run_if_it_is_too_small(self, tmp_path: Path, fake: Fake) -> None:
        spec = spec_at(tmp_path, scaling_config=ScalingConfig(num_workers=8))
        with pytest.raises(InfeasibleError):
            run(spec, FallbackCluster([fake("spot", num_cpus=1.0), fake("sure", num_cpus=2.0)]))

    def test_fails_the_run_for_want_of_resources(self, tmp_path: Path, fake: Fake) -> None:
        with pytest.raises(StepTimeoutError):
            run(spec_at(tmp_path), FallbackCluster([fake("spot", "no_resources"), fake("sure", "no_resources")]))

    def test_uses_up_the_attempts(self, tmp_path: Path, fake: Fake) -> None:
        last = fake("sure", "infrastructure")
        spec = spec_at(tmp_path, limits=Limits(max_attempts=2))
        with pytest.raises(InfrastructureError, match="after 2 attempts"):
            run(spec, FallbackCluster([NOWHERE, last]))
        assert len(last.jobs) == 2


class TestAnotherProcess:
    def test_finds_the_run_where_it_is(self, tmp_path: Path, fake: Fake) -> None:
        first, second = fake("spot"), fake("sure", "hang")
        clusters, spec = FallbackCluster([first, second]), spec_at(tmp_path)
        first.answering = False
        rundir = run_sync(prepare(spec, clusters))
        run_sync(Supervisor(rundir, clusters).submit())
        first.answering = True
        assert run_sync(acancel(rundir, clusters)) == "cancelled"
        assert (first.jobs, list(second.jobs.values())) == ({}, ["STOPPED"])

    def test_finds_the_clusters_by_their_reference(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RAYTRAIN_CLUSTERS", NOWHERE.address)
        clusters = FallbackCluster([NOWHERE, LocalCluster()], after_s=7.0)
        found = find_cluster(clusters.reference())
        assert isinstance(found, FallbackCluster)
        assert [each.identity for each in found.choices()] == [each.identity for each in clusters.choices()]
        assert found.after_s == 7.0

    @pytest.mark.parametrize(
        "reference",
        [
            {"clusters": "http://ray"},
            {"clusters": [{"clusters": [{}]}]},
            {"clusters": []},
            {"clusters": [{}], "after_s": "soon"},
            {"clusters": [{}], "after_s": -1.0},
            {"clusters": [{}, {}]},
        ],
    )
    def test_refuses_an_artifact_that_is_none(self, reference: dict[str, Any]) -> None:
        with pytest.raises(SpecError):
            find_cluster(reference)

    def test_gets_a_finished_result_without_asking_any_of_them(self, tmp_path: Path, fake: Fake) -> None:
        result = run(spec_at(tmp_path), fake("spot"))
        assert run(spec_at(tmp_path), FallbackCluster([NOWHERE, RayCluster("http://127.0.0.1:7")])) == result


def test_a_cancel_leaves_no_cluster_behind_wherever_the_run_was(
    tmp_path: Path, queued: KubeRayCluster, kubernetes: FakeKubernetes, ray: FakeCluster
) -> None:
    second = replace(queued, name="sure")
    running = Running(spec_at(tmp_path), clusters := FallbackCluster([queued, second], after_s=0.5))
    wait_until(lambda: any(name.startswith("sure") for name in living(kubernetes)))
    wait_until(lambda: not any(name.startswith("spot") for name in living(kubernetes)))
    assert run_sync(acancel(running.rundir, clusters)) == "cancelled"  # by a process that knows nothing of this
    assert isinstance(running.error(), StepCancelledError)
    assert (living(kubernetes), ray.jobs) == ([], {})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "clusters: got 0 of them; expected a list of 1 to 8 clusters"),
        ("http://ray", "clusters: got a value of type str; expected a list of 1 to 8 clusters"),
        (["http://ray"], "clusters[0]: got a value of type str; expected a RayCluster, KubeRayCluster or LocalCluster"),
        ([NOWHERE, LocalCluster(), NOWHERE], "clusters[2]: got the same cluster as clusters[0]; expected another one"),
    ],
)
def test_wrong_lists_are_refused(given: Any, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        FallbackCluster(given)
    assert caught.value.message == said


def test_lists_in_lists_and_wrong_times_are_refused() -> None:
    with pytest.raises(SpecError, match=r"clusters\[0\]: got a value of type FallbackCluster"):
        FallbackCluster([FallbackCluster([NOWHERE])])
    with pytest.raises(SpecError, match="after_s: got 0"):
        FallbackCluster([NOWHERE], after_s=0.0)


class TestPatience:
    """How long a driver waits for resources on a cluster that is not the last."""

    def test_is_the_shorter_of_both_limits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert patient(Limits()).scheduling_timeout_s is None
        monkeypatch.setenv(MOVES_ON, "45")
        assert patient(Limits()).scheduling_timeout_s == 45.0
        assert patient(Limits(scheduling_timeout_s=30.0)).scheduling_timeout_s == 30.0
        assert patient(Limits(scheduling_timeout_s=60.0)).scheduling_timeout_s == 45.0
        assert (in_limit(45.0), in_limit(30.0)) == ("after_s (45 s)", "limits.scheduling_timeout_s (30 s)")

    def test_shows_in_the_cause_of_the_end(self) -> None:
        from plugin_core.driver.attempt import _end
        from plugin_core.driver.resources import too_late

        assert _end(too_late("no resources"), 1.0).cause == NO_RESOURCES
