"""What a run's processes print is kept in its directory: bounded, by attempt and process, without secrets."""

import logging
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from plugin_core.driver import log_keeper, masking
from plugin_core.driver.log_keeper import LogKeeper
from plugin_core.errors import StorageError
from plugin_core.runs import kept_log, timings
from plugin_core.runs.directory import RunDir
from plugin_core.runs.kept_log import DRIVER, KeptLog, rank_folder
from plugin_core.storage.location import Location
from tests.support.kept_logs import everything, folder_of, keep


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_keeper, "LOOK_S", 0.01)


@pytest.fixture
def rundir(tmp_path: Path) -> RunDir:
    return RunDir.at(str(tmp_path / "run"))


@pytest.fixture
def printed(tmp_path: Path) -> Path:
    """The file that Ray sends a process's output to."""
    (tmp_path / "out").touch()
    return tmp_path / "out"


class Writes:
    """Counts the requests to the kept log of one run: the process may still be closing another test's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rundir: RunDir):
        self.logs = f"{rundir.uri}/.step/logs/"
        self.asked: list[str] = []
        self.seen = threading.Event()
        for name in ("write", "delete", "read_since", "names", "is_file"):
            monkeypatch.setattr(Location, name, self._counted(name, getattr(Location, name)))

    def _counted(self, name: str, then):  # type: ignore[no-untyped-def]
        def count(place, *args):  # type: ignore[no-untyped-def]
            if place.uri.startswith(self.logs):
                self.asked.append(name)
                self.seen.set()
            return then(place, *args)

        return count


def test_lines_are_kept_as_plain_text_and_an_incomplete_one_at_the_end(rundir: RunDir, printed: Path) -> None:
    with keep(rundir, printed) as keeper:
        printed.write_bytes(b"one\r\n\x1b[31mtwo\x1b[0m \xe2\x80\xa6 \xff\nthr")
        keeper.flush()
        with printed.open("ab") as file:
            file.write(b"ee\nthe last, without its end")
    assert everything(rundir) == "one\ntwo … \ufffd\nthree\nthe last, without its end"


def test_output_of_a_rotated_file_and_of_the_one_after_it_is_kept(rundir: RunDir, printed: Path) -> None:
    with keep(rundir, printed) as keeper:
        printed.write_text("before\n")
        keeper.flush()
        with printed.open("a") as file:
            file.write("just before\n")
        printed.rename(printed.with_name("out.1"))
        printed.write_text("after\n")
        keeper.flush()
    assert everything(rundir) == "before\njust before\nafter\n"


def test_a_quiet_process_costs_no_request_and_a_chatty_one_a_write_in_ten_seconds(
    rundir: RunDir, printed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert timings.LOG_FLUSH_S == 10
    monkeypatch.setattr(timings, "LOG_FLUSH_S", 3600)  # on a busy machine this test takes longer than 10 seconds
    writes = Writes(monkeypatch, rundir)
    looked = threading.Event()
    with keep(rundir, printed, mask=lambda text: looked.set() or text):
        assert looked.wait(30)
        assert writes.asked == []
        with printed.open("a") as file:
            file.write("a line\n")
            file.flush()
            assert writes.seen.wait(30)
            for number in range(100):
                looked.clear()
                file.write(f"line {number}\n")
                file.flush()
                assert looked.wait(30)
        assert writes.asked == ["names", "write"], "what other processes kept before is listed once"
    assert writes.asked == ["names", "write", "write"]


@pytest.mark.slow
def test_200_mb_stay_bounded_in_memory_and_on_storage_and_a_line_says_what_is_missing(tmp_path: Path) -> None:
    code = """
        import os, resource, sys
        from pathlib import Path
        from plugin_core.driver import log_keeper
        from plugin_core.runs.directory import RunDir
        rundir, out = RunDir.at(sys.argv[1]), sys.argv[2]
        import pyarrow.fs
        keeper = log_keeper.LogKeeper(log_keeper.log_folder(rundir, 1, "driver"), [out])
        file = open(out, "w")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for million in range(200):
            for number in range(10_000):
                file.write(f"{million:06} {number:06} ".ljust(99, "x") + "\\n")
            file.flush()
            if million < 180:
                keeper.flush()
        keeper.close()
        print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "run"), str(tmp_path / "out")]
    (tmp_path / "out").touch()
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    assert int(done.stdout) < 50
    rundir = RunDir.at(str(tmp_path / "run"))
    sizes = [file.stat().st_size for file in Path(folder_of(rundir).path).iterdir()]
    assert sum(sizes) <= log_keeper.KEPT + 2 * kept_log.ROOM
    lines = everything(rundir).splitlines()
    assert lines[0].startswith("000000 000000")
    assert lines[-1].startswith("000199 009999")
    gaps = [line for line in lines if "not kept" in line]
    assert len(gaps) == 2  # beyond what is kept at all, and more at once than fits into memory
    missing = sum(float(line.split()[1]) for line in gaps)
    assert missing + sum(sizes) / 1e6 == pytest.approx(200, abs=0.2)
    assert all(len(line) == 99 for line in lines if line not in gaps)


def test_a_storage_that_fails_costs_one_warning_and_nothing_that_fits_into_memory(
    rundir: RunDir, printed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Path(rundir.location.path).mkdir()
    (Path(rundir.location.path) / ".step").write_text("a file stands where the folder is to be")
    with caplog.at_level(logging.WARNING), keep(rundir, printed) as keeper:
        for number in range(3):
            with printed.open("a") as file:
                file.write(f"line {number}\n")
            keeper.flush()
        (Path(rundir.location.path) / ".step").unlink()
    assert everything(rundir) == "line 0\nline 1\nline 2\n"
    (record,) = caplog.records
    assert "the kept log may be incomplete" in record.message


def test_a_file_that_cannot_be_read_costs_one_warning(
    rundir: RunDir, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), keep(rundir, tmp_path / "nowhere") as keeper:
        keeper.flush()
    (record,) = caplog.records
    assert "No such file" in record.message


def test_two_attempts_and_two_ranks_are_kept_apart(rundir: RunDir, printed: Path, tmp_path: Path) -> None:
    for attempt in (1, 2):
        for rank in (0, 1):
            printed.write_text(f"attempt {attempt} rank {rank}\n")
            with keep(rundir, printed, attempt, rank_folder(rank)):
                pass
    assert everything(rundir, 1, rank_folder(1)) == "attempt 1 rank 1\n"
    assert everything(rundir, 2, rank_folder(0)) == "attempt 2 rank 0\n"


def test_a_worker_that_is_started_again_overwrites_nothing(
    rundir: RunDir, printed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for second, text in enumerate(["killed while it wri", "resumed\n"]):
        monkeypatch.setattr(log_keeper.time, "time_ns", lambda second=second: (10**9 + second) * 10**9)
        printed.write_text(text)
        with keep(rundir, printed, 1, rank_folder(0)):
            pass
    assert everything(rundir, 1, rank_folder(0)) == "killed while it wri\n… started again\nresumed\n"


def test_the_worker_files_lines_for_rays_own_reader_are_left_out(
    rundir: RunDir, printed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from plugin_core.ray_internals import worker

    printed.write_text(":job_id:01000000\n:actor_name:RayTrainWorker\nepoch 1\n")
    monkeypatch.setattr(worker, "output_files", lambda: [str(printed)])
    keeper = log_keeper.of_worker(rundir.uri, 1, 3)
    keeper.close()
    assert everything(rundir, 1, "rank-003") == "epoch 1\n"


def test_secrets_handed_over_are_masked_whatever_the_pieces(
    rundir: RunDir, printed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from plugin_core.clusters.secrets import Secrets

    secrets = Secrets(env_vars={"TOKEN": "s3cr3t-token", "PEM": "-----BEGIN-----\nfirstline\nsecondline"})
    monkeypatch.setattr(masking, "_values", secrets.masks)
    with keep(rundir, printed, mask=masking.masked) as keeper, printed.open("a") as file:
        for text in ("my s3cr3t", "-token\nand firstline\n", "and secondline\n"):
            file.write(text)
            file.flush()
            keeper_looked(keeper)
    kept = b"".join(file.read_bytes() for file in Path(folder_of(rundir).path).iterdir()).decode()
    assert kept == "my …\nand …\nand …\n"


def test_a_secret_in_a_line_too_long_to_be_held_is_masked(
    rundir: RunDir, printed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_keeper, "LINE", 100)
    line = "".join(f"{number:04} s3cr3t-token " for number in range(50))
    with keep(rundir, printed, mask=lambda text: text.replace("s3cr3t-token", "…")) as keeper:
        for begin in range(0, len(line), 77):
            with printed.open("a") as file:
                file.write(line[begin : begin + 77])
            keeper_looked(keeper)
    assert everything(rundir) == line.replace("s3cr3t-token", "…")


def test_a_worker_started_again_and_again_keeps_its_first_and_its_last_logs(
    rundir: RunDir, printed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for start in range(20):
        hour = 3600 if start % 2 else 0  # the clock is set back again and again
        monkeypatch.setattr(log_keeper.time, "time_ns", lambda hour=hour: (10**9 - hour) * 10**9)
        printed.write_text(f"start {start}\n")
        with keep(rundir, printed, 1, rank_folder(0)):
            pass
    started = [line for line in everything(rundir, 1, rank_folder(0)).splitlines() if line.startswith("start")]
    assert started == ["start 0", *(f"start {number}" for number in range(11, 20))]


def test_a_segment_whose_deletion_failed_is_deleted_later(
    rundir: RunDir, printed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("SEGMENT", 100), ("KEPT", 400), ("KEPT_HEAD", 100)):
        monkeypatch.setattr(log_keeper, name, value)
    delete, failing = Location.delete, [True, True, False]

    def sometimes(place: Location) -> None:
        if failing and failing.pop(0):
            raise StorageError("the storage is away")
        delete(place)

    monkeypatch.setattr(Location, "delete", sometimes)
    with keep(rundir, printed) as keeper:
        for number in range(20):
            with printed.open("a") as file:
                file.write(f"line {number:02}".ljust(99, ".") + "\n")
            keeper.flush()
    lines = [line[:7] for line in everything(rundir).splitlines() if line.startswith("line")]
    assert lines == ["line 00", "line 17", "line 18", "line 19"]


def keeper_looked(keeper: LogKeeper) -> None:
    """Wait for a look that is not the last one."""
    looked = threading.Event()
    before = keeper._look

    def look(*args: object, **kwargs: object) -> None:
        before(*args, **kwargs)  # type: ignore[arg-type]
        looked.set()

    keeper._look = look  # type: ignore[method-assign]
    assert looked.wait(30)
    keeper._look = before  # type: ignore[method-assign]


# ---- reading


def test_a_reader_gets_each_character_once_while_the_log_grows(
    rundir: RunDir, printed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_keeper, "SEGMENT", 50)
    reader, got, wrote = KeptLog(rundir, 1, DRIVER), "", ""
    with keep(rundir, printed) as keeper:
        assert reader.read() == ""
        for number in range(30):
            with printed.open("a") as file:
                file.write(f"line {number}\n")
            wrote += f"line {number}\n"
            keeper.flush()
            while text := reader.read():
                got += text
            assert got == wrote
            assert reader.position == len(wrote)
    assert len(list(Path(folder_of(rundir).path).iterdir())) > 3


@pytest.mark.parametrize("position", [0, 7, 57, 58, 199, 200, 300])
def test_a_reader_begins_at_a_position(
    rundir: RunDir, printed: Path, monkeypatch: pytest.MonkeyPatch, position: int
) -> None:
    monkeypatch.setattr(log_keeper, "SEGMENT", 50)
    text = "".join(f"line {number:04}\n" for number in range(20))
    with keep(rundir, printed) as keeper:
        for begin in range(0, 200, 10):
            with printed.open("a") as file:
                file.write(text[begin : begin + 10])
            keeper.flush()
    assert everything(rundir, position=position) == text[position:]


def test_a_segment_that_is_dropped_while_it_is_read_shows_as_missing(rundir: RunDir) -> None:
    folder = folder_of(rundir)
    folder.child("0000000000001-000000000000.log").write(b"a\n" * 50)
    reader = KeptLog(rundir, 1, DRIVER)
    assert reader.read() == "a\n" * 50
    folder.child("0000000000001-000000000000.log").delete()
    folder.child("0000000000001-000000200100.log").write(b"the end\n")
    assert reader.read() == "… 0.2 MB of the log not kept\nthe end\n"


def test_what_a_killed_write_left_and_bytes_that_are_no_text_do_no_harm(rundir: RunDir) -> None:
    folder = folder_of(rundir)
    folder.child("0000000000001-000000000000.log").write(b"good\n\xff\xfe\n")
    folder.child("0000000000001-000000000007.log.4711.tmp").write(b"half wri")
    assert everything(rundir) == "good\n\ufffd\ufffd\n"


def test_an_oversized_segment_is_refused(rundir: RunDir) -> None:
    folder_of(rundir).child("0000000000001-000000000000.log").write(b"x" * (4 * kept_log.ROOM + 1))
    with pytest.raises(StorageError):
        everything(rundir)


def test_a_link_that_leads_out_of_the_run_is_not_shown(rundir: RunDir, tmp_path: Path) -> None:
    """Who can write the run may not be who can read the file, and the log is shown by an engine to all its users."""
    (tmp_path / "private").write_text("private\n")
    folder = folder_of(rundir)
    folder.child("0000000000001-000000000000.log").write(b"one\n")
    Path(folder.path, "0000000000002-000000000000.log").symlink_to(tmp_path / "private")
    folder.child("0000000000003-000000000000.log").write(b"two\n")
    told = everything(rundir)
    assert told == "one\n… 0000000000002-000000000000.log is not shown: it leads out of the run\n… started again\ntwo\n"
