"""docs/arguments.md is what the code says, and says something about every argument."""

import inspect

import pytest
from pydantic import Field

from airflow_provider.operators import PromoteModelOperator
from devtools import argument_tables
from plugin_core import promote
from plugin_core.specs.base import Model
from plugin_core.specs.fields import Count, Flag
from prefect_integration import promote as promote_task


class Part(Model):
    number: Count | None = Field(None, description="how many")
    flag: Flag = True


def test_the_page_is_what_the_code_says() -> None:
    written = argument_tables.PAGE.read_text()
    assert written == argument_tables.page(), "run `python -m devtools.argument_tables`"


def test_a_row_has_the_name_type_default_and_meaning_of_a_field() -> None:
    assert argument_tables._fields(Part, ["number"]).splitlines()[2] == "| `number` | whole number from 1 | – | how many |"


def test_a_field_without_a_meaning_is_refused() -> None:
    with pytest.raises(ValueError, match="flag: has no meaning"):
        argument_tables._fields(Part, ["flag"])


def test_a_promotion_takes_the_same_arguments_everywhere() -> None:
    names = {name for name in inspect.signature(promote).parameters if name != "expected"}
    assert set(inspect.signature(promote_task.fn).parameters) == names
    assert set(inspect.signature(PromoteModelOperator.__init__).parameters) - {"self", "kwargs"} == names
