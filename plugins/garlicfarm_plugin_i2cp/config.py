"""The table of the plugin."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

__all__ = ["I2cpConfig"]


class I2cpConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[[farm.publisher]]`` with ``plugin = "i2cp"``. Where the keys are a bundle, what was signed with it
    takes the place of ``hops`` and ``quantity``."""

    mode: Annotated[
        Literal["meta", "service"],
        msgspec.Meta(description="What is published: the farm's Meta LeaseSet, or a service (target, keys)."),
    ] = "meta"
    address: Annotated[str, msgspec.Meta(description="The router's I2CP, HOST:PORT on loopback.")] = (
        "127.0.0.1:7654"
    )
    hops: Annotated[
        int,
        msgspec.Meta(description="Length of the session's tunnels; with a bundle, the bundle's.", ge=0, le=7),
    ] = 3
    quantity: Annotated[
        int, msgspec.Meta(description="Tunnels in each direction; with a bundle, the bundle's.", ge=1, le=16)
    ] = 2
    target: Annotated[
        str, msgspec.Meta(description="Mode service: where the service listens, HOST:PORT.")
    ] = ""
    keys: Annotated[
        str,
        msgspec.Meta(
            description="Mode service: file (mode 0600) of its destination, a private key or a bundle."
        ),
    ] = ""
    leases: Annotated[
        Literal["default", "fast"],
        msgspec.Meta(
            description="Mode service: leases of 90 s, or of 50 s, which help clients of i2pd only."
        ),
    ] = "default"
    client_headers: Annotated[
        bool, msgspec.Meta(description="Mode service: HTTP requests get headers that name the client.")
    ] = False

    def __post_init__(self) -> None:
        is_service = self.mode == "service"
        if is_service and not (self.target and self.keys):
            raise ValueError("mode service needs target and keys")
        if not is_service and (self.target or self.keys or self.leases != "default" or self.client_headers):
            raise ValueError("target, keys, leases and client_headers are those of mode service")
