"""A function's digest sees the data that the function captures, and nothing that differs between processes."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from plugin_core.specs.code_digest import code_digest
from tests.support.users_modules import module


def loop_digest(folder: Path, source: str) -> str:
    return code_digest(module(folder, source)["loop"])


VALUES = {
    "a path": ("pathlib", "pathlib.Path('{}')"),
    "a date": ("datetime", "datetime.datetime(2026, 1, {} % 28)"),
    "a Decimal": ("decimal", "decimal.Decimal({})"),
    "a pattern": ("re", "re.compile('{}')"),
    "a counter": ("collections", "collections.Counter(a={})"),
    "a deque": ("collections", "collections.deque([{}])"),
    "a read-only mapping": ("types", "types.MappingProxyType({{'a': {}}})"),
    "a namespace": ("types", "types.SimpleNamespace(a=[{}])"),
    "a set": ("string", "{{*string.ascii_letters, '{}'}}"),
    "a set of sets": ("string", "{{frozenset(string.ascii_letters), frozenset('{}')}}"),
    "a set of functions": ("math, operator", "{{math.sin, operator.itemgetter, make({})}}"),
    "a dataclass of a library": ("ray.train", "ray.train.ScalingConfig(num_workers={})"),
    "an enum of a library": ("http", "[*http.HTTPStatus][{} % 2]"),
    "a pydantic model": ("plugin_core", "plugin_core.ScalingConfig(num_workers={})"),
    "an array": ("numpy", "numpy.arange({})"),
    "an array of objects": ("numpy", "numpy.array([{}, None, 'text'], dtype=object)"),
    "a number of NumPy": ("numpy", "numpy.float32({})"),
    "a tensor": ("torch", "torch.arange({}).to(torch.bfloat16)[::2]"),
    "a type of tensors": ("torch", "[torch.float32, torch.bfloat16][{} % 2]"),
}
HOLDER = """
import {modules}
def make(by):
    return lambda: by
value = {value}
def loop(config):
    return value
"""


def holder(name: str, number: int) -> str:
    modules, value = VALUES[name]
    return HOLDER.format(modules=modules, value=value.format(number))


@pytest.mark.parametrize("name", VALUES)
def test_a_digest_sees_data_in_globals(tmp_path: Path, name: str) -> None:
    one, same, other = (loop_digest(tmp_path / str(n), holder(name, number)) for n, number in enumerate((4, 4, 5)))
    assert one == same != other


@pytest.mark.slow
def test_a_digest_of_data_is_the_same_in_each_process(tmp_path: Path) -> None:
    for number, name in enumerate(VALUES):
        module(tmp_path, holder(name, 4), f"steps{number}")
    code = f"""
        from importlib import import_module
        from plugin_core.specs.code_digest import code_digest
        for number in range({len(VALUES)}):
            print(code_digest(import_module(f"steps{{number}}").loop))
    """
    told = []
    for seed in ("1", "2"):
        variables = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
        command = [sys.executable, "-c", textwrap.dedent(code)]
        told.append(subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout.split())
    assert len(told[0]) == len(VALUES)
    assert told[0] == told[1]


OPAQUE = """
import logging, os, random, threading, time, torch
logger, lock, environment = logging.getLogger("{number}"), threading.Lock(), os.environ
generator, model = random.Random({number}), torch.nn.Linear(2, 2)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.scale = torch.nn.Linear(2, 2), torch.nn.Parameter(torch.rand(2))
net = Net()
class Node:
    def __init__(self, others):
        self.others, self.value = others, 1
nodes = set()
nodes.update(Node(nodes) for _ in range(30))
chain = None
for _ in range(3000):
    chain = Node(chain)
def loop(config):
    return logger, lock, environment, generator, model, net, nodes, chain
"""


def test_a_digest_ignores_what_differs_between_processes_and_survives_graphs_of_objects(tmp_path: Path) -> None:
    one, other = (loop_digest(tmp_path / str(number), OPAQUE.format(number=number)) for number in range(2))
    assert one == other


LIBRARY = """
import functools
def plain(x):
    return x + {number}
@functools.cache
def cached(x):
    return x + {number}
@functools.wraps(plain)
def decorated(x):
    return plain(x) + {number}
class Tool:
    def method(self):
        return {number}
method = Tool().method
"""


def test_a_digest_names_what_a_library_defines_and_does_not_inspect_it(tmp_path: Path) -> None:
    found = []
    for number in range(2):
        module(tmp_path / str(number), LIBRARY.format(number=number), "library")
        code = """
            from library import cached, decorated, method, plain
            def loop(config):
                return cached, decorated, method, plain
        """
        found.append(loop_digest(tmp_path / str(number), code))
    assert found[0] == found[1]
