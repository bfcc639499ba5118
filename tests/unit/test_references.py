"""No string accidentally runs code, leaks a secret or leads to another location."""

import asyncio
import io
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from plugin_core import (
    KubeRayCluster,
    LocalCluster,
    MLflow,
    RayCluster,
    RetrainSpec,
    get_model,
    promote,
    rollback,
)
from plugin_core.clusters.fake import FakeCluster
from plugin_core.clusters.find import find_cluster
from plugin_core.clusters.jobs_api import JobsClient
from plugin_core.clusters.kuberay_json import kuberay_from_json
from plugin_core.clusters.local_head_keeper import plain_executable
from plugin_core.errors import SpecError
from plugin_core.errors.redaction import shown_uri
from plugin_core.registry.api import open_registry
from plugin_core.runs.directory import RunDir
from plugin_core.storage.location import Location
from plugin_core.storage.s3_backend import opened
from plugin_core.storage.uris import OPTIONS
from plugin_core.supervisor.supervisor import run
from tests.support.fake_steps import spec_at

ODD = 'it\'s a $HOME #1? `id` "q" ü; & ' + "n" * 200


def test_a_storage_uri_imports_nothing_that_the_installation_does_not_allow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "evil_module.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')\ndef f(**_): pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("RAYTRAIN_FILESYSTEMS", "evil_module:another, another:f")
    touch = f"custom://x?filesystem=subprocess:getoutput&cmd=touch%20{tmp_path}/called"
    for uri in ("custom://x?filesystem=evil_module:f", touch):
        for use in (Location.exists, Location.read, Location.names):
            with pytest.raises(SpecError, match=r"does not allow; expected one listed in .* RAYTRAIN_FILESYSTEMS"):
                use(Location.of(uri))
        with pytest.raises(SpecError, match="does not allow"):
            RunDir.at(uri).latest()
    assert [path.name for path in tmp_path.iterdir()] == ["evil_module.py"]


def test_a_storage_uri_reads_no_variable_that_the_installation_does_not_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_PASSWORD", "hunter2")
    for uri in ("s3fs://b/x?key=$DATABASE_PASSWORD", "s3://b?endpoint_override=$DATABASE_PASSWORD"):
        with pytest.raises(SpecError, match=r"=\$DATABASE_PASSWORD, which this installation does not allow") as caught:
            Location.of(uri).read()
        assert "hunter2" not in str(caught.value)


def test_the_installations_allowances_travel_with_each_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYTRAIN_FILESYSTEMS", "ours:open")
    with FakeCluster() as cluster:
        run(spec_at(tmp_path), cluster)
    assert cluster.runtime_envs[0]["env_vars"]["RAYTRAIN_FILESYSTEMS"] == "ours:open"


def test_our_package_travels_with_each_job_where_the_cluster_lacks_it(tmp_path: Path) -> None:
    (tmp_path / "users").mkdir()
    (tmp_path / "users" / "mine.py").touch()
    with FakeCluster() as cluster:
        cluster.ship_package = True
        run(spec_at(tmp_path, runtime_env={"py_modules": [str(tmp_path / "users")]}), cluster)
    assert len(cluster.runtime_envs[0]["py_modules"]) == 3
    names = {name for data in cluster.packages.values() for name in zipfile.ZipFile(io.BytesIO(data)).namelist()}
    assert {"plugin_core/driver/__main__.py", "cloudpickle/__init__.py", "users/mine.py"} <= names
    for given in (RayCluster("http://h:1", ship_package=True), KubeRayCluster("a", ship_package=True)):
        assert find_cluster(given.reference()).ship_package


def test_an_option_that_a_scheme_does_not_know_is_refused_without_its_value() -> None:
    for name in ("sig", "pwd", "auth", "session", "client_kwargs", "target_protocol", "profile"):
        for scheme in ("s3", "s3fs", "gs", "memory"):
            with pytest.raises(SpecError, match=f"'{name}'; expected options of {scheme}://") as caught:
                Location.of(f"{scheme}://b/x?{name}=hunter2")
            assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("name", ["tls_verify_certificates", "smart_defaults"])
def test_an_option_that_pyarrow_would_drop_is_refused(name: str) -> None:
    with pytest.raises(SpecError, match=f"'{name}'; expected options of s3://"):
        Location.of(f"s3://b/x?{name}=false")


def test_a_flag_of_a_uri_is_true_or_false() -> None:
    with pytest.raises(SpecError, match="'allow_bucket_creation'; expected true or false"):
        Location.of("s3://b/x?allow_bucket_creation=maybe")


def test_pyarrows_filesystem_takes_every_option_of_an_s3_uri() -> None:
    """A dropped option would be a value that changes silently."""
    values = {"region": "eu-west-1", "scheme": "http", "endpoint_override": "127.0.0.1:9", "tls_ca_file_path": "/ca.pem"}
    values |= dict.fromkeys(("access_key", "secret_key", "session_token"), "x")
    options = {name: values.get(name, "true") for name in OPTIONS["s3"]}
    made, _ = opened("b", options, 1)
    _, (kept,) = made.__reduce__()
    assert {name: str(kept[name]).replace("True", "true") for name in options} == options


@pytest.mark.parametrize(
    "uri",
    [
        "s3://b/exp#1",
        "s3://b/exp#",
        "file:///tmp/x#1",
        "file:///tmp/x?y",
        "file://host/x",
        "s3://b/a/../c",
        "s3://b/./c",
        "s3://[x",
        "s3://b/\x00",
        "/tmp/\x00",
        "/tmp/\ud800",
        "s3:/bucket",
    ],
)
def test_a_uri_that_would_mean_another_location_is_refused(uri: str) -> None:
    with pytest.raises(SpecError, match=r"^storage_path: got .*; expected "):
        Location.of(uri)


def test_a_local_path_may_hold_what_a_uri_may_not(tmp_path: Path) -> None:
    place = Location.of(str(tmp_path / "exp#1?x=y"))
    place.write(b"1")
    assert (tmp_path / "exp#1?x=y").read_bytes() == b"1"
    assert Location.of(str(tmp_path / "exp#2?x=y")).read() is None


@pytest.mark.parametrize(
    "uri",
    [
        "s3a://hunter1:hunter2@b/x",
        "s3://hunter1:hunter2@b/x",
        "s3://hunter1@b/x",
        "ftp://hunter1:hun/ter2@host/x",
        "ftp://hunter1:hunter2@host/x?y=hunter3#hunter4",
        "https://b.s3.amazonaws.com/x?X-Amz-Signature=hunter2&hunter3",
        "http://u:hunter1@hunter2@host",
        "abfs://hunter1:hunter2@account.dfs.core.windows.net/x",
        "custom://x?filesystem=m:f&sig=hunter2",
        "gs://b/x?token=hunter2",
        "s3://hunter1:hunter2/bucket",
        "http:/u:hunter2@host",
    ],
)
def test_a_refused_uri_is_not_echoed_with_its_secrets(uri: str) -> None:
    with pytest.raises(SpecError) as caught:
        Location.of(uri)
    assert "hunter" not in str(caught.value) + shown_uri(uri)


def test_the_entrypoint_keeps_any_path_one_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray passes the entrypoint to a shell, and so does this test."""
    entrypoints: list[str] = []
    submit = JobsClient.submit

    async def note(self: JobsClient, submission_id: str, entrypoint: str, *rest: object) -> None:
        entrypoints.append(entrypoint)
        await submit(self, submission_id, entrypoint, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(JobsClient, "submit", note)
    storage = tmp_path / "x'; touch injected; echo '" / ODD
    with FakeCluster() as cluster:
        run(spec_at(storage), cluster)
    code = "import sys; print(*sys.argv[1:], sep='\\n')"
    command = f"{shlex.join([sys.executable, '-c', code])} {entrypoints[0]}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout.splitlines()[:4] == ["exec", "fake-driver", f"{storage}/run", "1"]
    assert not (tmp_path / "injected").exists()


def test_a_python_path_with_spaces_stays_one_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/home/o'brien/my venv/bin/python")
    assert LocalCluster().driver_command()[0] == "/home/o'brien/my venv/bin/python"
    assert RayCluster("http://h:1", python="/a b/python").driver_command()[0] == "/a b/python"


def test_ray_starts_from_an_environment_whose_path_has_spaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert plain_executable(str(tmp_path)) == sys.executable
    (tmp_path / "my venv's").symlink_to(sys.prefix)
    spaced = tmp_path / "my venv's" / Path(sys.executable).relative_to(sys.prefix)
    code = "import sys; from plugin_core.clusters import local_head_keeper as k; print(k.plain_executable(sys.argv[1]))"
    done = subprocess.run([spaced, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(tmp_path / "python" / Path(sys.executable).relative_to(sys.prefix))
    subprocess.run(f"exec {done.stdout.strip()} -c 'import ray, plugin_core'", shell=True, check=True)


def test_a_name_does_not_lead_elsewhere(tmp_path: Path) -> None:
    spec = spec_at(tmp_path / "runs")
    for name in ("../../outside", "/abs", "a/b", "", ".", "..", "x\n"):
        with pytest.raises(SpecError, match=r"run_config\.name: got "):
            spec.with_name(name)
        for use in (rollback, get_model):
            with pytest.raises(SpecError, match="name: got"):
                use(name or "..", registry=str(tmp_path))
            with pytest.raises(SpecError, match="alias: got"):
                use("m", name or "..", registry=str(tmp_path))
        with pytest.raises(SpecError, match="name: got"):
            promote(str(tmp_path), name, registry=str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_copy_of_a_spec_is_checked(tmp_path: Path) -> None:
    spec = spec_at(tmp_path)
    with pytest.raises(SpecError, match=r"limits\.max_attempts: got 0"):
        spec.model_copy(update={"limits": {"max_attempts": 0}})
    with pytest.raises(SpecError, match=r"run_config\.storage_path: got 'ftp://x'"):
        spec.model_copy(update={"run_config": {"storage_path": "ftp://x"}})
    assert spec.model_copy(update={"seed": 1}).to_json() == {**spec.to_json(), "seed": 1}
    assert spec.with_name("b").model_fields_set == spec.model_fields_set


@pytest.mark.parametrize("home", ["/runs/a", "s3://b/runs/a", "s3://b/runs/a?region=x"])
def test_a_child_lies_below_its_place(home: str) -> None:
    place = Location(home)
    for name in ("..", "../x", "x/../../y", "/etc/passwd", "", "x\0y"):
        with pytest.raises(SpecError, match=r"path: got .*; expected a name below"):
            place.child("ok", name)


def test_a_name_with_signs_of_a_uri_stays_one_name_on_an_object_store() -> None:
    places = [Location("s3://b/runs?region=x").child(name) for name in ("a#1.png", "a#2.png", "a?c", "ü %20")]
    assert [place.path for place in places] == ["b/runs/a#1.png", "b/runs/a#2.png", "b/runs/a?c", "b/runs/ü %20"]
    assert [Location.of(place.uri).name for place in places] == ["a#1.png", "a#2.png", "a?c", "ü %20"]


@pytest.mark.parametrize(
    "address", ["http://u:hunter2@h", "http://hunter2@h:1", "http://h?token=hunter2", "http://h#hunter2"]
)
def test_a_clusters_address_holds_no_credentials(address: str) -> None:
    for make in (lambda: RayCluster(address, "t"), lambda: KubeRayCluster("n", address=address)):
        with pytest.raises(SpecError, match=r"address: got .*; expected ") as caught:
            make()
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("address", ["http://[::1", "x", "ray://h:1", "javascript:alert(1)", "http://", "http://h:x", ""])
def test_a_value_that_is_not_an_address_is_refused_with_one_sentence(address: str) -> None:
    with pytest.raises(SpecError, match=r"^address: "):
        RayCluster(address)


@pytest.mark.parametrize(
    "uri",
    ["https://hunter2@h", "https://h?token=hunter2", "https://u:p@hunter2@h", "http://u:hunter2@h/x", "x://h/?sig=hunter2"],
)
def test_a_trackers_and_a_registrys_uri_hold_no_credentials(uri: str, tmp_path: Path) -> None:
    for make in (lambda: MLflow(tracking_uri=uri), lambda: open_registry(f"mlflow:{uri}"), lambda: open_registry(uri)):
        with pytest.raises(SpecError) as caught:
            make()
        assert "hunter2" not in str(caught.value)
    loop = {"train_loop_per_worker": "a:b", "framework": "python"}
    fields = {"model": "m", "train": loop, "evaluate": {"evaluate": "a:b", "thresholds": {"x": {"min": 1}}}}
    with pytest.raises(SpecError, match="registry: ") as caught:
        RetrainSpec(**fields, registry=f"mlflow:{uri}")
    assert "hunter2" not in str(caught.value)
    assert RetrainSpec(**fields, registry=str(tmp_path)).registry == str(tmp_path)
    for good in ("postgresql://db/x?sslmode=require", "databricks://scope:prefix", "databricks", "sqlite:////x/y@z.db"):
        assert MLflow(tracking_uri=good).tracking_uri == good


def test_the_token_goes_to_no_address_that_only_an_artifact_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "hunter2")
    for name in ("RAYTRAIN_CLUSTERS", "RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.delenv(name, raising=False)

    def token_for(reference: dict[str, Any]) -> str | None:
        return asyncio.run(find_cluster(reference).connect())._token

    given = RayCluster("http://ray.example:8265", verify=False).reference()
    assert not token_for(given)
    monkeypatch.setenv("RAYTRAIN_CLUSTERS", "http://other:1, http://ray.example:8265/")
    assert token_for(given) == "hunter2"
    assert not token_for({**given, "address": "http://ray.example:8265/evil"})
    for reference in ({"address": "http://evil/{name}"}, {"kubeconfig": "/tmp/evil"}, {"namespace": "x.evil/#"}):
        with pytest.raises(SpecError):
            find_cluster({"kuberay": {"name": "t", **reference}})


def test_a_token_in_kuberays_fields_is_kept() -> None:
    more = {"token": None, "headers": {}, "verify": True, "python": "python"}
    cluster = kuberay_from_json({"name": "t", "token": "mine", "verify": False, "headers": {"a": "b"}}, **more)
    assert (cluster.token, cluster.verify, cluster.headers) == ("mine", False, {"a": "b"})
    assert kuberay_from_json({"name": "t", "token": "mine"}, token="theirs").token == "theirs"
