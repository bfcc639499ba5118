"""Digests of the user's code: they change with what the code does, and with nothing else."""

import marshal
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plugin_core.specs import code_digest as digests
from plugin_core.specs.code_digest import code_digest, sources_digest
from plugin_core.specs.function_field import Made
from tests.support.users_modules import module

LOOP = """
    import dataclasses, enum, functools, json, pathlib
    FACTOR = 2
    def helper(x: int) -> int:
        \"\"\"It helps.\"\"\"
        assert x > 0
        return x * FACTOR
    class Base:
        def step(self):
            return 10
    class Net(Base):
        layers = 30
        @classmethod
        def make(cls):
            return 40
        @property
        def size(self):
            return 50
    @dataclasses.dataclass
    class Options:
        rate: float = 60.0
    @functools.cache
    def table():
        return 70
    def logged(function):
        @functools.wraps(function)
        def wrapper(*args):
            return function(*args) + 80
        return wrapper
    @logged
    def decorated():
        return 90
    class Color(enum.Enum):
        RED = 160
        @property
        def shade(self):
            return 170
    options = Options(rate=180.0)
    class Counter:
        def __init__(self):
            self.by = 190
        def count(self):
            return 200
    counter = Counter()
    count = Counter().count
    counters = {counter: {"x", 210}}
    place = pathlib.Path("data", "220")
    scaled = functools.partial(helper, 100)
    pair = [lambda x: x + 110, lambda x: x + 120]
    first = pair[0]
    def loop(config):
        def inner(y, z=130):
            return [each * 140 for each in (y, z)]
        assert config
        text = f"{config!r:>{150}}"
        options, Color.RED, counter.count(), count, counters, place
        return helper(config["x"]) + 1, Net, Options, table(), decorated(), scaled(), first(1), inner(1), text
"""
FUNCTIONS = """
    import functools
    def named(config):
        return 10
    anonymous = lambda config: 20
    one, other = (lambda config: 30), (lambda config: 40)
    def make(by):
        def nested(config):
            return by * 50
        return nested
    nested = make(60)
    partial = functools.partial(named, 70)
    class Callable:
        def __init__(self, by):
            self.by = by
        def __call__(self, config):
            return self.by * 80
    instance = Callable(90)
    method = instance.__call__
    def twice(function):
        @functools.wraps(function)
        def wrapper(config):
            return function(config) * 100
        return wrapper
    @twice
    def decorated(config):
        return 110
"""


def digest_of(folder: Path, source: str, name: str = "loop") -> str:
    return code_digest(module(folder, source)[name])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("+ 1, ", "+ 2, "),
        ("x * FACTOR", "x + FACTOR"),
        ("FACTOR = 2", "FACTOR = 3"),
        ('config["x"]', 'config["y"]'),
        *((f"{number}", f"{number + 1}") for number in range(10, 230, 10) if number not in (20, 120)),
    ],
)
def test_a_digest_changes_with_what_the_code_does(tmp_path: Path, old: str, new: str) -> None:
    changed = re.sub(rf"(?<!\d){re.escape(old)}(?!\d)", new, LOOP, count=1)
    assert changed != LOOP
    assert digest_of(tmp_path / "a", LOOP) != digest_of(tmp_path / "b", changed)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    FACTOR = 2", "    # a comment\n    def other(): return 5\n    FACTOR = 2"),
        ("It helps.", "It helps a lot."),
        ("x: int) -> int", "x: float) -> float"),
        ("x + 120", "x + 121"),
    ],
    ids=["place", "docstring", "annotation", "a function beside it"],
)
def test_a_digest_does_not_change_with_what_the_code_does_not_do(tmp_path: Path, old: str, new: str) -> None:
    assert LOOP.count(old) == 1
    assert digest_of(tmp_path / "a", LOOP) == digest_of(tmp_path / "b", LOOP.replace(old, new))


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("named", [10]),
        ("anonymous", [20]),
        ("one", [30]),
        ("other", [40]),
        ("nested", [50, 60]),
        ("partial", [10, 70]),
        ("instance", [80, 90]),
        ("method", [80, 90]),
        ("decorated", [100, 110]),
    ],
)
def test_a_digest_of_any_callable_sees_its_own_code_alone(tmp_path: Path, name: str, seen: list[int]) -> None:
    before = digest_of(tmp_path, FUNCTIONS, name)
    numbers = range(10, 120, 10)
    changed = {n: digest_of(tmp_path / str(n), re.sub(rf"\b{n}\b", f"{n + 1}", FUNCTIONS), name) for n in numbers}
    assert [n for n in numbers if changed[n] != before] == seen


OTHER_PYTHON = """
import sys, types
for name, folder in (("plugin_core", ""), ("plugin_core.specs", sys.argv[1])):  # without what they import
    package = sys.modules[name] = types.ModuleType(name)
    package.__path__ = [folder]
from plugin_core.specs import code_digest as digests
import steps, others
print(digests.code_digest(steps.loop), *(digests.code_digest(getattr(others, name)) for name in sys.argv[2:]))
print(digests.sources_digest({"steps.py": open("steps.py", "rb").read()}))
"""
NAMES = ["named", "anonymous", "one", "other", "nested", "partial", "instance", "method", "decorated"]


def in_another_process(folder: Path, *python: str) -> str:
    module(folder, LOOP)
    module(folder, FUNCTIONS, "others")
    command = [*python, "-c", OTHER_PYTHON, str(Path(digests.__file__).parent), *NAMES]
    variables = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("option", ["-O", "-OO"])
def test_a_digest_is_the_same_where_the_bytecode_differs(tmp_path: Path, option: str) -> None:
    """Without asserts and docstrings, as on another version of Python, the same source is other bytecode."""
    expected = in_another_process(tmp_path, sys.executable)
    assert expected.split()[0] == digest_of(tmp_path, LOOP)
    assert in_another_process(tmp_path, sys.executable, option) == expected


@pytest.mark.parametrize("minor", [11, 12, 13, 14])
def test_a_digest_is_the_same_on_every_version_of_python(tmp_path: Path, minor: int) -> None:
    other = shutil.which(f"python3.{minor}")
    if other is None or subprocess.run([other, "-c", ""], capture_output=True).returncode:
        pytest.skip(f"Python 3.{minor} is not installed here")
    assert in_another_process(tmp_path, other) == in_another_process(tmp_path, sys.executable)


def test_a_digest_is_of_the_code_that_runs_and_not_of_a_file_edited_since(tmp_path: Path) -> None:
    functions = module(tmp_path, FUNCTIONS)
    (tmp_path / "steps.py").write_text((tmp_path / "steps.py").read_text().replace("return 10", "return 11"))
    old = code_digest(functions["named"])
    assert old != digest_of(tmp_path / "new", FUNCTIONS.replace("return 10", "return 11"), "named")
    moved = module(tmp_path / "moved", FUNCTIONS)
    file = tmp_path / "moved" / "steps.py"
    file.write_text("import os\n\n" + file.read_text())
    assert code_digest(moved["named"]) == digest_of(tmp_path / "b", FUNCTIONS, "named"), "only its place differs"


def test_a_digest_is_the_same_whether_the_code_was_compiled_or_read_from_a_pyc_file(tmp_path: Path) -> None:
    """A set of constants is then built in another order, which shows if their hashes collide, as 0, 8 and 16 do here. Those
    of texts collide in some processes and not in others."""
    source = "def loop(config):\n    return config in {16, 8, 0}\n"
    compiled, read = (module(tmp_path / name, source)["loop"] for name in ("compiled", "read"))
    read.__code__ = marshal.loads(marshal.dumps(read.__code__))
    digest = code_digest(compiled)
    digests._trees.clear()  # equal code objects share an entry
    assert code_digest(read) == digest


def test_a_digest_does_not_depend_on_the_name_of_the_functions_module(tmp_path: Path) -> None:
    """The same file is `__main__` as a script, and some engines name it anew in each process."""
    source = """
        import dataclasses, enum, logging
        class Color(enum.Enum):
            RED = 1
        class Net:
            width = 2
        @dataclasses.dataclass
        class Options:
            rate: float = 0.1
        class Callback:
            def after_report(self, *arguments, **named): pass
        options, net, colors = Options(), Net(), {Color.RED, Net}
        def loop(config):
            logging.getLogger(__name__).info("%s %s %s", options, net, colors)
        """
    script, loaded = (module(tmp_path, source, name) for name in ("flow", "__prefect_loader_7f3a__"))
    assert code_digest(script["loop"]) == code_digest(loaded["loop"])
    assert code_digest(Made(script["Callback"]())) == code_digest(Made(loaded["Callback"]()))
    changed = module(tmp_path, source.replace("rate: float = 0.1", "rate: float = 0.2"), "changed")["loop"]
    assert code_digest(script["loop"]) != code_digest(changed)


def test_a_function_without_a_source_has_a_digest_of_its_bytecode() -> None:
    def made(source: str) -> Callable[..., Any]:
        names: dict[str, Any] = {"__name__": "typed"}
        exec(source, names)
        function: Callable[..., Any] = names["loop"]
        return function

    one, other = made("def loop(config): return 1"), made("def loop(config): return 2")
    assert code_digest(one) == code_digest(made("def loop(config): return 1"))
    assert code_digest(one) != code_digest(other)


def test_a_digest_sees_captured_values() -> None:
    def make(n: int) -> Callable[[], int]:
        return lambda: n

    assert code_digest(make(1)) != code_digest(make(2))
    assert code_digest(make(1)) == code_digest(make(1))


def test_a_digest_of_modules_ignores_comments() -> None:
    assert sources_digest({"a.py": b"x = 1"}) == sources_digest({"a.py": b"# why\n\nx = 1\n"})
    assert sources_digest({"a.py": b"x = 1"}) != sources_digest({"a.py": b"x = 2"})
    assert sources_digest({}) == ""
