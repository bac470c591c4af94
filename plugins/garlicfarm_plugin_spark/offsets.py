"""Offsets of the source, as Spark keeps them in checkpoints.

::

    {"farms": {"barn": {"index": 1200, "farm_id": "0001…", "from": 800}, …}}

Everything up to ``index`` of that farm is read; ``farm_id`` is 32 hex digits. Optional keys:

* ``from``: where the batch that ends here begins, if not at the previous offset: in a farm's first batch, and
  after lost entries.
* ``state``: that batch begins with the application's state, as of the index ``from``. The bytes are here
  (base64 of zlib), because nodes only give their present state, and a repeated batch must be equal.
* ``past``: ids of farms that had this name before. They are not read again.
"""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from garlicfarm.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Position:
    """How far one farm is read: up to ``index``. ``begin``: what is ``from`` in the offset, or None.
    ``state``: the application's state at ``begin``, or None. ``past``: ids of the farms of this name before
    it."""

    index: int
    farm_id: str
    begin: int | None = None
    state: bytes | None = None
    past: tuple[str, ...] = ()


def decode_offset(offset: Mapping[str, Any]) -> dict[str, Position]:
    """The positions in an offset, by farm. Raises `ConfigError`: it is no offset of this source."""
    try:
        return {name: _position(one) for name, one in offset["farms"].items()}
    except (LookupError, TypeError, ValueError, AttributeError, zlib.error) as error:
        raise ConfigError(
            [f"{str(offset)[:200]} is not an offset of this query ({error!r}): name a new checkpoint"]
        ) from None


def encode_offset(positions: Mapping[str, Position]) -> dict[str, Any]:
    """The offset with these positions; the same positions give the same JSON."""
    farms: dict[str, dict[str, Any]] = {}
    for name in sorted(positions):
        one = positions[name]
        farms[name] = farm = {"index": one.index, "farm_id": one.farm_id}
        if one.begin is not None:
            farm["from"] = one.begin
        if one.state is not None:
            farm["state"] = b64encode(zlib.compress(one.state)).decode()
        if one.past:
            farm["past"] = [*one.past]
    return {"farms": farms}


def _position(found: Mapping[str, Any]) -> Position:
    index, farm_id, begin = found["index"], found["farm_id"], found.get("from")
    if type(index) is not int or type(farm_id) is not str or type(begin) not in (int, type(None)):
        raise TypeError("wrong types")
    state = zlib.decompress(b64decode(found["state"], validate=True)) if "state" in found else None
    if state is not None and begin is None:
        raise ValueError("a state without its index")
    return Position(index, farm_id, begin, state, tuple(map(str, found.get("past", ()))))
