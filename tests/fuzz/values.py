"""What each kind of field is given: values that make the input wrong, and values that are fine, with the reason.

This is the judge's own view of what a field means; nothing here is imported from the checks that it judges.
"""

from __future__ import annotations

import datetime
import enum
import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Given:
    """A value for a field. `reason`: why it is accepted; "" where it makes the input wrong."""

    name: str
    value: Any
    reason: str = ""

    @property
    def wrong(self) -> bool:
        return not self.reason


class Anything:
    pass


class Number(enum.IntEnum):
    ONE = 1


def cyclic() -> dict[str, Any]:
    found: dict[str, Any] = {"a": 1}
    found["again"] = found
    return found


def deep(levels: int, as_list: bool = False) -> Any:
    found: Any = 1
    for _ in range(levels):
        found = [found] if as_list else {"a": found}
    return found


def bomb(levels: int = 20) -> Any:
    """A million values of a few objects."""
    found: Any = ["lol", "lol"]
    for _ in range(levels):
        found = [found, found]
    return found


def _wrong(**values: Any) -> list[Given]:
    return [Given(name.replace("_", " "), value) for name, value in values.items()]


def _fine(reason: str, *values: Any) -> list[Given]:
    return [Given(f"fine {value!r:.30}", value, reason) for value in values]


HUGE, DIGITS = 10**400, 10**5000

#: No field at all takes one of these.
NOTHING = _wrong(
    an_object=Anything(),
    a_class=Anything,
    bytes=b"\xff",
    a_set={1},
    a_date=datetime.date(2026, 1, 1),
    cyclic=cyclic(),
    deep=deep(3000),
    a_deep_list=deep(3000, as_list=True),
    a_bomb=bomb(),
    complex=1j,
)
_NO_MAPPING = _wrong(a_list=[1], an_empty_list=[], text="x", a_number=5, a_flag=True, infinite=math.inf)
_NO_NUMBER = _wrong(text="5", empty="", a_flag=True, nan=math.nan, inf=math.inf, a_list=[1], a_mapping={"a": 1}, huge=HUGE)
_NO_WHOLE = [*_NO_NUMBER, *_wrong(a_fraction=1.5, a_whole_float=2.0, digits=DIGITS, negative=-5)]
_NO_TEXT = _wrong(a_number=5, a_flag=True, a_list=["x"], a_mapping={"a": "x"}, nan=math.nan)
_BAD_TEXT = _wrong(nul="a\0b", surrogate="a\ud800", endless="x" * 1_000_000)

AS_GIVEN = "taken as it is"

FLAG = [*NOTHING, *_wrong(one=1, zero=0, text="true", yes="yes", empty="", a_float=1.0, a_list=[True], nan=math.nan)]
COUNT = [*NOTHING, *_NO_WHOLE, *_wrong(none=0), *_fine("a whole number from 1", 1, 7)]
BACK = [*NOTHING, *_NO_WHOLE, *_wrong(none=0, far=101), *_fine("so many checkpoints", 1, 100)]
WHOLE = [*NOTHING, *_NO_WHOLE, *_fine("a whole number from 0", 0, 10**6)]
SEED = [*NOTHING, *_NO_WHOLE, *_wrong(too_large=2**32), *_fine("a seed of 32 bits", 0, 2**32 - 1)]
TRIES = [*NOTHING, *_NO_WHOLE, *_fine("-1 means without a limit", -1, 0)]
NUMBER = [*NOTHING, *_NO_NUMBER, *_fine("any finite number", -3, 0.25)]
SHARE = [*NOTHING, *_NO_NUMBER, *_wrong(none=0, all=1, more=1.5, negative=-0.1), *_fine("between 0 and 1", 0.1)]
AMOUNT = [*NOTHING, *_NO_NUMBER, *_wrong(negative=-1, endless=1e300), *_fine("an amount of a resource", 0.5, 2)]
SECONDS = [*NOTHING, *_NO_NUMBER, *_wrong(none=0, negative=-1, endless=1e300), *_fine("seconds", 1, 0.5)]
FACTOR = [*NOTHING, *_NO_NUMBER, *_wrong(less=0.5, endless=1e300), *_fine("a factor from 1", 1, 2.5)]
GRACE = [*NOTHING, *_NO_NUMBER, *_wrong(negative=-1, endless=1e300), *_fine("seconds, or none", 0, 2.5)]
PROCESSES = [
    *NOTHING,
    *(given for given in _NO_WHOLE if given.name not in ("a list",)),
    *_wrong(none=0, many=10**7, shrinking=[3, 1], three=[1, 2, 3], one=[1], a_pair_of_texts=["1", "2"], from_none=[0, 2]),
    *_wrong(a_pair_of_flags=[True, True], too_many=[1, 10**12], an_empty_list=[]),
    *_fine("a number, or a pair that grows", 2, [1, 2]),
]
NAME = [*NOTHING, *_NO_TEXT, *_BAD_TEXT, *_wrong(empty="", blank=" \t"), *_fine("any readable name", "é", "a b", "日本")]
TEXT = [*NOTHING, *_NO_TEXT, *_BAD_TEXT, *_fine("any readable text", "", "x" * 200)]
FOLDER = [
    *NOTHING,
    *_NO_TEXT,
    *_BAD_TEXT,
    *_wrong(empty="", relative="nodes", home="~/nodes", a_uri="s3://bucket/nodes"),
    *_fine("an absolute path", "/mnt/nvme", "/tmp/é x"),
]
NAMES = [
    *NOTHING,
    *_wrong(text="abc", a_number=5, numbers=[5], nested=[["a"]], twice=["a", "a"], empty=[""], a_mapping={"a": 1}),
    *_wrong(nul=["a\0"], surrogate=["\ud800"], a_flag=True),
]
WORD = [*NOTHING, *_NO_TEXT, *_BAD_TEXT, *_wrong(another="nope", empty="", padded=" train")]
FUNCTION = [
    *(given for given in NOTHING if given.name != "a class"),
    *_wrong(a_name="loop", empty="", a_number=5, a_flag=True, a_path="../a:b", two="a:b:c", spaces="a b:c", half="a:"),
    *_wrong(a_command="a:b; touch x", nul="a:b\0", surrogate="\ud800:b", a_list=["a:b"], call="os:system('x')"),
]
COMMAND = [
    *NOTHING,
    *_wrong(empty="", blank=" ", no_program=[], an_empty_program=["", "x"], a_number=5, a_flag=True, numbers=["a", 1]),
    *_wrong(nul=["a", "b\0"], surrogate="a\ud800", endless="x" * 1_000_000, a_mapping={"a": "b"}, a_set={"a"}),
    *_fine("a command", "python x.py", ["python", "-c", "print(1)"], ["日本", ""]),
]
RESOURCES = [
    *NOTHING,
    *_wrong(
        negative={"tpu": -1}, text={"tpu": "1"}, nan={"tpu": math.nan}, a_flag={"tpu": True}, a_list=["tpu"], blank={" ": 1}
    ),
    *_fine("resources", {}, {"tpu": 0.5}),
]
FUNCTIONS = [*NOTHING, *_wrong(text="a:b", a_number=5, a_mapping={"a": "b:c"}, a_name=["loop"], numbers=[1], a_set={"a:b"})]
TRAIN_LOOP = [*FUNCTION, *(given for given in NOTHING if given.name == "a class")]
PLACE = [
    *NOTHING,
    *_NO_TEXT,
    *_BAD_TEXT,
    *_wrong(empty="", long="/a" * 3000, a_long_name="/" + "x" * 300, one_slash="s3:/bucket/x", scheme="ftp://host/x"),
    *_wrong(half="s3://[x", no_bucket="s3://", secret="s3://key:secret@bucket/x", escape="/a\x1b[31m", newline="/a\nb"),
    *_wrong(nobody="~nobody-at-all/x", port="s3://bucket:port/x", fragment="s3://bucket/x#y", up="s3://bucket/../x"),
    *_fine("a local path or a URI of ours", "/data/é x.csv", "relative/x.csv", "s3://bucket/x.csv"),
]
RUN_NAME = [
    *NOTHING,
    *_NO_TEXT,
    *_BAD_TEXT,
    *_wrong(empty="", up="../x", absolute="/x", slash="a/b", spaces="a b", dot=".x", long="x" * 200, newline="a\n"),
    *_wrong(unicode="é", dash="-x"),
    *_fine("letters, digits and . _ - =", "a.b-c=d", "_x"),
]
MODEL_NAME = [given for given in RUN_NAME if given.value != "a.b-c=d"]
#: What JSON holds as it is reaches the user's code as it was given.
PLAIN = [
    *_wrong(nan=math.nan, inf=-math.inf, a_tuple=(1, 2), digits=DIGITS, surrogate="\ud800", a_number_as_key={1: 2}),
    *_wrong(no_key={None: 1}, an_inner_tuple=[{"a": (1,)}], an_inner_class={"a": [Anything]}, a_pair_as_key={(1, 2): 3}),
    *NOTHING,
    *_fine(AS_GIVEN, True, 0, "5", "", None, [1, [2]], {"a": {"": 1}}, 10**200, -0.0, Number.ONE),
]
MAPPING = [
    *NOTHING,
    *_NO_MAPPING,
    *_wrong(a_number_as_key={1: 2}, no_key={None: 1}, nan={"a": math.nan}, a_tuple={"a": (1, 2)}),
]
SPACE = [
    *MAPPING,
    *_wrong(empty={}, another_field={"nope": {"choice": [1]}}, varies_nothing={"train_loop_config": {"lr": 1}}),
]
SAMPLER = [
    Given(name, value)
    for name, value in {
        "to infinity": {"uniform": [0, math.inf]},
        "no quantum": {"quniform": [0, 1, 0]},
        "a quantum below 0": {"quniform": [0, 1, -0.5]},
        "an uneven quantum": {"quniform": [0, 1, 0.3]},
        "no deviation": {"randn": [0, -1]},
        "a fraction": {"randint": [0.5, 3]},
        "flags": {"uniform": [False, True]},
        "upside down": {"uniform": [2, 1]},
        "log of 0": {"loguniform": [0, 1]},
        "one bound": {"uniform": [1]},
        "texts": {"uniform": ["0", "1"]},
        "an empty choice": {"choice": []},
        "a choice of NaN": {"choice": [math.nan]},
        "a number": {"choice": 5},
        "a slip": {"unifrom": [0, 1]},
    }.items()
] + _fine("a sampler of Ray Tune's", {"uniform": [0, 1]}, {"choice": [1, "a"]}, {"qrandint": [2, 8, 2]})
SEEDS = [Given("seeds below 0", {"randint": [-5, -1]}), Given("fractions as seeds", {"uniform": [0, 1]})]
FUNCTIONS_TO_CHOOSE = _wrong(
    a_number={"choice": [5]}, a_name={"choice": ["a:b", "loop"]}, numbers={"uniform": [0, 1]}, a_flag={"choice": [True]}
)
SHARED_BY_TRIALS = _wrong(a_choice={"timeout_s": {"choice": [1.0]}}, whole={"choice": [{"timeout_s": 1.0}]}, fixed={})
THRESHOLD = [
    *NOTHING,
    *_NO_MAPPING,
    *_wrong(
        empty={}, nothing={"min": None}, nan={"min": math.nan}, inf={"max": math.inf}, upside_down={"min": 2, "max": 1}
    ),
    *_wrong(text={"min": "0.5"}, a_flag={"min": True}, a_slip={"mim": 1}, a_number_as_key={1: 1}),
    *_fine("bounds that can be broken", {"min": 0.5}, {"min": 0.1, "max": 0.2}, {"max": 0.3}),
]
COMPARISON = [
    *NOTHING,
    *_NO_MAPPING,
    *_wrong(inf={"tolerance": math.inf}, nan={"tolerance": math.nan}, text={"tolerance": "1"}, mode={"mode": "most"}),
    *_fine("a comparison that can fail", {"tolerance": 0.01}, {"mode": "max"}),
]
VARIABLES = [
    *NOTHING,
    *_NO_MAPPING,
    *_wrong(
        a_number={"A": 1}, a_flag={"A": True}, nul={"A": "x\0"}, equals={"A=B": "x"}, empty={"": "x"}, spaces={"A B": "x"}
    ),
    *_wrong(a_number_as_key={1: "x"}, nothing={"A": None}, endless={"A": "x" * 200_000}, surrogate={"A": "\ud800"}),
    *_fine("variables of any text", {"A": ""}, {"a.b-c": "é\n"}),
]
RUNTIME_ENV = [
    *NOTHING,
    *_NO_MAPPING,
    *_wrong(
        folder={"working_dir": 5}, pip={"pip": 5}, packages={"pip": [5]}, option={"pip": {"nope": []}}, nul={"pip": ["a\0"]}
    ),
    *_wrong(modules={"py_modules": "x"}, variables={"env_vars": "x"}, a_slip={"workingdir": "x"}, config={"config": 5}),
    *_wrong(
        a_number_as_key={1: 2}, a_tuple={"pip": ("a",)}, conda={"conda": 5}, uv={"uv": 1}, container={"container": "x"}
    ),
    *_fine("a field of a plugin of Ray's", {"my_plugin": {"a": 1}}),
    *_fine("as Ray takes it", {"pip": ["a"]}, {"conda": "env"}),
]
TRACKING = [
    *NOTHING,
    *_wrong(
        another="nope",
        a_number=5,
        twice=["mlflow", "mlflow"],
        a_flag=True,
        nested=[["mlflow"]],
        nothing=[None],
        a_field=[{"type": 5}],
    ),
    *_wrong(
        tags=[{"type": "mlflow", "tags": {"a": 1}}], blank=[{"type": "mlflow", "run_id": ""}], a_number_as_key=[{1: 2}]
    ),
    *_fine("a tracker by its name", "mlflow", ["tensorboard"], []),
]
NAMED = [
    *NOTHING,
    *_wrong(
        another="nope",
        a_number=5,
        options={"type": "asha", "options": 5},
        listed={"type": "asha", "options": [1]},
        empty={},
    ),
    *_wrong(
        a_list=["asha"],
        nan={"type": "asha", "max_t": math.nan},
        a_number_as_key={"type": "asha", 1: 2},
        untyped={"type": 5},
    ),
]
DATASET = [
    *(given for given in NOTHING if given.name != "a class"),
    Given("a class", Anything, "a class can be called, and its call may return the dataset"),
    *_wrong(
        a_number=5,
        no_path={"path": []},
        both={"path": "x.csv", "function": "a:b"},
        empty={},
        result={"kind": "batch_infer"},
    ),
    *_wrong(unknown_format="x.unknown", a_list=["x.csv"], nul="x\0.csv", a_slip={"pth": "x.csv"}, a_number_as_key={1: 2}),
    *_fine("a path, or a function", "x.csv", {"function": "a:b"}),
]
CHECKPOINT = [
    *NOTHING,
    *_wrong(a_number=5, empty="", no_best={"kind": "tune"}, no_run={"kind": "train"}, a_list=["/c"], a_slip={"url": "/c"}),
    *_wrong(
        a_number_as_uri={"uri": 5},
        bytes_as_uri={"uri": b"/c"},
        nul="/c\0",
        scheme="ftp://x/c",
        best={"kind": "tune", "best": 5},
    ),
    *_fine("a checkpoint's place", "/c", {"uri": "/c"}, {"kind": "train", "checkpoint": {"uri": "/c"}}),
]
SEARCH = [
    *NOTHING,
    *_wrong(
        a_number=5, empty="", a_list=["/r"], a_slip={"serach": "/r"}, of_a_training={"kind": "train", "run": {"uri": "/r"}}
    ),
    *_wrong(no_run={"kind": "tune"}, a_number_as_run={"kind": "tune", "run": 5}, no_uri={"kind": "tune", "run": {}}),
    *_wrong(a_number_as_search={"search": 5}, nul="/r\0", scheme="ftp://x/r", some={"search": "/r", "trials": 3}),
    *_fine("a run directory, or a result", "/r", {"search": "/r"}, {"kind": "tune", "run": {"uri": "/r"}}),
]
CONFIG = [*NOTHING, *_NO_MAPPING, *_wrong(an_unknown_field={"nope": 1}, a_number_as_key={1: 2}, no_key={None: 1})]
