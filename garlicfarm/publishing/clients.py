"""Which clients the farm's services serve: bans, and the access list (D25).

Both are orders of the log, so they hold at every member, whoever publishes. A *ban* has an end, or holds
until it is lifted. While the *access list* has an entry, only its clients are served. A client is named by
the hash of its destination; one that is on the list and banned is not served. The fold never reads a clock:
a ban that is over stays in the state until another order for clients comes, which drops those that ended
before farm time. Each member stops enforcing it by its own clock.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import Annotated, Any

import msgspec

from garlicfarm.errors import EntryRefused
from garlicfarm.i2p.destination import hash_of
from garlicfarm.i2p.encoding import b32_of_hash, decode_hash, encode
from garlicfarm.publishing.documents import U63
from garlicfarm.publishing.orders import ClientRules

ACTIONS = ("ban", "unban", "allow", "disallow")
MAX_LISTED = 4096
"""Bans and entries of the access list together: each member keeps them in memory, and each snapshot has
them."""

_LIST = "`garlicfarm publish clients` lists all"
EndMs = Annotated[int, msgspec.Meta(ge=0, lt=2**32 * 1000)]
"""The end of a ban; I2P writes dates as u32 seconds."""
_Hash = Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9~-]{42}[AEIMQUYcgkosw048]=$")]


class Listed(msgspec.Struct, frozen=True):
    """The order that put a client on a list: its user, its date (ms, of the accepting member) and index.
    ``until_ms``: the end of a ban, ms since 1970; None: until it is lifted."""

    by: str
    date: U63
    index: U63
    until_ms: EndMs | None = None


class Clients(msgspec.Struct, frozen=True):
    """The lists, by the hashes of destinations in I2P base64. Part of the snapshot."""

    banned: dict[_Hash, Listed] = {}
    allowed: dict[_Hash, Listed] = {}

    def __len__(self) -> int:
        return len(self.banned) + len(self.allowed)

    def lasting(self, now_ms: int) -> Clients:
        """Without the bans that are over at that date."""
        banned = {
            hash_: ban for hash_, ban in self.banned.items() if ban.until_ms is None or ban.until_ms > now_ms
        }
        return Clients(banned, self.allowed)

    def check(
        self, action: str, args: Mapping[str, Any], now_ms: int, own: Callable[[], Container[str]]
    ) -> None:
        """Whether an order for clients can be carried out. ``now_ms``: farm time. ``own``: the hashes of the
        farm's own destinations. Raises `EntryRefused`."""
        hash_ = args["hash"]
        if action == "unban" and hash_ not in self.banned:
            raise EntryRefused("config.admin.args.hash", "not banned", _LIST)
        if action == "disallow" and hash_ not in self.allowed:
            raise EntryRefused("config.admin.args.hash", "not on the access list", _LIST)
        if action == "ban":
            until_ms = args.get("until_ms")
            if until_ms is not None and until_ms <= now_ms:
                raise EntryRefused(
                    "config.admin.args.until_ms", "in the past", "by the clocks of the farm's members"
                )
            if hash_ in own():
                raise EntryRefused(
                    "config.admin.args.hash", "the farm's own", "name the destination of a client"
                )
        lasting = self.lasting(now_ms)
        grown = lasting.banned if action == "ban" else lasting.allowed
        if action in ("ban", "allow") and hash_ not in grown and len(lasting) >= MAX_LISTED:
            raise EntryRefused(
                "config.admin.args.hash",
                "too many",
                f"{MAX_LISTED} clients are listed at most: lift bans with `garlicfarm publish unban`",
            )

    def after(self, action: str, args: Mapping[str, Any], now_ms: int, listed: Listed) -> Clients:
        """The lists after a checked order; ``now_ms``: farm time."""
        lasting, hash_ = self.lasting(now_ms), args["hash"]
        changed = dict(lasting.banned if action in ("ban", "unban") else lasting.allowed)
        changed.pop(hash_, None)
        if action == "ban":
            changed[hash_] = msgspec.structs.replace(listed, until_ms=args.get("until_ms"))
        elif action == "allow":
            changed[hash_] = listed
        lists = (changed, lasting.allowed) if action in ("ban", "unban") else (lasting.banned, changed)
        return Clients(*(dict(sorted(each.items())) for each in lists))

    def rules(self) -> ClientRules:
        """The same for a publisher."""
        banned, allowed = (frozenset(map(decode_hash, each)) for each in (self.banned, self.allowed))
        return ClientRules(banned=banned, allowed=allowed)

    def next_end_ms(self) -> int | None:
        """When the next ban ends, ms since 1970; None: none does by itself."""
        return min((ban.until_ms for ban in self.banned.values() if ban.until_ms is not None), default=None)


NOBODY = Clients()


def hash_text(name: str) -> str:
    """The hash of a client in I2P base64, from any of its names: see `garlicfarm.i2p.destination.hash_of`.
    Raises `ValueError`."""
    return encode(hash_of(name))


def rows(policy: Mapping[str, Any], now_ms: int) -> list[dict[str, Any]]:
    """The clients that are banned at ``now_ms``, ms since 1970, or on the access list: from the body of ``GET
    …/policy``, ready for JSON."""
    return [
        {
            "client": b32_of_hash(decode_hash(hash_)),
            "is": name,
            "by": each["by"],
            "index": each["index"],
            "until_ms": each["until_ms"],
            "date_ms": each["date"],
        }
        for name, listed in policy.get("clients", {}).items()
        for hash_, each in listed.items()
        if each["until_ms"] is None or each["until_ms"] > now_ms
    ]
