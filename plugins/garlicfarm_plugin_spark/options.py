"""The options of the source: their names, defaults and values. All problems are reported at once.

Spark passes names in lower case, and values as text. The meaning of each: docs/reference/spark.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from garlicfarm.errors import ConfigError
from garlicfarm.names import FARM_NAME_RULE, did_you_mean, is_farm_name

if TYPE_CHECKING:
    from garlicfarm.client.trust import NodeAccess

MAX_ENTRIES = 20_000

_OF_NODES = ("url", "user", "passwordFile", "pin", "ca", "application")
_OF_ALL = ("farm", "startingIndex", "failOnDataLoss", "minPartitions")
_OF_STREAMS = ("maxEntriesPerTrigger", "maxBytesPerTrigger", "query")
_OF_BATCHES = ("endingIndex", "pushdown")
OPTIONS = (*_OF_NODES, *_OF_ALL, *_OF_STREAMS, *_OF_BATCHES)
"""All names; and ``url.NAME``, where NAME is a farm."""
DEFAULTS: Mapping[str, str] = {
    "startingIndex": "earliest",
    "endingIndex": "latest",
    "maxEntriesPerTrigger": str(MAX_ENTRIES),
    "maxBytesPerTrigger": "64m",
    "minPartitions": "1",
    "failOnDataLoss": "true",
    "pushdown": "false",
}

Start = Literal["earliest", "latest", "state"] | int
"""The first index to read; −n: the newest n."""

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_LONG = 2**63


@dataclass(frozen=True, slots=True)
class FarmsOfNodes:
    """``farms`` of ``nodes``; None: all that they have and that run ``application`` (None: any)."""

    nodes: NodeAccess
    farms: tuple[str, ...] | None
    application: str | None = None


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Checked options. ``end``: the last index of a batch query; None: the newest. ``strict``: whether the
    query ends where entries were deleted before it read them. ``query``: the name under which the source
    reports what was read; None: it does not report. ``given``: the names of the options that were given."""

    sources: tuple[FarmsOfNodes, ...]
    start: Start
    end: int | None
    max_entries: int
    max_bytes: int
    min_partitions: int
    strict: bool
    pushdown: bool
    query: str | None
    given: frozenset[str]

    def check_use(self, *, stream: bool) -> None:
        """Raises `ConfigError`: an option is for the other kind of query. At ``load()`` Spark does not say
        which kind it will be."""
        wrong = [name for name in (_OF_BATCHES if stream else _OF_STREAMS) if name in self.given]
        kind, other = ("readStream", "read") if stream else ("read", "readStream")
        problems = [f"{name} is for spark.{other}, not spark.{kind}: leave it out" for name in wrong]
        if not stream:
            if self.start == "latest":
                problems.append("startingIndex is latest, and spark.read would read nothing: name an index")
            if self.pushdown and self.start == "state":
                problems.append(
                    "pushdown filters indexes, and a state stands for many: startingIndex is state"
                )
            if isinstance(self.start, int) and self.end is not None and self.end < self.start:
                problems.append(f"endingIndex {self.end} is before startingIndex {self.start}")
        if problems:
            raise ConfigError(problems)


def read_options(options: Mapping[str, str]) -> SourceOptions:
    """The options of one query, by name in any case.

    Raises `ConfigError` (the user's fault) with everything that is missing, unknown or wrong.
    """
    return _SourceOptions(options, OPTIONS).read()


class GivenOptions:
    """Reads options by name, in any case. ``problems``: what is wrong with those that were read, and those of
    other names than ``names``, but for ``ignored``. ``urls``: those of ``url.NAME``, by NAME in lower case as
    Spark passes it."""

    def __init__(
        self, options: Mapping[str, str], names: Collection[str], ignored: Collection[str] = ()
    ) -> None:
        self.problems: list[str] = []
        self.values: dict[str, str] = {}
        self.urls: dict[str, tuple[str, ...]] = {}
        known = {name.lower(): name for name in names}
        for key, value in options.items():
            name = known.get(key.lower())
            if name is not None:
                self.values[name] = value.strip()
            elif key.lower().startswith("url."):
                self.urls[key[len("url.") :].lower()] = tuple(value.split())
            elif key.lower() not in ignored:
                self.problems.append(f"the option {key} is unknown{did_you_mean(key, names)}")

    def check(self) -> None:
        """Raises `ConfigError`: there are problems."""
        if self.problems:
            raise ConfigError([*dict.fromkeys(self.problems)])

    def text(self, name: str) -> str:
        value = self.values.get(name, "")
        if not value:
            self.problems.append(f"the option {name} is missing")
        return value

    def flag(self, name: str) -> bool:
        text = self.values.get(name, DEFAULTS[name]).lower()
        if text not in ("true", "false"):
            self.problems.append(f"{name} is {text!r}, not true or false")
        return text == "true"

    def name(self, option: str) -> str | None:
        value = self.values.get(option)
        if value is not None and not is_farm_name(value):
            self.problems.append(f"{option} is {value!r}, not {FARM_NAME_RULE}")
        return value

    def access(self, urls: Iterable[str]) -> NodeAccess:
        """The nodes at these URLs."""
        from garlicfarm.client.trust import NodeAccess, node_address, pin_digest  # imports ssl: too slow

        urls = tuple(urls)
        pin, ca = self.values.get("pin"), self.values.get("ca")
        for url in urls:
            self._check(node_address, url)
        if pin is not None:
            self._check(pin_digest, pin)
        user, file = self.text("user"), Path(self.text("passwordFile"))
        return NodeAccess(urls, user, file, pin, None if ca is None else Path(ca))

    def _check(self, rule: Callable[[str], object], text: str) -> None:
        try:
            rule(text)
        except ConfigError as error:
            self.problems += error.problems


class _SourceOptions(GivenOptions):
    def read(self) -> SourceOptions:
        found = SourceOptions(
            sources=self._nodes(),
            start=self._start(),
            end=self._end(),
            max_entries=self._number("maxEntriesPerTrigger"),
            max_bytes=self._bytes("maxBytesPerTrigger"),
            min_partitions=self._number("minPartitions"),
            strict=self.flag("failOnDataLoss"),
            pushdown=self.flag("pushdown"),
            query=self.name("query"),
            given=frozenset(self.values),
        )
        several = len(found.sources) > 1 or any(len(each.farms or ()) != 1 for each in found.sources)
        for name, value in (("startingIndex", found.start), ("endingIndex", found.end)):
            if isinstance(value, int) and value > 0 and several:
                self.problems.append(f"{name} is an index of one farm, and the option farm names several")
        self.check()
        return found

    def _nodes(self) -> tuple[FarmsOfNodes, ...]:
        names = tuple(dict.fromkeys(self.values.get("farm", "").replace(",", " ").split()))
        if not names:
            self.problems.append("the option farm is missing")
        every = names == ("*",)
        if not every:
            self.problems += [
                f"farm names {name!r}, and a farm's name has {FARM_NAME_RULE}"
                for name in names
                if not is_farm_name(name)
            ]
        own = {name: self.urls[name.lower()] for name in names if name.lower() in self.urls}
        for name in sorted(self.urls.keys() - {name.lower() for name in own}):
            self.problems.append(f"url.{name} is for a farm that the option farm does not name")
        for name in own:
            if any(name != other and name.lower() == other.lower() for other in names):
                self.problems.append(
                    f"url.{name} is for each farm of that name in any case, as options are: give url for them"
                )
        common = tuple(name for name in names if name not in own)
        groups: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
        if common or not own:
            groups.append((tuple(self.text("url").split()), common))
        groups += [(urls, (name,)) for name, urls in own.items()]
        application = self.values.get("application")
        if application is not None and not every:
            self.problems.append("application selects farms, and the option farm names them: leave it out")
        found = [
            FarmsOfNodes(self.access(urls), None if every else farms, application) for urls, farms in groups
        ]
        return () if self.problems else tuple(found)

    def _start(self) -> Start:
        text = self.values.get("startingIndex", DEFAULTS["startingIndex"])
        match text:
            case "earliest" | "latest" | "state":
                return text
        if re.fullmatch("-?[0-9]{1,19}", text) and 0 < abs(int(text)) < _LONG:
            return int(text)
        self.problems.append(
            f"startingIndex is {text!r}, not earliest, latest, state, an index from 1, or -N for the newest N"
        )
        return "earliest"

    def _end(self) -> int | None:
        text = self.values.get("endingIndex", DEFAULTS["endingIndex"])
        if text == "latest":
            return None
        if re.fullmatch("[0-9]{1,19}", text) and 0 < int(text) < _LONG:
            return int(text)
        self.problems.append(f"endingIndex is {text!r}, not latest or an index from 1")
        return None

    def _number(self, name: str) -> int:
        text = self.values.get(name, DEFAULTS[name])
        if re.fullmatch("[0-9]{1,9}", text) and int(text):
            return int(text)
        self.problems.append(f"{name} is {text!r}, not a number from 1 to 999999999")
        return 1

    def _bytes(self, name: str) -> int:
        text = self.values.get(name, DEFAULTS[name])
        match = re.fullmatch("([0-9]{1,12})([kmg]?)b?", text.lower())
        if match and int(match[1]):
            return int(match[1]) * _UNITS[match[2]]
        self.problems.append(
            f"{name} is {text!r}, not a number of bytes from 1, such as 67108864, 65536k or 64m"
        )
        return 1
