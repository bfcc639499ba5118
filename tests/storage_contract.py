"""What every storage must keep, whatever it is made of."""

import threading

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
