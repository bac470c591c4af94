"""The table of the plugin."""

from __future__ import annotations

from typing import Annotated, Literal

from garlicfarm.plugin_settings import Hops, Quantity, Settings, setting

DRAIN_S = 5.0


class I2cpConfig(Settings, frozen=True, kw_only=True):
    """``[[farm.publisher]]`` with ``plugin = "i2cp"``. Where the keys are a bundle, what was signed with it
    takes the place of ``hops`` and ``quantity``."""

    mode: Annotated[
        Literal["meta", "service"],
        setting("What is published: the farm's Meta LeaseSet, or a service (target, keys)."),
    ] = "meta"
    address: Annotated[str, setting("The router's I2CP, HOST:PORT on loopback.")] = "127.0.0.1:7654"
    user: Annotated[str, setting("Name for a router that asks for one (Java I2P); none by default.")] = ""
    password_file: Annotated[str, setting("File (mode 0600) with its password on the first line.")] = ""
    hops: Annotated[Hops, setting("Length of the session's tunnels; with a bundle, the bundle's.")] = 3
    quantity: Annotated[Quantity, setting("Tunnels in each direction; with a bundle, the bundle's.")] = 2
    target: Annotated[str, setting("Mode service: where the service listens, HOST:PORT.")] = ""
    keys: Annotated[
        str, setting("Mode service: file (mode 0600) of its destination, a private key or a bundle.")
    ] = ""
    leases: Annotated[
        Literal["default", "fast"],
        setting("Mode service: leases of 90 s, or of 50 s, which help clients of i2pd only."),
    ] = "default"
    encryption: Annotated[
        Literal["x25519", "ml-kem"],
        setting("Mode service: how clients encrypt; ml-kem is ML-KEM-768 with X25519, or X25519."),
    ] = "x25519"
    client_headers: Annotated[
        bool, setting("Mode service: HTTP requests get headers that name the client.")
    ] = False

    drain_s: Annotated[
        float,
        setting(
            "Mode service: how long streams that are open at a hand-over may finish; then they are reset.",
            ge=0,
            le=600,
        ),
    ] = DRAIN_S
    max_connections_per_minute: Annotated[
        int, setting("Mode service: that one client may open; 0: any number.", ge=0, le=1_000_000)
    ] = 0

    def __post_init__(self) -> None:
        is_service = self.mode == "service"
        if is_service and not (self.target and self.keys):
            raise ValueError("mode service needs target and keys")
        has_service_keys = (
            self.leases != "default"
            or self.encryption != "x25519"
            or self.client_headers
            or self.drain_s != DRAIN_S
            or self.max_connections_per_minute
        )
        if not is_service and (self.target or self.keys or has_service_keys):
            raise ValueError(
                "target, keys, leases, encryption, client_headers, drain_s and max_connections_per_minute "
                "are for mode service only"
            )
