"""The table of the plugin."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

__all__ = ["I2cpConfig"]


class I2cpConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[[farm.publisher]]`` with ``plugin = "i2cp"``.

    ``mode``: ``meta``, the farm's Meta LeaseSet, or ``service``, the service itself. ``address``: HOST:PORT
    of the router's I2CP, on loopback. ``hops`` (0 … 7) and ``quantity`` (1 … 16) of the session's tunnels,
    each way; where the keys are a bundle, what was signed with it takes their place.

    Of a service only: ``target``, HOST:PORT where it listens; ``keys``, the file of its destination, a
    private key or a bundle; ``leases``, how long those last that clients get; ``client_headers``: an HTTP
    service is told in headers which client asks.
    """

    mode: Literal["meta", "service"] = "meta"
    address: str = "127.0.0.1:7654"
    hops: Annotated[int, msgspec.Meta(ge=0, le=7)] = 3
    quantity: Annotated[int, msgspec.Meta(ge=1, le=16)] = 2
    target: str = ""
    keys: str = ""
    leases: Literal["default", "fast"] = "default"
    client_headers: bool = False

    def __post_init__(self) -> None:
        is_service = self.mode == "service"
        if is_service and not (self.target and self.keys):
            raise ValueError("mode service needs target and keys")
        if not is_service and (self.target or self.keys or self.leases != "default" or self.client_headers):
            raise ValueError("target, keys, leases and client_headers are those of mode service")
