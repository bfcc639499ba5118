"""Load untrusted YAML and JSON files as plain data: bounded in size, depth and time, and without YAML object tags.

Stricter than YAML and JSON: duplicate keys are rejected, and values that are not what they look like (NaN, a date) are
passed on to the spec's validation, which rejects them. `1e-3` is a number, as in YAML 1.2.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from plugin_core.errors import SpecError
from plugin_core.specs.fields import MAX_DEPTH, MAX_VALUES

#: A spec refers to data and functions but does not contain them.
MAX_BYTES = 1 << 20
#: PyYAML builds about 20,000 nodes per second.
MAX_NODES = 10_000


def load_file(path: Path, field: str = "spec file") -> Any:
    """The data of a JSON or YAML file, by its extension. Raises SpecError about `field`."""
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as exc:
        raise SpecError(f"{field}: got {str(path)!r}; it cannot be read ({exc.strerror})") from exc
    except ValueError as exc:
        raise SpecError(f"{field}: got {str(path)!r}; it cannot be read ({exc})") from exc
    if len(raw) > MAX_BYTES:
        raise SpecError(f"{field}: got {str(path)!r} of more than {MAX_BYTES:,} bytes; expected a smaller file")
    try:
        text = raw.decode("utf-8-sig")
        return from_json(text) if path.suffix == ".json" else from_yaml(text)
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        reason = (str(exc).splitlines() or [type(exc).__name__])[0][:200]
        raise SpecError(f"{field}: got {str(path)!r}; expected YAML or JSON ({reason})") from exc


def from_json(text: str) -> Any:
    """Raises ValueError or RecursionError."""
    return json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)


def from_yaml(text: str) -> Any:
    """Raises yaml.YAMLError, or ValueError for data that is too deep, too large or cyclic."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _size(node, {}, ())
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"duplicate key {twice[:60]!r}")
    return found


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is not a JSON number")


def _size(node: yaml.Node, known: dict[int, int], above: tuple[int, ...]) -> int:
    """The number of values in a node with its aliases expanded; each node is visited once."""
    if id(node) in known:
        return known[id(node)]
    if id(node) in above:
        raise ValueError(f"the alias in line {node.start_mark.line + 1} refers to itself")
    inner = (*above, id(node))
    size = 1
    if isinstance(node, yaml.SequenceNode):
        size += sum(_size(item, known, inner) for item in node.value)
    elif isinstance(node, yaml.MappingNode):
        size += sum(_size(part, known, inner) for pair in node.value for part in pair)
    if size > MAX_VALUES:
        raise ValueError(f"its aliases expand to more than {MAX_VALUES:,} values")
    known[id(node)] = size
    return size


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with limits on depth and number of nodes."""

    depth = 0
    nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.depth, self.nodes = self.depth + 1, self.nodes + 1
        if self.depth > MAX_DEPTH:
            raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
        if self.nodes > MAX_NODES:
            raise ValueError(f"more than {MAX_NODES:,} values, which is slow in YAML; use JSON for more")
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as exc:
            # PyYAML's constructors raise these for an impossible date, or "!!int x"
            text = str(node.value)[:60] if isinstance(node, yaml.ScalarNode) else ""
            raise yaml.YAMLError(f"line {node.start_mark.line + 1}: {text!r} cannot be read ({exc})") from exc

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if (key.tag, key.value) in seen:
                    raise yaml.YAMLError(f"line {key.start_mark.line + 1}: duplicate key {key.value[:60]!r}")
                seen.add((key.tag, key.value))
        return super().construct_mapping(node, deep)


# on our own class, or it would affect every user of PyYAML in this process
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]{1,3}$"), list("-+.0123456789")
)
