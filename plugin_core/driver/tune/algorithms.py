"""Creates Ray Tune's schedulers and searchers by name; unknown options are rejected, not ignored."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from plugin_core.errors import SpecError
from plugin_core.errors.shown import did_you_mean
from plugin_core.specs import search_space

if TYPE_CHECKING:
    from plugin_core.specs.tune import SchedulerConfig, SearchConfig

#: Options that are themselves search spaces.
_SPACES = ("hyperparam_mutations",)
#: Options that seed a searcher.
_SEEDS = ("seed", "random_state", "random_state_seed")
#: Options that other spec fields set.
_OURS = ("self", "metric", "mode", "space")


def make_scheduler(config: SchedulerConfig | None) -> Any:
    """Create the scheduler. It measures time in reports unless the options say otherwise. None: trials run to the end."""
    if config is None:
        return None
    from ray.tune.schedulers import SCHEDULER_IMPORT

    name = "async_hyperband" if config.type == "asha" else config.type
    made = _class("scheduler", config.type, SCHEDULER_IMPORT[name])
    accepted = _accepted(made)
    options = {key: search_space.to_ray(value) if key in _SPACES else value for key, value in config.options.items()}
    if "time_attr" in accepted:
        options.setdefault("time_attr", "training_iteration")
    return _make("scheduler", config.type, made, accepted, options)


def make_searcher(config: SearchConfig | None, kept: int = 0) -> Any:
    """Create the searcher. None: random search. `kept`: the number of trials of an earlier search that it adds to. It
    is added to a seed, since the same seed would draw the same trials again."""
    if config is None:
        return None
    from ray.tune.search import SEARCH_ALG_IMPORT

    made = _class("search_alg", config.type, SEARCH_ALG_IMPORT[config.type])
    options = {
        name: value + kept if name in _SEEDS and type(value) is int else value for name, value in config.options.items()
    }
    return _make("search_alg", config.type, made, _accepted(made), options)


def _class(field: str, name: str, found: Any) -> type[Any]:
    """Resolve an entry of Ray's tables: a class, or a function that imports one."""
    try:
        made: type[Any] = found if inspect.isclass(found) else found()
    except ImportError as exc:
        raise _not_installed(field, name, exc) from exc
    return made


def _accepted(made: type[Any]) -> list[str]:
    return [name for name in inspect.signature(made).parameters if name not in _OURS]


def _make(field: str, name: str, made: Callable[..., Any], accepted: list[str], options: dict[str, Any]) -> Any:
    for option in options:
        if option not in accepted:
            hint = did_you_mean(option, accepted)
            raise SpecError(f"{field}.{option}: not an option of {name!r}; expected one of {', '.join(accepted)}{hint}")
    try:
        return made(**options)
    except (ImportError, AssertionError, RuntimeError) as exc:
        if not isinstance(exc, ImportError) and "install" not in str(exc):
            raise SpecError(f"{field}: got {name!r} with {options!r}, which it does not take ({exc})") from exc
        raise _not_installed(field, name, exc) from exc
    except (TypeError, ValueError) as exc:
        raise SpecError(f"{field}: got {name!r} with {options!r}, which it does not take ({exc})") from exc


def _not_installed(field: str, name: str, exc: Exception) -> SpecError:
    why = " ".join(str(exc).split())
    return SpecError(f"{field}: got {name!r}, whose package is not installed on the cluster ({why}); pip install it there")
