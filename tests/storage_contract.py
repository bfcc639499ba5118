"""What every storage must keep, whatever it is made of."""

import threading

import pytest

from plugin_core.errors import FencedError
from plugin_core.fence import Fence
from plugin_core.journal import JournalReader, JournalWriter, read_reports
from plugin_core.manifest import problem
from plugin_core.rundir import RunDir
from plugin_core.storage import Location


class StorageContract:
    def test_what_is_absent_reads_as_none_and_lists_as_empty(self, root: Location) -> None:
        assert root.child("none").read() is None
        assert root.child("none").names() == []
        assert not root.child("none").exists()

    def test_a_write_is_read_back_listed_and_replaced(self, root: Location) -> None:
        place = root.child("folder", "a file.json")
        place.write(b"one")
        place.write(b"two")
        assert place.read() == b"two"
        assert root.child("folder").names() == ["a file.json"]
        assert place.exists()

    def test_create_writes_once(self, root: Location) -> None:
        place = root.child("attempts", "001.json")
        assert place.create(b"first")
        assert not place.create(b"second")
        assert place.read() == b"first"

    def test_of_many_creators_exactly_one_wins(self, root: Location) -> None:
        start, won = threading.Barrier(6), []

        def create(number: int) -> None:
            start.wait()
            if root.child("race").create(str(number).encode()):
                won.append(number)

        threads = [threading.Thread(target=create, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert root.child("race").read() == str(won[0]).encode()

    def test_a_deleted_folder_is_gone_and_deleting_it_again_is_fine(self, root: Location) -> None:
        root.child("old", "x").write(b"1")
        root.child("old").delete_dir()
        root.child("old").delete_dir()
        assert root.child("old", "x").read() is None

    def test_a_name_may_hold_what_a_person_writes(self, root: Location) -> None:
        for name in ("with space", "ünïcode", "a+b=c", "50%", "semi;colon", "(brackets)"):
            place = root.child("names", name)
            place.write(name.encode())
            assert place.read() == name.encode()
        assert len(root.child("names").names()) == 6

    def test_the_journal_keeps_ten_thousand_reports_in_order(self, root: Location) -> None:
        rundir = RunDir.at(root.uri)
        writer, reader = JournalWriter(rundir, 1), JournalReader(rundir)
        seen = 0
        for number in range(10_000):
            writer.append({"report": number, "metrics": {"loss": 1 / (number + 1), "epoch": number // 100}})
            if number % 4000 == 1999:
                writer.flush()
                seen += len(reader.read())
        writer.close()
        seen += len(reader.read())
        assert seen == 10_000, "who reads along gets each once"
        assert [entry["report"] for entry in read_reports(rundir)] == list(range(10_000))
        assert max(len(place.read() or b"") for place in _segments(rundir)) < 128 * 1024, "each write stays small"

    def test_an_attempt_is_claimed_once_and_fences_the_one_before(self, root: Location) -> None:
        rundir = RunDir.at(root.uri)
        first = rundir.claim(1, "http://ray", "session_1", "ray")
        assert first is not None
        assert rundir.claim(1, "http://ray", "session_1", "ray") is None
        Fence(rundir.uri, 1).check()
        assert rundir.claim(2, "http://ray", "session_1", "ray") is not None
        with pytest.raises(FencedError):
            Fence(rundir.uri, 1).check()
        assert rundir.latest() == 2

    def test_a_checkpoint_that_was_cut_does_not_match_its_manifest(self, root: Location) -> None:
        checkpoint = root.child("checkpoint_a001_000001")
        checkpoint.child("model.pt").write(b"12345678")
        checkpoint.child(".manifest", "00000.json").write(b'{"files": {"model.pt": [8, 2598427311]}}')
        assert problem(checkpoint) == ""
        checkpoint.child("model.pt").write(b"1234")
        assert problem(checkpoint) == "model.pt has 4 bytes, of 8"


def _segments(rundir: RunDir) -> list[Location]:
    journal = rundir.step.child("journal")
    return [journal.child(name) for name in journal.names()]
