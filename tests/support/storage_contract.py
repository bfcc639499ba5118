"""The contract of every storage, whatever implements it."""

import threading
import time
import tracemalloc

import pytest

from plugin_core.errors import FencedError, StorageError
from plugin_core.runs.directory import RunDir
from plugin_core.runs.fence import Fence
from plugin_core.runs.journal import JournalReader, JournalWriter, read_reports
from plugin_core.storage.checkpoint_manifest import problem
from plugin_core.storage.location import Location


class StorageContract:
    def test_an_absent_file_reads_as_none_and_lists_as_empty(self, root: Location) -> None:
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

    def test_a_file_larger_than_its_reader_accepts_is_refused(self, root: Location) -> None:
        place = root.child("large.json")
        place.write(b"x" * 1001)
        assert place.read(at_most=1001) == b"x" * 1001
        with pytest.raises(StorageError, match=r"large\.json.* cannot be read: .*larger than the 1000 bytes"):
            place.read(at_most=1000)

    def test_a_file_larger_than_its_reader_accepts_is_not_loaded(self, root: Location) -> None:
        place = root.child("enormous.json")
        place.write(bytes(16 * 2**20))
        root.names()  # the first request loads the storage's client
        tracemalloc.start()
        try:
            with pytest.raises(StorageError, match=r"enormous\.json.* cannot be read: .*larger than the 1000 bytes"):
                place.read(at_most=1000)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert most < 4 * 2**20, "the limit, and a chunk of the connection"

    def test_names_after_a_name_are_those_that_sort_after_it(self, root: Location) -> None:
        for name in ("a", "b", "c"):
            root.child("names after", name).write(b"1")
        assert root.child("names after").names(after="a") == ["b", "c"]
        assert root.child("names after").names(after="c") == []

    def test_an_unchanged_file_is_not_read_again(self, root: Location) -> None:
        place = root.child("changes")
        assert place.read_since("") == (None, "")
        place.write(b"one")
        data, version = place.read_since("")
        assert data == b"one"
        assert place.read_since(version) in ((None, version), (b"one", "")), "some storages know no versions"
        place.write(b"two")
        assert place.read_since(version)[0] == b"two"

    def test_the_files_below_a_folder_are_listed_with_the_times_of_their_writes(self, root: Location) -> None:
        folder = root.child("times")
        assert folder.times() == {}
        folder.child("a file.json").write(b"1")
        folder.child("sub", "deep", "file").write(b"2")
        root.child("times-not", "file").write(b"3")
        found = folder.times()
        assert set(found) == {"a file.json", "sub/deep/file"}
        assert all(abs(time.time() - written) < 3600 for written in found.values()), "by the storage's clock"

    def test_a_listing_shows_which_files_were_rewritten(self, root: Location) -> None:
        folder = root.child("versions")
        assert folder.versions() == {}
        folder.child("same").write(b"same")
        folder.child("beat").write(b'{"counter": 1}')
        folder.child("sub", "file").write(b"1")
        before = folder.versions()
        assert set(before) == {"same", "beat", "sub"}
        assert before["sub"] == ""
        seen = before["beat"]
        for counter in range(2, 5):
            folder.child("beat").write(b'{"counter": %d}' % counter)
            now = folder.versions()
            if now["beat"] != seen:
                break
            time.sleep(1)  # for a storage whose only version is a time, in whole seconds
        assert now["beat"] != seen
        assert now["same"] == before["same"]

    def test_a_file_that_appears_is_seen_at_once(self, root: Location) -> None:
        place = root.child("looks", "001.json")
        assert not place.is_file()
        place.create(b"1")
        assert place.is_file()
        place.delete()
        place.delete()
        assert not place.is_file()

    def test_any_bytes_are_kept(self, root: Location) -> None:
        for number, data in enumerate((b"", b"\n", b"\r\n\x00", bytes(range(256)) * 100)):
            place = root.child("bytes", str(number))
            place.write(data)
            assert place.read() == data
            assert root.child("created", str(number)).create(data)
            assert root.child("created", str(number)).read() == data

    def test_names_are_sorted_and_those_of_folders_are_among_them(self, root: Location) -> None:
        for name in ("b", "B", "a", "10", "9", "folder"):
            (root.child("sorted", name, "file") if name == "folder" else root.child("sorted", name)).write(b"1")
        assert root.child("sorted").names() == ["10", "9", "B", "a", "b", "folder"]
        assert root.child("sorted").names(after="a") == ["b", "folder"]
        assert sorted(root.child("sorted").files()) == ["10", "9", "B", "a", "b", "folder/file"]

    def test_a_replaced_file_has_another_version(self, root: Location) -> None:
        place = root.child("versions", "file")
        place.write(b"one")
        before = root.child("versions").versions()
        place.write(b"three")
        assert before.keys() == root.child("versions").versions().keys() == {"file"}
        assert before != root.child("versions").versions()

    def test_a_deleted_file_is_gone_and_can_be_created_again(self, root: Location) -> None:
        place = root.child("deleted", "file")
        assert place.create(b"first")
        place.delete()
        place.delete()
        assert not place.is_file()
        assert place.read() is None
        assert root.child("deleted").names() == []
        assert place.create(b"second")
        assert place.is_file()

    def test_a_reader_during_a_replacement_gets_either_version_whole(self, root: Location) -> None:
        place = root.child("replaced")
        contents = [b"a" * 10, b"b" * 50_000]
        place.write(contents[0])
        done = threading.Event()

        def replace() -> None:
            for number in range(60):
                place.write(contents[number % 2])
            done.set()

        writer = threading.Thread(target=replace)
        writer.start()
        read = [place.read()]
        while not done.is_set():
            read.append(place.read())
        writer.join()
        assert [content for content in read if content not in contents] == []

    def test_create_writes_once(self, root: Location) -> None:
        place = root.child("attempts", "001.json")
        assert place.create(b"first")
        assert not place.create(b"second")
        assert place.read() == b"first"

    def test_exactly_one_of_many_creators_wins(self, root: Location) -> None:
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

    def test_a_name_may_contain_any_character_that_people_write(self, root: Location) -> None:
        for name in ("with space", "ünïcode", "a+b=c", "50%", "semi;colon", "(brackets)", "a&b", "50%20"):
            place = root.child("names", name)
            place.write(name.encode())
            assert place.read() == name.encode()
        assert len(root.child("names").names()) == 8

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
        assert max(len(place.read() or b"") for place in _segments(rundir)) < 1024 * 1024, "each write stays small"

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

    def test_a_truncated_checkpoint_does_not_match_its_manifest(self, root: Location) -> None:
        checkpoint = root.child("checkpoint_a001_000001")
        checkpoint.child("model.pt").write(b"12345678")
        checkpoint.child(".manifest", "00000.json").write(b'{"files": {"model.pt": [8, 2598427311]}}')
        assert problem(checkpoint) == ""
        checkpoint.child("model.pt").write(b"1234")
        assert problem(checkpoint) == "model.pt has 4 of 8 bytes"


def _segments(rundir: RunDir) -> list[Location]:
    journal = rundir.step.child("journal")
    return [journal.child(name) for name in journal.names()]
