"""The answers of publisher plugins, checked: the farm refuses a status with a wrong value in it."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from garlicfarm.i2p.encoding import encode
from garlicfarm.publisher import KeyReport, Published, PublisherStatus

T = TypeVar("T", bound=msgspec.Struct)


def checked_key(answer: object) -> KeyReport | None:
    """Raises `TypeError` or `ValueError`: not what `Publisher.key` has to be (a defect)."""
    return None if answer is None else _checked(answer, KeyReport)


def checked_published(answer: object) -> Published:
    """Raises `TypeError` or `ValueError`: not what `Publisher.publish` has to return (a defect)."""
    return _checked(answer, Published)


def checked_status(answer: object, destination: bytes | None) -> PublisherStatus:
    """``destination``: the plugin's. Raises `TypeError` or `ValueError`: not what `Publisher.status` has to
    return (a defect)."""
    status = _checked(answer, PublisherStatus)
    if status.leaf is not None and (destination is None or status.leaf.destination != encode(destination)):
        raise ValueError("its status is about another destination than its own")
    return status


def _checked(answer: object, kind: type[T]) -> T:
    if not isinstance(answer, kind):
        raise TypeError(f"it answers with {type(answer).__name__}, not with {kind.__name__}")
    return msgspec.convert(msgspec.to_builtins(answer), kind)
