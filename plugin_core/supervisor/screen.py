"""Shows a run on standard error to the person who waits for it: `run()` and `raytrain run`."""

from __future__ import annotations

import datetime
import logging
from typing import TYPE_CHECKING, Self

from plugin_core.supervisor.events import Event, Line, Listener, Log
from plugin_core.supervisor.progress import duration

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

#: The most characters of what the bar says it is doing.
DOING = 60


class Screen:
    """Lines, and in a terminal a bar below them; nothing if not `on`. A context manager."""

    def __init__(self, on: bool = True, listener: Listener | None = None):
        self._on = on
        self._listener = listener
        self._console: Console | None = None
        self._bar: Progress | None = None

    @property
    def log(self) -> Log | None:
        return self._print if self._on else None

    @property
    def listener(self) -> Listener | None:
        return self._hear if self._on else self._listener

    def __enter__(self) -> Self:
        if self._on:
            from rich.console import Console

            # plain lines in a notebook too: rich would turn each one into a block of HTML
            self._console = Console(stderr=True, highlight=False, force_jupyter=False, soft_wrap=True)
            if self._console.is_terminal:
                self._bar = _bar(self._console)
                self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _print(self, line: Line) -> None:
        from rich.text import Text

        if self._console is None:
            return
        at = datetime.datetime.fromtimestamp(line.time).strftime("%H:%M:%S")
        style = "red" if line.level >= logging.ERROR else "yellow" if line.level >= logging.WARNING else ""
        if line.lines:
            for text in line.lines:
                self._console.print(Text(f"{at} | {text}", style=style or "dim"))
        else:
            self._console.print(Text(f"{at} {line.text}", style=style))

    def _hear(self, event: Event) -> None:
        if self._bar is not None and event.text and event.kind in ("state", "phase", "report"):
            doing = event.text.split("\n")[0][:DOING]
            left = f"{duration(event.reading.eta_s)} left" if event.reading.eta_s is not None else ""
            task, done = self._bar.task_ids[0], event.reading.fraction
            self._bar.update(task, description=doing, left=left)
            if done is not None:
                self._bar.update(task, completed=done, total=1.0)
        if self._listener is not None:
            self._listener(event)


def _bar(console: Console) -> Progress:
    from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}", markup=False),
        TextColumn("{task.description}", markup=False),
    )
    # what the caller prints stays on its own stream: a notebook or a pipe reads it
    bar = Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
    bar.add_task("", total=None, left="")
    return bar
