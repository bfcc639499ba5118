"""Observes a train function in a rehearsal, ends it after some reports, and kills its process when the plan says so."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import posixpath
import signal
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from plugin_core.driver.train.rehearsal.digests import digest, random_states
from plugin_core.runs.directory import RunDir
from plugin_core.runs.rehearsal import FOLDER
from plugin_core.specs.json_values import json_safe

#: The variable that makes a worker rehearse: the number of reports, and those after which it is killed, as JSON.
VARIABLE = "RAYTRAIN_REHEARSAL"
#: The attributes that say where a learning rate scheduler is; the last four are from ReduceLROnPlateau and warm
#: restarts.
POSITIONS = ("last_epoch", "best", "num_bad_epochs", "cooldown_counter", "T_cur")


def rehearsal(run_uri: str, rank: int) -> Rehearsal | None:
    """The observer of this worker; None if it is not in a rehearsal."""
    plan = os.environ.get(VARIABLE)
    return Rehearsal(run_uri, rank, **json.loads(plan)) if plan else None


class Rehearsal:
    """Notes what each report said and the state at that time; and for the first optimizer step after a report (or after
    a start), the state before it, which a resume has to restore.

    `index` counts reports as if nothing had been killed. `reports`: the loop ends after this many. `kills`: report →
    the rank that is killed right after it, once.
    """

    def __init__(self, run_uri: str, rank: int, reports: int, kills: dict[str, int]):
        self._place = RunDir.at(run_uri).step.child(FOLDER)
        self._rank = rank
        self._reports = reports
        self._kills = {int(index): victim for index, victim in kills.items()}
        self._lines: list[dict[str, Any]] = []
        self._file = f"{rank}-{os.getpid()}.json"
        self._optimizers: list[weakref.ref[Any]] = []
        self._schedulers: list[weakref.ref[Any]] = []
        self._scalers: list[weakref.ref[Any]] = []
        self._batches: list[str] = []
        self._last_batch: list[str] = []
        self._used: list[str] = []
        self._drawn = False
        self._index = 0
        self._begun = False
        self.asked_for_checkpoint = False

    # ---- before the train function

    def watch(self) -> None:
        """Watch PyTorch's optimizers, schedulers, scalers and data loaders, and Ray Data's batches."""
        import torch
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        _note_made(torch.optim.Optimizer, self._optimizers)
        _note_made(torch.optim.lr_scheduler.LRScheduler, self._schedulers)
        # a subclass that does not call its base's constructor
        _note_made(torch.optim.lr_scheduler.ReduceLROnPlateau, self._schedulers)
        _note_made(torch.amp.GradScaler, self._scalers)
        register_optimizer_step_pre_hook(lambda *_: self._step())
        loader = torch.utils.data.dataloader._BaseDataLoaderIter
        drawing = {getattr(torch.utils.data, f"{kind}RandomSampler") for kind in ("", "Subset", "Weighted")}
        given = loader.__next__

        @functools.wraps(given)
        def noted(iterator: Any) -> Any:
            batch = given(iterator)
            sampler = getattr(iterator._index_sampler, "sampler", iterator._index_sampler)
            self._drawn = type(sampler) in drawing and sampler.generator is None
            self._took(batch)
            return batch

        loader.__next__ = loader.next = noted

    def watch_ray_data(self) -> None:
        from ray.data.iterator import DataIterator

        for name in ("iter_batches", "iter_torch_batches"):
            setattr(DataIterator, name, self._noting(getattr(DataIterator, name)))

    def _noting(self, given: Callable[..., Any]) -> Callable[..., Any]:
        rehearses = self

        @functools.wraps(given)
        def noted(*arguments: Any, **options: Any) -> Any:
            batches = given(*arguments, **options)

            class Noted:
                def __iter__(self) -> Iterator[Any]:
                    for batch in batches:
                        rehearses._took(batch)
                        yield batch

            return Noted()

        return noted

    def begin(self, checkpoint: Any) -> None:
        """Watch, before the train function is called. `checkpoint`: the one of this run it starts from, or None."""
        if importlib.util.find_spec("torch") is not None:
            self.watch()
        self.watch_ray_data()
        if checkpoint is None:
            return
        name = posixpath.basename(checkpoint.path.rstrip("/"))
        self._index = int(self._place.child(f"{name}.index").read() or b"0")

    # ---- while it trains

    def _took(self, batch: Any) -> None:
        self._last_batch = [digest(batch)]
        self._batches += self._last_batch

    def _step(self) -> None:
        """An optimizer is about to step, in any of its forms. Its batch is the last one that was taken: batches that a
        resumed loop only skips have no step."""
        self._used += self._last_batch
        if not self._begun:
            self._begun = True
            more = {"random": random_states(), "data": self._last_batch, "drawn": self._drawn}
            self._note("enters", {**self._state(), **more})

    def reports(self, checkpoint: str) -> None:
        """A report with a checkpoint of this name begins. Rank 0 notes its index for all ranks now: it may be killed
        with another rank before the report returns, while the checkpoint stays."""
        if self._rank == 0:
            self._place.child(f"{checkpoint}.index").write(str(self._index + 1).encode())

    def reported(self, metrics: Mapping[str, Any], checkpoint: str) -> bool:
        """A report was registered. `checkpoint`: its name, "" without one. Returns whether the loop ends with it."""
        self._index += 1
        more = {"metrics": json_safe(dict(metrics)), "checkpoint": checkpoint, "asked": self.asked_for_checkpoint}
        data = self._used if _living(self._optimizers) else self._batches
        self._note("reports", {**self._state(), "data": [digest(data)] if data else [], **more})
        self._batches, self._used, self._begun = [], [], False
        if self._kills.get(self._index) == self._rank and self._place.child(f"killed-{self._index}").create(b"{}"):
            os.kill(os.getpid(), signal.SIGKILL)
        return self._index >= self._reports

    def _state(self) -> dict[str, Any]:
        optimizers = _living(self._optimizers)
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        weights = [list(group["params"]) for group in groups]
        states = [[optimizer.state.get(each, {}) for each in group["params"]] for optimizer in optimizers
                  for group in optimizer.param_groups]  # fmt: skip
        return {
            "weights": digest(weights) if optimizers else "",
            "optimizer": digest(states) if optimizers else "",
            "optimizer_is_empty": bool(optimizers) and not any(state for group in states for state in group),
            "lr": [float(group.get("lr", 0.0)) for group in groups],
            "scheduler": [_position(each) for each in _living(self._schedulers)],
            "scaler": [_scale(each) for each in _living(self._scalers) if each.is_enabled()],
        }

    def _note(self, what: str, state: dict[str, Any]) -> None:
        self._lines.append({"what": what, "rank": self._rank, "index": self._index, "time": time.time(), **state})
        self._place.child(self._file).write(json.dumps(self._lines).encode())


def _note_made(cls: Any, made: list[weakref.ref[Any]]) -> None:
    """Note each object of a class, in the order in which they are made."""
    given = cls.__init__

    @functools.wraps(given)
    def init(self: Any, *arguments: Any, **options: Any) -> None:
        given(self, *arguments, **options)
        if all(ref() is not self for ref in made):  # a subclass may call it more than once
            made.append(weakref.ref(self))

    cls.__init__ = init


def _position(scheduler: Any) -> list[Any]:
    """Where a scheduler is. Its whole state cannot be compared: one created with `last_epoch` is right too."""
    return [json_safe(getattr(scheduler, name)) for name in POSITIONS if hasattr(scheduler, name)]


def _scale(scaler: Any) -> list[float]:
    """A GradScaler's scale, and the steps since it changed."""
    state = scaler.state_dict()
    return [float(state["scale"]), float(state["_growth_tracker"])]


def _living(made: list[weakref.ref[Any]]) -> list[Any]:
    return [each for ref in made if (each := ref()) is not None]
