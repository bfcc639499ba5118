"""What the objects that a function captures hold, where that is data. A digest of the function counts it."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import hashlib
import pathlib
import re
import sys
import types
import uuid
from typing import Any

#: Objects whose `repr` is their content, and the same in every process.
_TOLD_BY_REPR = (
    *(bytearray, range, pathlib.PurePath, decimal.Decimal, fractions.Fraction, uuid.UUID),
    *(datetime.date, datetime.time, datetime.timedelta, datetime.timezone),
)
UNKNOWN = object()


def content_of(value: Any) -> Any:
    """What an object of a library holds, if that is data; else `UNKNOWN`, as for a lock, a logger or a model: what they
    hold may differ between processes."""
    kind = type(value)
    if isinstance(value, _TOLD_BY_REPR):
        return repr(value)
    if isinstance(value, enum.Enum):
        return [value.name, value.value]
    if isinstance(value, re.Pattern):
        return [value.pattern, value.flags]
    if isinstance(value, collections.deque):
        return list(value)
    if isinstance(value, types.MappingProxyType):
        return dict(value)
    if dataclasses.is_dataclass(kind):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(kind)}
    if isinstance(attributes := getattr(kind, "__attrs_attrs__", None), tuple):
        return {attribute.name: getattr(value, attribute.name, None) for attribute in attributes}
    if isinstance(value, (types.SimpleNamespace, argparse.Namespace)) or hasattr(kind, "__pydantic_validator__"):
        return vars(value)
    return _array_content(value, f"{kind.__module__.partition('.')[0]}.{kind.__qualname__}")


def _array_content(value: Any, name: str) -> Any:
    """The content of an array or tensor. A torch Parameter's is not data: it often begins as random numbers."""
    if name in ("torch.dtype", "torch.device") or (name.startswith("numpy.") and name.endswith("DType")):
        return repr(value)
    if name == "torch.Tensor":
        torch = sys.modules["torch"]
        try:
            given = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
        except (RuntimeError, TypeError, NotImplementedError):
            return UNKNOWN
    elif name.startswith("numpy.") and hasattr(value, "tobytes") and hasattr(value, "dtype"):
        given = value
        if value.dtype.hasobject:
            return value.tolist()
    else:
        return UNKNOWN
    return [str(value.dtype), list(value.shape), hashlib.sha256(given.tobytes()).hexdigest()]
