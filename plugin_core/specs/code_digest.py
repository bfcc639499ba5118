"""Digests that tell whether the user's code has changed. Unlike pickle bytes, they are the same in every process and on
every version of Python.

A function's digest comes from its syntax tree, as long as its source file still matches the code that runs. Bytecode
differs between minor versions, so it is the last resort, for code without a source.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import functools
import hashlib
import inspect
import linecache
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from plugin_core.specs.captured_values import UNKNOWN, content_of

#: Objects inside objects, of the user's own classes or of data, are inspected to this depth.
_DEPTH = 20
#: Globals that are inspected although a library defines their class, such as an OrderedDict.
_PLAIN = (functools.partial, list, tuple, dict, set, frozenset, int, float, str, bytes, complex)
#: Globals that depend on how a file was loaded: as a script, or by an engine, which may name it anew in each process.
_OF_THE_MODULE = {"__name__", "__package__"}
_PARSING = threading.Lock()
#: code → its tree as text, and the names in it; found once, because the file may be edited while the process runs
_trees: weakref.WeakKeyDictionary[types.CodeType, tuple[str, frozenset[str]] | None] = weakref.WeakKeyDictionary()


def sources_digest(sources: dict[str, bytes]) -> str:
    """A digest of modules by file name. It ignores comments and blank lines, except in files that cannot be parsed as
    Python, such as compiled modules."""
    lines = [f"{name} {_module_text(sources[name])}" for name in sorted(sources)]
    return _hashed("\n".join(lines)) if lines else ""


def _module_text(source: bytes) -> str:
    try:
        return _text(_parsed(source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return hashlib.sha256(source).hexdigest()


def code_digest(function: Callable[..., Any]) -> str:
    """A digest of a function: its code, defaults, captured values and globals, and those of the functions and classes of
    its own module that it refers to. It ignores comments, docstrings and annotations of arguments, and the content of
    objects that are not data (see `captured_values`)."""
    called = innermost(function)
    digest = _Digest(getattr(called, "__module__", None))
    digest.visit(function)
    if not isinstance(called, (types.FunctionType, types.MethodType, type)):
        # a callable instance, of any module's class
        held = {name: value for name, value in getattr(called, "__dict__", {}).items() if name != "__module__"}
        digest.visit([type(called), held])
    return _hashed("\x00".join(digest.parts))


def innermost(function: Any) -> Any:
    """The function that partials of it call."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


class _Digest:
    """Collects what a digest is made of. `module`: the user's; functions and classes of other modules are named but not
    inspected. `seen`: what to skip, by `id`. `is_unordered`: skip what instances of the user's classes hold, because the
    members of sets may refer to each other in many ways."""

    def __init__(self, module: str | None, seen: dict[int, Any] | None = None, *, is_unordered: bool = False):
        self.parts: list[str] = []
        self._module = module
        self._seen = {} if seen is None else seen
        self._is_unordered = is_unordered
        self._depth = 0

    def visit(self, value: Any) -> None:
        if isinstance(value, (types.FunctionType, type)):
            if self._is_new(value):
                self._class(value) if isinstance(value, type) else self._function(value)
        elif isinstance(value, types.MethodType):
            self.visit([value.__func__, value.__self__])
        elif isinstance(value, types.CodeType):
            self.parts.append(value.co_code.hex() + repr(value.co_names) + repr(value.co_varnames))
            self.visit(list(value.co_consts))
        elif isinstance(value, types.ModuleType):
            self.parts.append(value.__name__)
        elif isinstance(value, (list, tuple)):
            for item in value:
                self.visit(item)
        elif isinstance(value, dict):
            if self._is_new(value):
                for text, key in sorted(((self._text_of(key), key) for key in value), key=lambda pair: pair[0]):
                    self.parts.append(text)
                    self.visit(value[key])
        elif isinstance(value, (int, float, str, bytes, bool, type(None), complex)):
            self.parts.append(repr(value))
        elif isinstance(value, (set, frozenset)):
            if self._is_new(value):
                self.parts.append(repr(sorted(map(self._text_of, value))))
        elif isinstance(value, functools.partial):
            self.visit([value.func, value.args, value.keywords])
        else:
            self._object(value, content_of(value))

    def _is_new(self, value: Any) -> bool:
        if id(value) in self._seen:
            return False
        self._seen[id(value)] = value  # kept, so that no other value gets its id
        return True

    def _object(self, value: Any, content: Any) -> None:
        kind = type(value)
        library = "" if kind.__module__ == self._module else f"{kind.__module__}."
        self.parts.append(f"{library}{kind.__qualname__}")
        if self._depth == _DEPTH or not self._is_new(value):
            return
        self._depth += 1
        if kind.__module__ == self._module:
            self.visit(kind)
            if content is UNKNOWN and not self._is_unordered:
                content = getattr(value, "__dict__", None)
        if content is not UNKNOWN:
            self.visit(content)
        elif isinstance(wrapped := inspect.getattr_static(value, "__wrapped__", None), types.FunctionType):
            self.visit(wrapped)  # by functools.cache
        self._depth -= 1

    def _text_of(self, value: Any) -> str:
        """What a value adds to the digest whose place among others is not fixed: a key of a dict, or a set's member."""
        if isinstance(value, (int, float, str, bytes, type(None))):
            return repr(value)
        alone = _Digest(self._module, dict(self._seen), is_unordered=True)
        alone.visit(value)
        return "\x00".join(alone.parts)

    def _function(self, function: types.FunctionType) -> None:
        code = function.__code__
        tree = _tree_of(function)
        names = _names(code)
        if tree is None:
            self.visit(code)
        else:
            self.parts.append(tree[0])
            names &= tree[1]  # without names that some Python versions add
        self.visit([function.__defaults__, function.__kwdefaults__])
        self.visit([_content(cell) for cell in function.__closure__ or ()])
        for name in sorted(names - _OF_THE_MODULE):
            self.parts.append(name)
            self._global(function.__globals__.get(name))

    def _global(self, target: Any) -> None:
        if getattr(target, "__module__", self._module) == self._module or isinstance(target, _PLAIN):
            self.visit(target)
        elif isinstance(target, (types.FunctionType, types.MethodType, type)):
            return  # a library's
        elif (content := content_of(target)) is not UNKNOWN:
            self._object(target, content)

    def _class(self, value: type) -> None:
        self.parts.append(value.__qualname__)
        if value.__module__ != self._module:
            return
        for base in value.__bases__:
            self._global(base)
        generated = dataclasses.is_dataclass(value)
        if generated:
            for field in dataclasses.fields(value):
                self.visit([field.name, field.default, field.default_factory, field.init])
        members = getattr(value, "__members__", {}) if issubclass(value, enum.Enum) else {}
        self.visit([[name, member.value] for name, member in members.items()])
        for name, attribute in sorted(vars(value).items()):
            if name in members:
                continue
            functions = _functions_of(attribute)
            own = [function for function in functions if function.__module__ == self._module]
            if not own and (functions or (name.startswith("_") and name.endswith("_"))):
                continue  # what Python and its libraries add to a class
            if generated and own and all(function.__code__.co_filename == "<string>" for function in own):
                continue  # made from the fields
            self.parts.append(name)
            self.visit(own or attribute)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _functions_of(attribute: Any) -> list[types.FunctionType]:
    """The functions behind a class attribute: a method of any kind, or a property."""
    if isinstance(attribute, property):
        given = [attribute.fget, attribute.fset, attribute.fdel]
    else:
        given = [getattr(attribute, "__func__", attribute)]
    return [function for function in map(_unwrapped, given) if isinstance(function, types.FunctionType)]


def _unwrapped(value: Any) -> Any:
    return inspect.unwrap(value) if callable(value) else value


def _names(code: types.CodeType) -> set[str]:
    inner = (const for const in code.co_consts if isinstance(const, types.CodeType))
    return set(code.co_names).union(*(_names(const) for const in inner))


# ---- syntax trees


def _tree_of(function: types.FunctionType) -> tuple[str, frozenset[str]] | None:
    """A function's syntax tree as text, and the names in it; None without a source that compiles to the same bytecode."""
    code = function.__code__
    if code not in _trees:
        linecache.checkcache(code.co_filename)
        source = "".join(linecache.getlines(code.co_filename, function.__globals__))
        _trees[code] = _trees_in(source).get(_signature(code)) if source else None
    return _trees[code]


@functools.lru_cache(maxsize=32)
def _trees_in(source: str) -> dict[Any, tuple[str, frozenset[str]]]:
    """A source's functions by the signature of their code; empty if the source does not compile."""
    try:
        tree = _parsed(source)
        with _PARSING:
            codes = list(_codes_in(compile(source, "", "exec", dont_inherit=True)))
    except (SyntaxError, ValueError, RecursionError):
        return {}
    nodes: dict[tuple[str, int], list[Any]] = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            line = min(each.lineno for each in [node, *node.decorator_list])
            nodes.setdefault((node.name, line), []).append(node)
        elif isinstance(node, ast.Lambda):
            nodes.setdefault(("<lambda>", node.lineno), []).append(node)
    found: dict[Any, tuple[str, frozenset[str]]] = {}
    for code in codes:
        there = nodes.get((code.co_name, code.co_firstlineno), [])
        matching = there if len(there) == 1 else [node for node in there if _is_node_of(code, node)]
        if len(matching) == 1:
            found[_signature(code)] = _described(matching[0])
    return found


def _codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield const
            yield from _codes_in(const)


def _is_node_of(code: types.CodeType, node: Any) -> bool:
    """Whether `code` comes from `node`, one of several lambdas on a line: the return instruction has the position of
    the body, unless the body is a constant."""
    body = node.body
    if isinstance(body, ast.Constant):
        return repr(code.co_consts[-1:]) == repr((body.value,))
    return isinstance(node, ast.Lambda) and (
        (body.lineno, body.end_lineno, body.col_offset, body.end_col_offset) in code.co_positions()
    )


def _signature(code: types.CodeType) -> Any:
    """What a code object does, wherever it is in its file."""
    consts = tuple(_signature(each) if isinstance(each, types.CodeType) else _constant(each) for each in code.co_consts)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    return code.co_qualname, code.co_code, names, consts


def _constant(value: Any) -> str:
    """A constant as text. The members of a set have one order in a code object that the compiler made, and maybe another in
    the same one from a .pyc file."""
    return repr(sorted(map(repr, value)) if isinstance(value, frozenset) else value)


def _described(node: Any) -> tuple[str, frozenset[str]]:
    bare = _Bare().visit(node)
    body = bare.body if isinstance(bare.body, list) else [bare.body]
    names = {part.id for each in body for part in ast.walk(each) if isinstance(part, ast.Name)}
    return _text([bare.args, body]), frozenset(names)


class _Bare(ast.NodeTransformer):
    """Removes what does not affect a function's behaviour: docstrings, and argument and return annotations."""

    def visit_FunctionDef(self, node: Any) -> Any:
        node.returns, node.body = None, _without_docstring(node.body)
        return self.generic_visit(node)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: Any) -> Any:
        node.body = _without_docstring(node.body)
        return self.generic_visit(node)

    def visit_arg(self, node: Any) -> Any:
        node.annotation = None
        return node


def _without_docstring(body: list[Any]) -> list[Any]:
    first = body[0].value if isinstance(body[0], ast.Expr) else None
    return body[1:] if isinstance(first, ast.Constant) and isinstance(first.value, str) else body


def _parsed(source: bytes | str) -> ast.Module:
    # in CPython 3.11, threads that build trees concurrently can break each other
    with _PARSING:
        return ast.parse(source)


def _text(node: Any) -> str:
    """A tree as text, without positions and without empty fields, such as those that newer Python versions add."""
    if isinstance(node, ast.JoinedStr):  # Python 3.12 ends some with an empty string
        node.values = [part for part in node.values if not (isinstance(part, ast.Constant) and part.value == "")]
    if isinstance(node, ast.AST):
        fields = (f"{name}={_text(value)}" for name, value in ast.iter_fields(node) if value is not None and value != [])
        return f"{type(node).__name__}({', '.join(fields)})"
    return f"[{', '.join(map(_text, node))}]" if isinstance(node, list) else repr(node)
