"""The journal: every entry once, in order, through segments and storage trouble."""

from pathlib import Path

import pytest

from plugin_core.errors import StorageError
from plugin_core.runs import journal, timings
from plugin_core.runs.directory import RunDir
from plugin_core.runs.journal import JournalReader, JournalWriter, iter_reports, segment_name
from plugin_core.storage.location import Location


def test_every_entry_is_read_once_and_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "SEGMENT_BYTES", 500)
    monkeypatch.setattr(journal, "SEGMENT_MAX_BYTES", 1000)
    monkeypatch.setattr(timings, "FLUSH_S", 0.01)
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
    monkeypatch.setattr(timings, "FLUSH_S", 0.01)
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


def test_a_segment_that_fills_up_during_a_write_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timings, "FLUSH_S", 3600)
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


def test_segments_are_read_in_the_order_of_their_numbers(tmp_path: Path) -> None:
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


class Counted:
    """A journal of small segments, and the requests of its readers."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(journal, "SEGMENT_BYTES", 100)
        monkeypatch.setattr(timings, "FLUSH_S", 3600)
        self.rundir = RunDir.at(str(tmp_path / "run"))
        self.asked: list[str] = []
        self._writer: JournalWriter | None = None
        names, read_since = Location.names, Location.read_since

        def counted_names(place: Location, after: str = "") -> list[str]:
            if place.name == "journal":
                self.asked.append("LIST")
            return names(place, after)

        def counted_read(place: Location, version: str) -> tuple[bytes | None, str]:
            self.asked.append(f"GET {place.name}")
            return read_since(place, version)

        monkeypatch.setattr(Location, "names", counted_names)
        monkeypatch.setattr(Location, "read_since", counted_read)

    def report(self, *numbers: int, attempt: int = 1) -> None:
        if self._writer is None or self._writer._attempt != attempt:
            self._writer = JournalWriter(self.rundir, attempt)
        for number in numbers:
            self._writer.append({"report": number})
            self._writer.flush()
        self.asked.clear()


def numbers(reader: JournalReader) -> list[int]:
    return [entry["report"] for entry in reader]


def test_a_reader_that_knows_the_attempt_asks_for_the_next_segment_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Counted(tmp_path, monkeypatch)
    reader = JournalReader(counted.rundir, attempt=1)
    counted.report(1)
    assert numbers(reader) == [1]
    counted.report()
    assert numbers(reader) == []
    assert counted.asked == [f"GET {segment_name(1, 1)}"]
    counted.report(2, 3)
    assert numbers(reader) == [2, 3]
    assert counted.asked == [f"GET {segment_name(1, 1)}", f"GET {segment_name(1, 2)}"]
    counted.report(1, attempt=2)
    reader.attempt = 2
    assert numbers(reader) == [1]
    assert counted.asked == ["LIST", f"GET {segment_name(1, 2)}", f"GET {segment_name(2, 1)}"]


def test_a_segment_deleted_by_hand_does_not_hold_up_a_reader_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Counted(tmp_path, monkeypatch)
    reader = JournalReader(counted.rundir, attempt=1)
    counted.report(1, 2)
    assert numbers(reader) == [1, 2]
    counted.report(3, 4, 5, 6)
    counted.rundir.step.child("journal", segment_name(1, 2)).delete()
    got = [number for _ in range(journal.LIST_EVERY) for number in numbers(reader)]
    assert got == [5, 6]
    assert [entry["report"] for entry in iter_reports(counted.rundir)] == [1, 2, 5, 6]


def test_a_position_is_one_segment_however_long_the_journal_and_old_positions_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Counted(tmp_path, monkeypatch)
    counted.report(*range(1, 101))
    reader = JournalReader(counted.rundir)
    assert next(iter(reader))["report"] == 1
    assert reader.position == {segment_name(1, 1): 1}, "what was not taken is not counted"
    assert numbers(reader) == list(range(2, 101))
    assert len(reader.position) == 1
    counted.report(101)
    assert numbers(JournalReader(counted.rundir, reader.position)) == [101]
    earlier = {segment_name(1, number): 2 for number in range(1, 51)}
    assert numbers(JournalReader(counted.rundir, earlier)) == [101]
    old = RunDir.at(str(tmp_path / "old"))
    for number in (1, 2):
        old.step.child(f"journal/001-{number:04}.jsonl").write(b'{"report": 1}\n{"report": 2}\n')
    assert numbers(JournalReader(old, {"001-0001.jsonl": 2, "001-0002.jsonl": 1})) == [2]


def test_reports_between_two_flushes_are_one_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timings, "FLUSH_S", 3600)
    rundir = RunDir.at(str(tmp_path / "run"))
    writer = JournalWriter(rundir, 1)
    ranks = [{"loss": 0.123456789, "step": 1} for _ in range(1000)]  # as with report_all_ranks
    for number in range(5):
        writer.append({"report": number, "ranks": ranks})
    writer.flush()
    writer.append({"report": 5, "ranks": ranks})
    writer.close()
    assert rundir.step.child("journal").names() == [segment_name(1, 1), segment_name(1, 2)]
    assert [entry["report"] for entry in iter_reports(rundir)] == list(range(6))


def test_a_second_controller_of_the_same_attempt_continues_the_journal(tmp_path: Path) -> None:
    rundir = RunDir.at(str(tmp_path / "run"))
    for number in (1, 2):
        writer = JournalWriter(rundir, 1)
        writer.append({"report": number})
        writer.close()
    assert [entry["report"] for entry in iter_reports(rundir)] == [1, 2]
