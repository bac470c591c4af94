"""The configuration's structs: one per TOML table, each field with its range and its default.

Error messages use a field's description for the allowed values. Defaults of ``[farm.raft]`` depend on
``node.preset``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec

from garlicfarm.config import validators
from garlicfarm.durations import parse_ms
from garlicfarm.errors import ConfigError
from garlicfarm.names import FARM_NAME, FARM_NAME_RULE
from garlicfarm.round_trips import Timeouts

HEADERS_BYTES = 58
"""The size on the wire of a request and one entry, without the entry's value."""
DISK_TIMEOUT_S = 5.0


def _allowed(words: str, form: Callable[[Any], bool] | None = None, **limits: Any) -> msgspec.Meta:
    """``words`` complete the sentence "it must be …"; ``form`` checks what types cannot express."""
    return msgspec.Meta(description=words, extra={"form": form} if form else None, **limits)


_DESTINATION = "a destination in I2P base64, 516 characters or more"

Version = Annotated[Literal[1], _allowed("1")]
NodeId = Annotated[int, _allowed("a whole number from 1 to 2147483647", ge=1, le=2**31 - 1)]
Name = Annotated[
    str,
    _allowed(FARM_NAME_RULE, pattern=rf"^{FARM_NAME}\Z"),
]
Names = Annotated[tuple[str, ...], _allowed("a list of farm names")]
Scheme = Annotated[str, _allowed("a transport's name, of a-z 0-9 + . -", pattern=r"^[a-z][a-z0-9+.-]*\Z")]
ListenUrl = Annotated[str, _allowed("SCHEME://HOST:PORT, as ssl://0.0.0.0:27150", validators.is_listen_url)]
DialUrl = Annotated[
    str, _allowed("what others dial, SCHEME://HOST:PORT, as ssl://a.example:27150", validators.is_dial_url)
]
AdminUrl = Annotated[str, _allowed("https://HOST:PORT", validators.is_admin_url)]
FilePath = Annotated[Path, _allowed("a path")]
OptionalPath = Annotated[Path | None, _allowed('the path of a file, or "" for none')]
Seconds = Annotated[float, _allowed("seconds, from 0.01 to 3600", ge=0.01, le=3600)]
Count = Annotated[int, _allowed("a whole number from 1 to 1000000000", ge=1, le=10**9)]
Bytes = Annotated[int, _allowed("bytes, from 1024 to 1099511627776", ge=1024, le=2**40)]
MessageBytes = Annotated[int, _allowed("bytes, from 65536 to 2147483647", ge=65536, le=2**31 - 1)]
EntryBytes = Annotated[int, _allowed("bytes, from 1 to 1048576", ge=1, le=1 << 20)]
Priority = Annotated[int, _allowed("a whole number from 1 to 100", ge=1, le=100)]
Window = Annotated[int, _allowed("a whole number from 1 to 4096", ge=1, le=4096)]
Preset = Annotated[Literal["clearnet", "i2p"], _allowed("clearnet or i2p")]
Level = Annotated[Literal["debug", "info", "warning", "error"], _allowed("debug, info, warning or error")]
Format = Annotated[Literal["text", "json"], _allowed("text or json")]
Algorithms = Annotated[
    tuple[Literal["MD5", "SHA-256"], ...],
    _allowed('a list that holds "MD5", "SHA-256" or both', min_length=1, max_length=2),
]
Publish = Annotated[Literal["off", "on", "auto"], _allowed("off, on or auto")]
Destination = Annotated[str, _allowed(_DESTINATION, validators.is_destination)]
OptionalDestination = Annotated[
    str, _allowed(f'{_DESTINATION}, or "" for none', lambda text: not text or validators.is_destination(text))
]
PluginTable = Annotated[
    dict[str, Any], _allowed("a table whose key plugin names a router plugin", validators.is_plugin_table)
]
PluginName = Annotated[
    str, _allowed("a plugin's name, of a-z 0-9 _ -", pattern=r"^[a-z][a-z0-9_-]*\Z", max_length=64)
]
OtherKeys = Annotated[dict[str, Any], _allowed("the plugin's own keys")]
"""A field of this type takes all keys of its table that have no field."""
OptionalName = Annotated[
    str,
    _allowed('a name of a-z 0-9 _ -, or ""', pattern=r"^([a-z][a-z0-9_-]*)?\Z", max_length=64),
]
YesNoOrAuto = Annotated[bool | Literal["auto"], _allowed("true, false or auto")]
ClockSeconds = Annotated[float, _allowed("seconds, from 1 to 600", ge=1, le=600)]
RetireSeconds = Annotated[float, _allowed("seconds, from 0.1 to 11.25", ge=0.1, le=11.25)]
CheckUrl = Annotated[
    str, _allowed('auto, tcp://HOST:PORT, an http:// URL, or "" for none', validators.is_check_url)
]
Threshold = Annotated[int, _allowed("a whole number from 1 to 100", ge=1, le=100)]
Period = Annotated[
    str, _allowed("whole seconds, minutes, hours or days, as 90s, 12h or 1d", validators.is_period)
]
Kept = Annotated[int, _allowed("a whole number from 1 to 10000", ge=1, le=10_000)]
OptionalDirectory = Annotated[Path | None, _allowed('the path of a directory, or "" for none')]
NotifyKind = Literal["publisher", "member", "health", "keys", "disk", "damage", "level"]
NotifyWay = Annotated[Literal["webhook", "command"], _allowed("webhook or command")]
NotifyKinds = Annotated[
    tuple[NotifyKind, ...],
    _allowed(
        f"a list of {', '.join(get_args(NotifyKind)[:-1])} and {get_args(NotifyKind)[-1]}", min_length=1
    ),
]
OptionalUrl = Annotated[str, _allowed('an http:// or https:// URL, or "" for none', validators.is_web_url)]
Command = Annotated[tuple[str, ...], _allowed("a program and its arguments, or [] for none")]
PluginTables = Annotated[dict[str, dict[str, Any]], _allowed("a table of tables, as [transport.ssl]")]


class NodeSection(msgspec.Struct, frozen=True, kw_only=True):
    """``[node]``. ``scrub_every``: how often it reads all its files again, to find damage."""

    id: NodeId
    data_dir: FilePath = Path("data")
    preset: Preset = "clearnet"
    shutdown_timeout_s: Seconds = 30.0
    scrub_every: Period = "7d"

    @property
    def scrub_every_s(self) -> float:
        """``scrub_every`` in seconds."""
        return (parse_ms(self.scrub_every) or 0) / 1000


class LogSection(msgspec.Struct, frozen=True, kw_only=True):
    """``[log]``: the program's own log, on stderr."""

    level: Level = "info"
    format: Format = "text"


class AdminSection(msgspec.Struct, frozen=True, kw_only=True):
    """``[admin]``: the HTTPS listener for operators and readers."""

    url: AdminUrl = "https://127.0.0.1:27151"
    metrics_token_file: OptionalPath = None


class ListenerSection(msgspec.Struct, frozen=True, kw_only=True):
    """One ``[[listener]]``; empty ``farms``: all."""

    url: ListenUrl
    farms: Names = ()


class RaftSection(msgspec.Struct, frozen=True, kw_only=True):
    """``[farm.raft]``; the first four defaults come from the preset. In a file, the default of
    ``disk_timeout_s`` is at least ``election_timeout_max_s``, and that of ``least_election_timeout_s`` at
    most. A ``least_election_timeout_s`` that is more counts as that."""

    election_timeout_min_s: Seconds
    election_timeout_max_s: Seconds
    heartbeat_s: Seconds
    rpc_timeout_s: Seconds
    least_election_timeout_s: Seconds = 3600.0
    priority: Priority = 1
    max_message_bytes: MessageBytes = 67108864
    max_client_message_bytes: MessageBytes = 1048576
    max_entry_bytes: EntryBytes = 1048576
    max_inflight_messages: Window = 64
    max_inflight_bytes: Bytes = 8388608
    max_uncommitted_bytes: Bytes = 67108864
    disk_timeout_s: Seconds = DISK_TIMEOUT_S

    def __post_init__(self) -> None:
        limits = (
            ("election_timeout_min_s", "election_timeout_max_s"),
            ("heartbeat_s", "election_timeout_min_s"),
        )
        problems = [
            f"{low}: {getattr(self, low)} is not allowed; it must be less than {high} ({getattr(self, high)})"
            for low, high in limits
            if getattr(self, low) >= getattr(self, high)
        ]
        shortened_s = (
            self.election_timeout_min_s * self.least_election_timeout_s / self.election_timeout_max_s
        )
        if self.heartbeat_s < self.election_timeout_min_s and shortened_s <= self.heartbeat_s:
            problems.append(
                f"least_election_timeout_s: {self.least_election_timeout_s} is not allowed; the lower "
                f"election timeout could become {shortened_s:g} s, and it must be more than heartbeat_s "
                f"({self.heartbeat_s})"
            )
        if self.max_entry_bytes + HEADERS_BYTES > self.max_message_bytes:
            problems.append(
                f"max_entry_bytes: {self.max_entry_bytes} is not allowed; with {HEADERS_BYTES} bytes of "
                f"headers it must fit into max_message_bytes ({self.max_message_bytes})"
            )
        if problems:
            raise ConfigError(problems)

    @property
    def timeouts(self) -> Timeouts:
        """What is configured, in ms."""
        return Timeouts(
            round(1000 * self.election_timeout_min_s),
            round(1000 * self.election_timeout_max_s),
            round(1000 * self.rpc_timeout_s),
        )

    @property
    def least_election_timeout_ms(self) -> int:
        """In ms."""
        return round(1000 * self.least_election_timeout_s)


class RetentionSection(msgspec.Struct, frozen=True, kw_only=True):
    """``[farm.retention]``: how much of the log is kept for readers."""

    snapshot_every_entries: Count = 10000
    keep_entries: Count = 100000
    keep_bytes: Bytes = 1073741824


class BackupSection(msgspec.Struct, frozen=True, kw_only=True):
    """``[farm.backup]``: snapshots of the farm that this node saves. ``directory`` None: none."""

    every: Period = "1d"
    keep: Kept = 7
    directory: OptionalDirectory = None

    @property
    def every_ms(self) -> int:
        """``every`` in ms."""
        return parse_ms(self.every) or 0


class MetaSection(msgspec.Struct, frozen=True, kw_only=True):
    """``[farm.meta]``: the Meta LeaseSet of this farm, and when this node offers itself to publish.
    ``max_clock_offset_s``: by how much its wall clock may differ from the farm's and its router's then."""

    destination: OptionalDestination = ""
    key_file: OptionalPath = None
    publish: Publish = "auto"
    max_clock_offset_s: ClockSeconds = 60.0


class NotifySection(msgspec.Struct, frozen=True, kw_only=True):
    """One ``[[notify]]``: a receiver of notices. ``farms`` empty: all."""

    kind: NotifyWay
    url: OptionalUrl = ""
    secret_file: OptionalPath = None
    command: Command = ()
    events: NotifyKinds = get_args(NotifyKind)
    farms: Names = ()

    def __post_init__(self) -> None:
        if not (self.url if self.kind == "webhook" else self.command):
            what = "url" if self.kind == "webhook" else "command"
            raise ConfigError([f"{what}: missing; kind = {self.kind!r} needs it"])


class LeafSection(msgspec.Struct, frozen=True, kw_only=True):
    """One ``[[farm.leaf]]``: a destination that this node's router serves."""

    destination: Destination


class PublisherSection(msgspec.Struct, frozen=True, kw_only=True):
    """One ``[[farm.publisher]]``. ``required``: while it cannot publish, this node cannot; auto: true, but
    false for an auxiliary one (`garlicfarm.publisher.Publisher`) beside one that is not.
    ``retire_timeout_s``: how long it may take to stop publishing; in a file, its default comes from the
    preset. ``check``: the service behind it, auto: the publisher's targets; each is tested every
    ``check_interval_s``, and counts as down after ``check_threshold`` failures in a row. ``options``: all
    other keys, which are the plugin's."""

    plugin: PluginName
    required: YesNoOrAuto = "auto"
    retire_timeout_s: RetireSeconds = 1.0
    check: CheckUrl = "auto"
    check_interval_s: Seconds = 10.0
    check_threshold: Threshold = 3
    options: OtherKeys = {}


class FeedSection(msgspec.Struct, frozen=True, kw_only=True):
    """One ``[[farm.feed]]``. ``name``: what status and metrics call it, and its directory; "": that of the
    plugin. ``options``: all other keys, which are the plugin's."""

    plugin: PluginName
    name: OptionalName = ""
    options: OtherKeys = {}

    @property
    def reader(self) -> str:
        """``name``, or the plugin's where there is none."""
        return self.name or self.plugin


class FarmSection(msgspec.Struct, frozen=True, kw_only=True):
    """One ``[[farm]]``. ``router`` is the raw table, including ``plugin``; {} if there is none."""

    name: Name
    endpoint: DialUrl
    application: Name = "publisher"
    default_transport: Scheme = "ssl"
    secret_file: FilePath  # default: secrets/<name>.secret in the data directory
    algorithms: Algorithms = ("MD5", "SHA-256")
    raft: RaftSection
    retention: RetentionSection
    backup: BackupSection = BackupSection()
    router: PluginTable = {}
    meta: MetaSection
    leaf: tuple[LeafSection, ...] = ()
    publisher: tuple[PublisherSection, ...] = ()
    feed: tuple[FeedSection, ...] = ()

    def __post_init__(self) -> None:
        readers = [feed.reader for feed in self.feed]
        doubled = sorted({reader for reader in readers if readers.count(reader) > 1})
        if doubled:
            raise ConfigError(
                [f"feed: two feeds are called {reader}; give each a name of its own" for reader in doubled]
            )


class Origin(msgspec.Struct, frozen=True):
    """One value of the effective configuration and its source: ``file``, ``default``,
    ``preset clearnet``, or ``environment GARLICFARM_…``."""

    key: str
    value: Any
    source: str


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """The whole file. ``transport`` holds one raw table per scheme."""

    version: Version
    node: NodeSection
    log: LogSection
    admin: AdminSection
    listener: tuple[ListenerSection, ...]
    transport: PluginTables = {}
    notify: tuple[NotifySection, ...] = ()
    farm: tuple[FarmSection, ...]


class Config(Document, frozen=True, kw_only=True):
    """A checked configuration. ``path`` is its file; relative paths were resolved against ``base_dir``,
    except those in raw plugin tables."""

    path: Path
    base_dir: Path
    origins: tuple[Origin, ...]

    def effective(self) -> tuple[Origin, ...]:
        """Every value and its source, in the order of the tables."""
        return self.origins


PRESETS: dict[str, dict[str, float]] = {
    "clearnet": {
        "election_timeout_min_s": 1.0,
        "election_timeout_max_s": 1.5,
        "heartbeat_s": 0.3,
        "rpc_timeout_s": 3.0,
    },
    "i2p": {
        "election_timeout_min_s": 20.0,
        "election_timeout_max_s": 40.0,
        "heartbeat_s": 5.0,
        "rpc_timeout_s": 12.0,
    },
}

PRESET_LEAST_ELECTION_TIMEOUTS_S = {"i2p": 20.0}
"""The defaults of ``least_election_timeout_s``, where that leaves time for two heartbeats. In other presets
the election time-outs do not follow round trips."""

PRESET_INTERVALS_MS = {"clearnet": 5_000, "i2p": 30_000}
"""How often the members of a new farm post their statuses. R is the least that `least_R` of
`garlicfarm.publishing.lease` allows. In the farm the log has both; they are not read from here again."""

PRESET_RETIRE_TIMEOUTS_S = {"clearnet": 1.0, "i2p": 5.0}
"""How long a publisher may take to stop."""

PRESET_LEASES_MS = {"clearnet": 5_000, "i2p": 120_000}
"""How long a lease lasts in a new farm at level 2 or above (D24), or as long as `least_lease_ms` of
`garlicfarm.publishing.lease` asks for, if that is longer. In the farm the log has it."""
