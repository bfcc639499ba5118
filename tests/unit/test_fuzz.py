"""A short part of `make fuzz`, and that its tables and its judge are right."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from plugin_core.specs import parse_spec
from plugin_core.specs.base import Model
from tests.fuzz import specs
from tests.fuzz.case import Case, Refused
from tests.fuzz.cases import all_cases
from tests.fuzz.run import run


def test_no_wrong_input_is_accepted_hangs_or_raises_a_foreign_error() -> None:
    """All ways in but the engines', which take their time to import."""
    cases = [case for case in all_cases(seed=1, share=0.1) if case.way not in ("airflow", "prefect")]
    tally = run(cases)
    assert tally.failures == []
    assert tally.cases == len(cases) > 150


@pytest.mark.parametrize("base", specs.BASES, ids=lambda base: base.name)
def test_the_fuzzed_specs_are_valid_before_mutation(base: specs.Base) -> None:
    parse_spec(base.data)


def test_every_field_of_every_spec_is_mutated() -> None:
    named = {field.split(".")[-1] for base in specs.BASES for field in base.fields}
    assert {field for model in _models(Model) for field in model.model_fields} - named == {"options", "type", "min", "max"}


def _models(cls: type[Any]) -> Iterator[type[Any]]:
    for sub in cls.__subclasses__():
        if sub.__module__.startswith("plugin_core."):
            yield sub
            yield from _models(sub)


def _raises(error: BaseException) -> None:
    raise error


def _computes() -> None:
    end = time.process_time() + 60
    while time.process_time() < end:
        pass


def _allocates() -> None:
    bytearray(1 << 36)


def test_the_judge_says_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fuzz.run.CASE_S", 0.2)
    cases = [
        Case("a", "right", lambda: None, False, reason="it is right"),
        Case("a", "refused", lambda: _raises(Refused("field: got 1")), True, ("field",)),
        Case("a", "accepted", lambda: None, True),
        Case("a", "unnamed", lambda: _raises(Refused("got 1")), True, ("field",)),
        Case("a", "two lines", lambda: _raises(Refused("field\nx")), True, ("field",)),
        Case("a", "foreign", lambda: _raises(KeyError("x")), True),
        Case("a", "memory", _allocates, True),
        Case("a", "needless", lambda: _raises(Refused("no")), False),
        Case("a", "hang", _computes, True),
        Case("a", "dies", lambda: __import__("os")._exit(3), True),
        Case("a", "after", lambda: None, False, reason="it is right"),
    ]
    tally = run(cases, processes=1)
    assert (tally.refused, tally.reasons) == (1, {"it is right": 2})
    assert (tally.wrong, tally.foreign, tally.hangs, tally.right_refused) == (1, 3, 1, 3)
    assert [failure.split(": ")[1] for failure in tally.failures] == [
        *("accepted", "unnamed", "two lines", "foreign", "memory", "needless", "hang", "dies"),
    ]
