"""Entries of a farm: encoded once by their author, and checked by one rule everywhere.

**The validity rule.** It is part of the common algorithm, whose version belongs to the farm's level
(`garlicfarm.levels.algorithm_of`). An entry is valid in the farm ``farm`` if

* its bytes are a JSON object as `strict_json` says, and its known keys have the types and bounds of
  `documents` as `validation` says: ``cluster``, ``date`` and ``id`` must be there, the rest may be absent;
* ``cluster`` is the farm's name, and ``date`` is below 2**32 seconds, the limit of I2P's dates;
* ``meta.destination`` and each ``destinations[].destination`` is a destination in I2P base64 (387
  bytes or more, as long as its certificate says), none of the latter twice; ``lastPublishedLS`` and
  ``lastPublishedRI`` are I2P base64; each ``hash`` is I2P base64 of 32 bytes;
* below level 3, ``configuredTunnels`` and ``currentTunnels`` have both directions, and `LATER_KEYS` are
  unknown ones;
* ``config.node``, where present, is a `NodeReport`, since level 2 a `BootedReport`, since level 3 a
  `SensingReport` and since level 4 a `ComparingReport`, its ``interval_ms`` 1,000 … 3,600,000 and its ``R``
  3 … 1,000; its ``tests`` name no member twice, its ``transients`` are at most 16, of 16 hexadecimal digits
  each (lower case), its ``leaseSet`` is I2P base64 of at most 1,024 bytes, each ``control`` I2P base64 of 32
  bytes, and ``state`` and ``chain`` of its ``digests`` are 32 hexadecimal digits each (lower case).

It is then one of three kinds (D16 has administrative entries, D18 the authors):

* with ``config.admin``: an *administrative* entry, as `administration` says; ``id`` ≥ 1;
* else with ``id`` ≥ 1: a *status* of that member;
* else a *note* of the user ``config.by`` (1 … 64 characters); the fold only deduplicates notes.

The author is checked where the entry is posted, since a committed entry no longer shows its connection:
member ``author`` ≥ 1 posts ``id`` = author, or forwards ``id`` 0; all others post ``id`` 0. `parse_entry`
checks the rules above there and at apply. The other checks where an entry is posted
(`admission.check_posted`) do not make a committed entry invalid. Reasons are a fixed set of short
phrases, by which servers count skipped entries.
"""

from __future__ import annotations

from functools import partial

import msgspec

from garlicfarm.digests import DIGEST_DIGITS
from garlicfarm.errors import EntryRefused
from garlicfarm.i2p.destination import destination_hash
from garlicfarm.i2p.encoding import decode, decode_hash
from garlicfarm.levels import COMPARING, HIGHEST, LEASES, OUTSIDE
from garlicfarm.publishing import scoring
from garlicfarm.publishing.administration import FINDINGS, Admin, check_by, parse_admin
from garlicfarm.publishing.documents import (
    LATER_KEYS,
    MAX_LEASE_SET_BYTES,
    BootedReport,
    BothWays,
    ComparingReport,
    DestinationStatus,
    DigestReport,
    MemberTest,
    NodeReport,
    OutsideReport,
    SensingReport,
    StatusDocument,
    Tunnels,
)
from garlicfarm.publishing.strict_json import decode_object
from garlicfarm.publishing.validation import Checker, at, checker

DATE_END_MS = 2**32 * 1000
"""every ``date`` is earlier: I2P writes dates as u32 seconds"""


class Leaf(msgspec.Struct, frozen=True):
    """A leaf destination that a status reports and that is usable (D13, missing figures): its tunnels are not
    reported, or those that are reported are above 0. ``expires_ms``: its LeaseSet's end, if reported."""

    hash: bytes
    expires_ms: int | None


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """A valid status: the document, its ``config.node``, its usable leaves, the figures that its score
    depends on, the parts of the score below level 3, the number of its author's process (D24), 0: not named,
    what its author's tests have shown, the hash of a destination at which it answers tests (D25), and the
    digests of what its author holds (D26)."""

    entry: bytes
    document: StatusDocument
    node: NodeReport
    leaves: tuple[Leaf, ...]
    figures: scoring.Figures
    parts: dict[str, int | None]
    boot: int = 0
    outside: OutsideReport | None = None
    control: bytes | None = None
    digests: DigestReport | None = None

    @property
    def date(self) -> int:
        return self.document.date

    @property
    def publishing(self) -> bool | None:
        """``meta.publishing``; None: not reported."""
        meta = self.document.meta
        return None if meta is None else meta.publishing


class Note(msgspec.Struct, frozen=True):
    """A valid note of a user."""

    by: str
    date: int
    sequence: int | None


class Administrative(msgspec.Struct, frozen=True):
    """A valid administrative entry, accepted by member ``id``."""

    id: int
    date: int
    sequence: int | None
    admin: Admin


Entry = Status | Administrative | Note


class Refused(msgspec.Struct, frozen=True):
    """An entry that is not valid, for a ``reason`` out of the fixed set."""

    reason: str


Observation = Entry | Refused
"""What a committed entry says, by the validity rule alone: the same in every state of a farm."""


class _By(msgspec.Struct):
    by: str


def _check_lease_set(text: str) -> None:
    if len(decode(text)) > MAX_LEASE_SET_BYTES:
        raise ValueError("too large")


def _check_transient(text: str) -> None:
    _check_digits(text, 16)


def _check_digest(text: str) -> None:
    _check_digits(text, DIGEST_DIGITS)


def _check_digits(text: str, count: int) -> None:
    if len(text) != count or not {*text} <= {*"0123456789abcdef"}:
        raise ValueError(f"not {count} hexadecimal digits")


_TEXT_RULES = {
    "hash": decode_hash,
    "lastPublishedLS": decode,
    "lastPublishedRI": decode,
}
_check_document = checker(StatusDocument, _TEXT_RULES)
_check_both_ways = checker(StatusDocument, _TEXT_RULES, {Tunnels: BothWays})
_NODE_RULES = {
    "chain": _check_digest,
    "control": decode_hash,
    "leaseSet": _check_lease_set,
    "state": _check_digest,
    "transients": _check_transient,
}
_check_node = checker(NodeReport, _NODE_RULES)
_check_booted_node = checker(BootedReport, _NODE_RULES)
_check_sensing_node = checker(SensingReport, _NODE_RULES)
_check_comparing_node = checker(ComparingReport, _NODE_RULES)
_check_config_by = checker(_By, {"by": check_by})


def parse_entry(entry: bytes, farm: str, level: int) -> Entry:
    """Check and decode an entry, by the rule of a farm's level. Raises `EntryRefused` (its author's fault)
    with the field and the reason."""
    tree = decode_object(entry)
    if level < OUTSIDE:
        _drop_later_keys(tree)
        _check_both_ways(tree)
    else:
        _check_document(tree)
    document = msgspec.convert(tree, StatusDocument)
    if document.cluster != farm:
        raise EntryRefused("cluster", "another cluster")
    if document.date >= DATE_END_MS:
        raise EntryRefused("date", "out of range")
    if document.meta is not None and document.meta.destination is not None:
        _destination("meta.destination", document.meta.destination)
    leaves = _leaves(document.destinations or ())
    config = document.config or {}
    node, more = NodeReport(), ComparingReport()
    if config.get("node") is not None:
        at("config.node", _node_checker(level), config["node"])
        node = msgspec.convert(config["node"], NodeReport)
        if level >= LEASES:
            own = msgspec.convert(config["node"], _node_type(level))
            more = ComparingReport(**msgspec.structs.asdict(own))
        _check_tests(node.tests or ())
    if config.get("admin") is not None:
        admin = at("config.admin", partial(parse_admin, level=level), config["admin"])
        if document.id == 0:
            raise EntryRefused("id", "not a member's")
        return Administrative(document.id, document.date, document.sequence, admin)
    if document.id == 0:
        at("config", _check_config_by, config)
        return Note(str(config["by"]), document.date, document.sequence)
    return Status(
        entry=entry.strip(),
        document=document,
        node=node,
        leaves=leaves,
        figures=scoring.figures(document, node),
        parts=scoring.parts(document, node),
        boot=more.boot or 0,
        outside=more.outside,
        control=None if more.control is None else decode_hash(more.control),
        digests=more.digests,
    )


def _node_type(level: int) -> type[BootedReport]:
    if level >= COMPARING:
        return ComparingReport
    return SensingReport if level >= OUTSIDE else BootedReport


def _node_checker(level: int) -> Checker:
    if level >= COMPARING:
        return _check_comparing_node
    if level >= OUTSIDE:
        return _check_sensing_node
    return _check_booted_node if level >= LEASES else _check_node


def observe(entry: bytes, farm: str, level: int, term: int) -> Observation:
    """What an entry says that is committed with this term in a farm at this level. The costly half of a
    fold: many folds may share its result."""
    try:
        parsed = parse_entry(entry, farm, level)
    except EntryRefused as refused:
        return Refused(refused.reason)
    if isinstance(parsed, Administrative) and parsed.admin.action in FINDINGS:
        return parsed if parsed.admin.args["term"] == term else Refused("another term")
    return parsed


def _drop_later_keys(tree: dict[str, object]) -> None:
    for place, later in LATER_KEYS.items():
        found = tree.get(place)
        for one in found if isinstance(found, list) else [found]:
            if isinstance(one, dict):
                for key in later:
                    one.pop(key, None)


def _destination(path: str, text: str) -> bytes:
    try:
        return destination_hash(text)
    except ValueError as error:
        raise EntryRefused(path, str(error)) from None


def _leaves(destinations: tuple[DestinationStatus, ...]) -> tuple[Leaf, ...]:
    seen: set[bytes] = set()
    usable = []
    for place, one in enumerate(destinations):
        hash_ = _destination(f"destinations[{place}].destination", one.destination)
        if hash_ in seen:
            raise EntryRefused(f"destinations[{place}].destination", "named twice")
        seen.add(hash_)
        tunnels = one.current_tunnels
        if tunnels is None or 0 not in (tunnels.in_, tunnels.out):
            usable.append(Leaf(hash_, one.lease_set_expires))
    return tuple(usable)


def _check_tests(tests: tuple[MemberTest, ...]) -> None:
    seen: set[int] = set()
    for place, test in enumerate(tests):
        if test.member in seen:
            raise EntryRefused(f"config.node.tests[{place}]", "named twice")
        seen.add(test.member)


def check_author(entry: Entry, author: int) -> None:
    """Check that ``author``, the member id of the connection or 0 for users and raw clients, may post it: a
    member under its own id, and anyone a note under 0 (D18).

    Raises `EntryRefused` for ``id``.
    """
    if isinstance(entry, Note):
        return
    named = entry.document.id if isinstance(entry, Status) else entry.id
    if named != author:
        raise EntryRefused("id", "not the poster's id")


def encode_status(document: StatusDocument) -> bytes:
    """A status as the bytes that travel and are stored, keys in the order of `documents`.

    Equal documents give equal bytes. Raises `EntryRefused` (our fault: a value from a router plugin or the
    configuration that no server would accept).
    """
    return _encode(document)


def encode_admin(
    cluster: str,
    date_ms: int,
    id: int,
    sequence: int | None,
    action: str,
    by: str,
    args: dict[str, object],
) -> bytes:
    """An administrative entry that member ``id`` ≥ 1 accepted from user ``by`` at ``date_ms``.

    Raises `EntryRefused` (the user's fault) for an unknown action or arguments out of range.
    """
    admin = {"action": action, "by": by, "args": args}
    return _encode(
        StatusDocument(cluster=cluster, date=date_ms, id=id, sequence=sequence, config={"admin": admin})
    )


def _encode(document: StatusDocument) -> bytes:
    entry = msgspec.json.encode(document, order="deterministic")
    parse_entry(entry, document.cluster, HIGHEST)
    return entry
