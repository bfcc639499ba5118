"""Sample something repeatedly while a block of code runs."""

import threading
from typing import Self


class Sampler:
    """Calls `sample` every `every_s` seconds, in a thread, during its `with` block."""

    every_s: float

    def sample(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(self.every_s):
            self.sample()
