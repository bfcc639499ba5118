"""The head of a cluster in memory: the notes of its jobs, and which of them are alive."""

from collections.abc import Callable

from plugin_core.driver.admission import Place


class FakeHead:
    """The notes of a cluster, and which of its jobs are alive."""

    def __init__(self, **total: float):
        self.notes: dict[str, bytes] = {}
        self.total: dict[str, float] = total or {"CPU": 4.0}
        self.alive: set[str] = set()
        self.away = False
        self.before_write: Callable[[], None] = lambda: None

    def step(self, run: str, need: dict[str, float], at_most: dict[str, float] | None = None) -> "FakeStep":
        job = f"{len(self.alive) + 1:08x}"
        self.alive.add(job)
        return FakeStep(self, run, job, need, at_most or need)


class FakeBoard:
    """What a process of one job sees of the head."""

    def __init__(self, head: FakeHead, job: str, worker: bool = False):
        self._head, self._job, self._worker = head, job, worker

    def _answer(self) -> None:
        if self._head.away:
            raise OSError("the head is away")

    def read(self) -> dict[str, bytes]:
        self._answer()
        return dict(self._head.notes)

    def write(self, name: str, data: bytes) -> None:
        self._answer()
        self._head.before_write()
        self._head.notes[name] = data

    def remove(self, name: str) -> None:
        self._answer()
        self._head.notes.pop(name, None)

    def job(self) -> str:
        return self._job

    def live_jobs(self) -> set[str]:
        return set(self._head.alive)

    def in_worker(self) -> bool:
        return self._worker

    def total(self) -> dict[str, float]:
        return dict(self._head.total)


class FakeStep:
    """A step that wants to run on the fake head."""

    def __init__(self, head: FakeHead, run: str, job: str, need: dict[str, float], at_most: dict[str, float]):
        self.head, self.job = head, job
        self.place = Place(FakeBoard(head, job), run, need, at_most)

    def begins(self) -> bool:
        return self.place.look().admitted

    def ends(self) -> None:
        self.place.leave()

    def is_killed(self) -> None:
        self.head.alive.remove(self.job)
