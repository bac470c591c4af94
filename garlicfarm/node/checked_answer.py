"""The answers of plugins, checked: what does not have the type that the interface says is a defect."""

from __future__ import annotations

from typing import TypeVar

import msgspec

T = TypeVar("T", bound=msgspec.Struct)


def checked(answer: object, kind: type[T]) -> T:
    """``answer``, if it is a ``kind`` with fields of the types and ranges that this declares. Raises
    `TypeError` or `ValueError`: it is not."""
    if not isinstance(answer, kind):
        raise TypeError(f"it answers with {type(answer).__name__}, not with {kind.__name__}")
    return msgspec.convert(msgspec.to_builtins(answer), kind)
