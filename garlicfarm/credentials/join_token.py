"""Join tokens: what a new member needs to know of a farm, as one line of base64url. Each is for one id, which
is used once (D12).

A token holds the farm's secret, so anyone who reads it can pose as any member. The joining program checks its
expiry; only rotating the farm's secret revokes it.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec

from garlicfarm.agreed import EPOCH_LENGTH
from garlicfarm.config.model import Algorithms, Count, DialUrl, Name, NodeId, Preset
from garlicfarm.errors import AuthError, ConfigError
from garlicfarm.http.digest import ALGORITHMS
from garlicfarm.levels import unknown_algorithm

_LAST_DATE_S = 253_402_300_799  # of the year 9999
_EXAMPLE = "it is one line that `garlicfarm member token` printed"


class JoinToken(msgspec.Struct, frozen=True, kw_only=True):
    """``id`` is the new member's. ``endpoints``: id → endpoint of the members when the token was made.
    ``algorithm``: the version of the common algorithm, that of the farm's level.
    ``expires_s``: seconds since 1970. ``preset``, ``raft``, ``retention``, ``algorithms`` (of Digest),
    ``master`` and ``epoch_length`` are what all members share, as in
    `garlicfarm.setup.provision.FarmPlan`."""

    farm: Name
    farm_id: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    farm_secret: Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
    application: Name
    algorithm: int
    id: NodeId
    endpoints: Annotated[Mapping[NodeId, DialUrl], msgspec.Meta(min_length=1)]
    expires_s: Annotated[int, msgspec.Meta(ge=0, le=_LAST_DATE_S)]
    preset: Preset = "clearnet"
    raft: Mapping[str, Any] = {}
    retention: Mapping[str, Any] = {}
    algorithms: Algorithms = ALGORITHMS
    master: str = ""
    epoch_length: Count = EPOCH_LENGTH

    def __repr__(self) -> str:
        return f"JoinToken(farm={self.farm!r}, id={self.id})"  # no secret in a traceback


def encode_token(token: JoinToken) -> str:
    """The token as one line, without padding or line end."""
    return base64.urlsafe_b64encode(msgspec.json.encode(token)).rstrip(b"=").decode()


def decode_token(text: str) -> JoinToken:
    """The reverse of `encode_token`; surrounding white space is ignored.

    Raises `ConfigError`: this is not a join token, or one of a farm with another version of the common
    algorithm. The message does not quote it.
    """
    line = text.strip()
    try:
        data = base64.b64decode(line + "=" * (-len(line) % 4), altchars=b"-_", validate=True)
        token = msgspec.json.decode(data, type=JoinToken)
    except (binascii.Error, ValueError, RecursionError):
        # msgspec's errors and those of UTF-8 are ValueErrors. Not chained: they may quote the secret.
        raise ConfigError([f"this is not a join token, or only part of one; {_EXAMPLE}"]) from None
    if unknown := unknown_algorithm(token.algorithm):
        raise ConfigError([f"this join token is of {unknown}: install the program of the farm's members"])
    return token


def check_expiry(token: JoinToken, now_s: float) -> None:
    """Raises `AuthError`: the token has expired. ``now_s``: seconds since the epoch."""
    if now_s >= token.expires_s:
        when = datetime.fromtimestamp(token.expires_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        raise AuthError(
            f"the join token expired at {when}; make another with `garlicfarm member token` on a member's "
            "machine, or set this machine's clock"
        )
