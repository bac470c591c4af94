"""The options of our I2CP sessions. A bundle fixes its own when it is made, since the long-term key signs
them.

Source: I2CP specification, "I2CP options"; docs/howto/keys.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

Purpose = Literal["meta", "standby", "active"]
"""``meta``: the session of the Meta LeaseSet. ``standby``, ``active``: that of a service, before and while it
is published."""
PURPOSES: tuple[Purpose, ...] = get_args(Purpose)

_SERVICE = {"i2cp.leaseSetEncType": "4", "i2cp.leaseSetType": "3", "i2cp.messageReliability": "none"}
_FIXED: dict[Purpose, dict[str, str]] = {
    "meta": {"i2cp.leaseSetType": "7"},
    "standby": _SERVICE | {"i2cp.dontPublishLeaseSet": "true"},
    "active": _SERVICE | {"i2cp.dontPublishLeaseSet": "false"},
}


def session_options(purpose: Purpose, hops: int, quantity: int) -> dict[str, str]:
    """The options of a session. ``hops``, ``quantity``: of its inbound and its outbound tunnels."""
    return tunnel_options(hops, quantity) | _FIXED[purpose] | {"i2cp.fastReceive": "true"}


def tunnel_options(hops: int, quantity: int) -> dict[str, str]:
    """The options of a session's inbound and outbound tunnels, also over SAM."""
    figures = {"length": str(hops), "quantity": str(quantity)}
    return {f"{way}.{name}": figures[name] for way in ("inbound", "outbound") for name in figures}


def has_options_of(purpose: Purpose, options: Mapping[str, str]) -> bool:
    """Whether a session with ``options`` serves this purpose, and publishes no more than it."""
    return _FIXED[purpose].items() <= options.items()
