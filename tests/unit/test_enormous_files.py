"""Files that others may have written: none of any size, and none that never ends, is read into memory."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from plugin_core import RunConfig, TrainSpec
from plugin_core.errors import PayloadError, StorageError
from plugin_core.registry.files import FileRegistry
from plugin_core.runs import code, journal
from plugin_core.runs.directory import RunDir
from plugin_core.runs.history import History
from plugin_core.runs.journal import JournalWriter, read_reports
from plugin_core.runs.kept_log import DRIVER, KeptLog
from plugin_core.storage.checkpoint_manifest import problem
from plugin_core.storage.location import Location

#: What people read of a run, by the file that holds it: each with a bound, whoever wrote the file.
READERS: dict[str, Callable[[RunDir], object]] = {
    "result.json": RunDir.result,
    "spec.json": RunDir.read_record,
    "request.json": RunDir.request,
    "attempts/001.json": lambda run: run.receipt(1),
    "attempts/001.end.json": lambda run: run.end(1),
    "attempts/001.beat.json": lambda run: run.heartbeat(1),
    "attempts/001.links.json": lambda run: run.links(1),
    "attempts/001.phases.json": lambda run: run.phases(1),
    "intent.json": RunDir.old_intent,
    "told/me.json": lambda run: run.position("me"),
    "payload.pkl": code.digests,
    "code.zip": code.digests,
    "journal/001-0000001.jsonl": History.read,
    "logs/001/driver/0000000000001-000000000000.log": lambda run: KeptLog(run, 1, DRIVER).read(),
}


@pytest.mark.parametrize("name", READERS)
def test_a_file_of_any_size_is_not_read_into_memory(tmp_path: Path, name: str) -> None:
    run = RunDir.at(str(tmp_path / "run"))
    record = {"schema": 1, "kind": "train", "spec": {}, "payload": True, "sources": True, "python": "3"}
    for other in ("spec.json", "payload.pkl", "code.zip"):
        run.step.child(other).write(json.dumps(record).encode())
    file = tmp_path / "run/.step" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as stream:
        stream.truncate(2**36)
    with pytest.raises(StorageError, match=rf"{re.escape(name)} cannot be read: .*larger than the \d+ bytes allowed"):
        READERS[name](run)


def test_a_registry_and_a_checkpoint_read_no_file_of_any_size_either(tmp_path: Path) -> None:
    files = ["models/net/versions/000001.json", "models/net/aliases/champion/000001.json", "step/.manifest/00000.json"]
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True)
        with (tmp_path / name).open("wb") as stream:
            stream.truncate(2**36)
    registry = FileRegistry(Location.of(str(tmp_path / "models")))
    for read in (
        lambda: registry.versions("net"),
        lambda: registry.get("net", "champion"),
        lambda: problem(Location.of(str(tmp_path / "step"))),
    ):
        with pytest.raises(StorageError, match="larger than the 67108864 bytes allowed"):
            read()


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink("/dev/zero", path)], ids=["a pipe", "a device"])
def test_what_is_no_file_is_neither_waited_for_nor_read_without_end(tmp_path: Path, make: Callable[[Path], None]) -> None:
    run = RunDir.at(str(tmp_path / "run"))
    (tmp_path / "run/.step").mkdir(parents=True)
    make(tmp_path / "run/.step/result.json")
    with pytest.raises(StorageError, match=r"result\.json cannot be read: .*it is not a regular file"):
        run.result()


def test_functions_too_large_to_be_read_again_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plugin_core.runs.spec_record.CODE_BYTES", 100_000)
    table = b"x" * 100_000
    spec = TrainSpec(train_loop_per_worker=lambda: table, run_config=RunConfig(name="run", storage_path=str(tmp_path)))
    with pytest.raises(PayloadError, match=r"train_loop_per_worker: got 100,\d+ bytes .*expected at most 100,000"):
        RunDir.of(spec).write_spec(spec)
    assert not (tmp_path / "run").exists()


def test_a_report_too_large_to_be_read_again_keeps_its_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(journal, "LINE_BYTES", 1000)
    rundir = RunDir.at(str(tmp_path / "run"))
    writer = JournalWriter(rundir, 1)
    writer.append({"report": 1, "metrics": {"loss": 0.5, "picture": "x" * 1000}, "ranks": [{"picture": "x" * 1000}]})
    writer.append({"report": 2, "metrics": {"loss": 0.25, "note": "x"}})
    writer.close()
    assert [entry["metrics"] for entry in read_reports(rundir)] == [{"loss": 0.5}, {"loss": 0.25, "note": "x"}]
    assert "a report has 0 MB of metrics; only its numbers are kept" in caplog.text
