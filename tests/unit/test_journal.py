"""The journal: every entry once, in order, through segments and storage trouble."""

from pathlib import Path

import pytest

from plugin_core import journal
from plugin_core.errors import StorageError
from plugin_core.journal import JournalReader, JournalWriter
from plugin_core.rundir import RunDir
from plugin_core.storage import Location


def test_every_entry_is_read_once_and_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "SEGMENT_BYTES", 500)
    monkeypatch.setattr(journal, "FLUSH_S", 0.01)
    rundir = RunDir.at(str(tmp_path / "run"))
    reader, writer, got = JournalReader(rundir), JournalWriter(rundir, 1), []
    for number in range(200):
        writer.append({"report": number})
        if number % 20 == 0:
            got += reader.read()
    writer.close()
    got += reader.read()
    assert [entry["report"] for entry in got] == list(range(200))
    assert reader.read() == []
    assert len(rundir.step.child("journal").names()) > 5


def test_attempts_follow_each_other(tmp_path: Path) -> None:
    rundir = RunDir.at(str(tmp_path / "run"))
    for attempt in (1, 2):
        writer = JournalWriter(rundir, attempt)
        writer.append({"report": attempt})
        writer.close()
    assert [entry["attempt"] for entry in JournalReader(rundir).read()] == [1, 2]


def test_a_storage_that_fails_for_a_while_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "FLUSH_S", 0.01)
    monkeypatch.setattr(journal, "SEGMENT_BYTES", 200)
    rundir, failing, write = RunDir.at(str(tmp_path / "run")), [True], Location.write

    def sometimes(self: Location, data: bytes) -> None:
        if failing[0]:
            raise StorageError("the storage is away")
        write(self, data)

    monkeypatch.setattr(Location, "write", sometimes)
    writer = JournalWriter(rundir, 1)
    for number in range(50):
        writer.append({"report": number})
    failing[0] = False
    writer.append({"report": 50})
    writer.close()
    assert [entry["report"] for entry in JournalReader(rundir).read()] == list(range(51))


def test_a_segment_that_fills_up_while_it_is_written_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "FLUSH_S", 3600)
    monkeypatch.setattr(journal, "SEGMENT_BYTES", 500)
    rundir, write = RunDir.at(str(tmp_path / "run")), Location.write
    writer = JournalWriter(rundir, 1)
    writer.append({"report": 0})

    def slowly(self: Location, data: bytes) -> None:
        monkeypatch.setattr(Location, "write", write)
        for number in range(1, 30):
            writer.append({"report": number})
        write(self, data)

    monkeypatch.setattr(Location, "write", slowly)
    writer.flush()
    writer.close()
    assert [entry["report"] for entry in JournalReader(rundir).read()] == list(range(30))


def test_segments_are_read_by_their_numbers(tmp_path: Path) -> None:
    rundir = RunDir.at(str(tmp_path / "run"))
    place = rundir.step.child("journal")
    place.child("001-9999.jsonl").write(b'{"report": 1}\n')
    reader = JournalReader(rundir)
    got = reader.read()
    place.child("001-10000.jsonl").write(b'{"report": 2}\n')
    place.child("002-0001.jsonl").write(b'{"report": 3}\n')
    got += reader.read()
    assert [entry["report"] for entry in got] == [1, 2, 3]
    assert [entry["report"] for entry in JournalReader(rundir).read()] == [1, 2, 3]
