"""The user's own callbacks, in Ray Train's controller. An exception in one never ends the training."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from ray.train import UserCallback

from plugin_core.errors import SpecError
from plugin_core.errors.classify import one_line
from plugin_core.runs.context import StepContext
from plugin_core.specs.functions import call_with

logger = logging.getLogger(__name__)

FIELD = "run_config.callbacks"


def users_callbacks(context: StepContext, warn: Callable[[str], None]) -> list[UserCallback]:
    """The spec's callbacks. `warn` is called for the first exception of each. Raises SpecError for a non-callback."""
    made = []
    for number in range(len(context.spec.run_config.callbacks)):
        field = f"{FIELD}.{number}"
        callback = call_with(context.function(field))
        if not isinstance(callback, UserCallback):
            raise SpecError(f"{field}: got a {type(callback).__name__}; expected a ray.train.UserCallback")
        made.append(Guarded(callback, field, warn))
    return made


class Guarded(UserCallback):
    """Calls a user's callback. In Ray Train, an exception in a callback is a ControllerError, which ends the training; a
    notification that fails must not cost it. The exception is logged each time, and becomes a warning of the result."""

    def __init__(self, callback: UserCallback, field: str, warn: Callable[[str], None]):
        self._callback = callback
        self._field = field
        self._warn = warn
        self._warned = False

    def after_report(self, *arguments: Any, **named: Any) -> None:
        self._call("after_report", arguments, named)

    def after_exception(self, *arguments: Any, **named: Any) -> None:
        self._call("after_exception", arguments, named)

    def _call(self, hook: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        try:
            getattr(self._callback, hook)(*arguments, **named)
        except Exception as exc:
            name = f"{type(self._callback).__name__}.{hook}"
            logger.exception("%s: %s raised", self._field, name)
            if not self._warned:
                self._warned = True
                self._warn(f"{self._field}: {name} raised {one_line(exc)}; the training went on")
