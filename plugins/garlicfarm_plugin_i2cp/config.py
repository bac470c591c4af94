"""The table of the plugin."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec

from garlicfarm.i2p.router_kind import RouterKind
from garlicfarm.plugin_settings import Hops, Quantity, Settings, setting

Balance: TypeAlias = Literal["turn", "order"]
MAX_TARGETS = 16
_OF_BOTH_MODES = ("mode", "address", "router", "user", "password_file", "hops", "quantity")
_Port = Annotated[str, msgspec.Meta(pattern=r"^[1-9][0-9]{0,4}\Z")]
_Addresses = Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=MAX_TARGETS)]
_Ports = Annotated[
    dict[_Port, _Addresses],
    setting("Mode service: the targets of single I2CP ports, as {6667 = [HOST:PORT]}."),
]


class I2cpConfig(Settings, frozen=True, kw_only=True):
    """``[[farm.publisher]]`` with ``plugin = "i2cp"``. Where the keys are a bundle, what was signed with it
    takes the place of ``hops`` and ``quantity``."""

    mode: Annotated[
        Literal["meta", "service"],
        setting("What is published: the farm's Meta LeaseSet, or a service (target, keys)."),
    ] = "meta"
    address: Annotated[str, setting("The router's I2CP, HOST:PORT on loopback.")] = "127.0.0.1:7654"
    router: Annotated[
        Literal["auto", "i2pd", "java"],
        setting("Which router it is: i2pd, Java I2P, or auto, which finds out."),
    ] = "auto"
    user: Annotated[str, setting("Name for a router that asks for one (Java I2P); none by default.")] = ""
    password_file: Annotated[str, setting("File (mode 0600) with its password on the first line.")] = ""
    hops: Annotated[Hops, setting("Length of the session's tunnels; with a bundle, the bundle's.")] = 3
    quantity: Annotated[Quantity, setting("Tunnels in each direction; with a bundle, the bundle's.")] = 2
    target: Annotated[str, setting("Mode service: where the service listens, HOST:PORT.")] = ""
    targets: Annotated[
        tuple[str, ...],
        msgspec.Meta(max_length=MAX_TARGETS),
        setting("Mode service: in place of target, several that serve the same."),
    ] = ()
    balance: Annotated[
        Balance,
        setting("Mode service: streams go to the targets by turn, or in order to the first that is up."),
    ] = "turn"
    ports: _Ports = msgspec.field(default_factory=dict)
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
    client_addresses: Annotated[
        bool, setting("Mode service: connections of each client come from an address 127.x.y.z of its own.")
    ] = False
    host_override: Annotated[
        str, setting("Mode service: what HTTP requests get as Host in place of their own; empty: nothing.")
    ] = ""
    reject_inproxies: Annotated[
        bool, setting("Mode service: refuse HTTP requests with X-Forwarded-…, Forwarded or Via.")
    ] = False
    max_posts: Annotated[
        int,
        setting("Mode service: POSTs, PUTs of one client within post_check_s; 0: any.", ge=0, le=10**6),
    ] = 0
    max_total_posts: Annotated[
        int, setting("Mode service: the same of all clients together.", ge=0, le=10**6)
    ] = 0
    post_check_s: Annotated[
        float, setting("Mode service: within which POSTs and PUTs are counted, in seconds.", ge=1, le=86400)
    ] = 300.0
    post_ban_s: Annotated[
        float, setting("Mode service: how long one that sends more of them may send none.", ge=1, le=86400)
    ] = 1200.0
    webirc_password_file: Annotated[
        str,
        setting("Mode service: file (mode 0600) with the password that tells an IRC server the client."),
    ] = ""
    drain_s: Annotated[
        float,
        setting(
            "Mode service: how long streams that are open at a hand-over may finish; then they are reset.",
            ge=0,
            le=600,
        ),
    ] = 5.0
    max_connections_per_minute: Annotated[
        int, setting("Mode service: that one client may open; 0: any number.", ge=0, le=1_000_000)
    ] = 0

    def __post_init__(self) -> None:
        if self.mode == "service":
            if not (self.keys and (self.own_targets or self.ports)):
                raise ValueError("mode service needs target and keys")
            if self.target and self.targets:
                raise ValueError("name the target in targets, too, and leave out target")
            if self.webirc_password_file and self.filters_http:
                raise ValueError("webirc_password_file is for IRC, and other keys here are for HTTP")
        else:
            defaults = {field.name: _default(field) for field in msgspec.structs.fields(self)}
            others = set(defaults).difference(_OF_BOTH_MODES)
            if given := sorted(name for name in others if getattr(self, name) != defaults[name]):
                raise ValueError(f"only for mode service: {', '.join(given)}")

    @property
    def kind(self) -> RouterKind | None:
        """Of the router; None: to be found out."""
        return None if self.router == "auto" else self.router

    @property
    def own_targets(self) -> tuple[str, ...]:
        """Where the service of all other ports than ``ports`` listens; (): there is none."""
        return self.targets or ((self.target,) if self.target else ())

    @property
    def filters_http(self) -> bool:
        """Whether its streams carry HTTP, by what is asked for."""
        has_limits = self.max_posts or self.max_total_posts
        return bool(self.client_headers or self.host_override or self.reject_inproxies or has_limits)


def _default(field: msgspec.structs.FieldInfo) -> object:
    factory = field.default_factory
    return field.default if factory is msgspec.NODEFAULT else factory()
