"""Configurations and join tokens."""

from __future__ import annotations

import base64
import tempfile
from contextlib import suppress
from pathlib import Path

import msgspec

from garlicfarm.config import load
from garlicfarm.credentials.join_token import JoinToken, check_expiry, decode_token, encode_token
from garlicfarm.errors import AuthError, ConfigError
from tests.config.test_config_load import FULL, SMALLEST
from tests.fuzz.targets.base import FARM, GENESIS, KEY, MEMBERS, MEMORY, Target, choice


def config(data: bytes) -> None:
    """A configuration file, whatever its bytes."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as directory:
        path = Path(directory) / "garlicfarm.toml"
        path.write_bytes(data)
        with suppress(ConfigError):
            load(path, {})


def _config_seeds() -> list[bytes]:
    odd = 'version = 1\na.b."c" = [nan, 1979-05-27T07:32:00Z, {x = 0x1F}, """\ny"""]\n'
    return [SMALLEST.encode(), FULL.encode(), odd.encode()]


def token(data: bytes) -> None:
    """A join token: as text, or (after an odd byte) the JSON that the text spells."""
    kind, rest = choice(data, 2)
    text = base64.urlsafe_b64encode(rest).decode() if kind else rest.decode("utf-8", "replace")
    try:
        made = decode_token(text)
        assert decode_token(encode_token(made)) == made
        check_expiry(made, 1.8e9)
    except (AuthError, ConfigError):
        pass


def _token_seeds() -> list[bytes]:
    made = JoinToken(
        farm=FARM,
        farm_id=GENESIS.farm_id,
        farm_secret=KEY,
        application="publisher",
        algorithm=2,
        id=4,
        endpoints={server.id: server.endpoint for server in MEMBERS.servers},
        expires_s=1_700_000_000,
        raft={"heartbeat_s": 0.5},
    )
    later = msgspec.structs.replace(made, expires_s=1_900_000_000)
    seeds = [b"\x00" + encode_token(each).encode() for each in (made, later)]
    return seeds + [b"\x01" + msgspec.json.encode(each) for each in (made, later)]


TARGETS = {"config": Target(config, _config_seeds), "token": Target(token, _token_seeds)}
