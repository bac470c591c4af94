"""Join tokens: whole and unchanged or refused, and never shown; what a joining node is made of."""

from __future__ import annotations

import json
import stat
from base64 import urlsafe_b64encode
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from garlicfarm.config import load
from garlicfarm.credentials.join_token import JoinToken, check_expiry, decode_token, encode_token
from garlicfarm.credentials.member_credentials import read_secret_file
from garlicfarm.credentials.users import UserStore
from garlicfarm.errors import AuthError, ConfigError
from garlicfarm.levels import HIGHEST, algorithm_of
from garlicfarm.setup.provision import MemberPlan, create_joining_node, remove_node
from garlicfarm.storage import DataDirectory, LogStore

TOKEN = JoinToken(
    farm="barn",
    farm_id=bytes(range(16)),
    farm_secret=bytes(range(32)),
    application="log",
    algorithm=2,
    id=4,
    endpoints={1: "ssl://a.example:27150?pin=sha256-abc", 3: "ssl://c.example:27150"},
    expires_s=1000,
    preset="i2p",
    raft={"heartbeat_s": 0.5},
    retention={"keep_entries": 7},
    algorithms=("SHA-256",),
    master="A" * 516,
    epoch_length=70,
)


@given(
    farm_id=st.binary(min_size=16, max_size=16),
    secret=st.binary(min_size=32, max_size=32),
    member=st.integers(1, 2**31 - 1),
)
def test_token_written_and_read_is_the_same(farm_id: bytes, secret: bytes, member: int) -> None:
    token = msgspec.structs.replace(TOKEN, farm_id=farm_id, farm_secret=secret, id=member)
    text = encode_token(token)
    assert decode_token(f"\n {text} \n") == token
    assert text.isascii()
    assert not set(text) - set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


def test_token_cut_anywhere_is_refused() -> None:
    text = encode_token(TOKEN)
    for end in range(len(text)):
        with pytest.raises(ConfigError, match="not a join token, or only part of one"):
            decode_token(text[:end])


@pytest.mark.parametrize(
    "wrong",
    [
        {"farm": "../x"},
        {"farm_id": "AAAA"},
        {"farm_secret": "AAAA"},
        {"application": ""},
        {"id": 0},
        {"id": 2**31},
        {"endpoints": {}},
        {"endpoints": {"0": "ssl://a.example:1"}},
        {"expires_s": "soon"},
    ],
    ids=str,
)
def test_token_with_a_wrong_part_is_refused_without_telling_its_secret(wrong: dict[str, object]) -> None:
    body = {**json.loads(msgspec.json.encode(TOKEN)), **wrong}
    text = urlsafe_b64encode(json.dumps(body).encode()).decode()
    with pytest.raises(ConfigError) as refused:
        decode_token(text)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__


NESTED = [b"[" * 50_000, b'{"new":' + b"[" * 50_000, b'{"farm":"\xff"}']
TEXTS = ["", "é", "a b", "e30", "bnVsbA", "\0", "x" * 100_001]


@pytest.mark.parametrize("text", [*TEXTS, *(urlsafe_b64encode(data).decode() for data in NESTED)], ids=len)
def test_text_that_is_no_token_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not a join token"):
        decode_token(text)


@pytest.mark.parametrize("algorithm", [0, algorithm_of(HIGHEST) + 1])
def test_token_of_a_farm_with_another_version_of_the_algorithm_is_refused(algorithm: int) -> None:
    text = encode_token(msgspec.structs.replace(TOKEN, algorithm=algorithm))
    unknown = f"version {algorithm} of the common algorithm; this program has 2 to {algorithm_of(HIGHEST)}"
    with pytest.raises(ConfigError, match=unknown):
        decode_token(text)


def test_token_shown_tells_no_secret() -> None:
    assert repr(TOKEN) == str(TOKEN) == "JoinToken(farm='barn', id=4)"


def test_token_is_good_until_it_expires() -> None:
    check_expiry(TOKEN, 999.9)
    with pytest.raises(AuthError, match=r"expired at 1970-01-01 00:16:40 UTC; make another"):
        check_expiry(TOKEN, 1000.0)


def test_joining_node_has_the_farms_secret_and_no_configuration(tmp_path: Path) -> None:
    create_joining_node(tmp_path / "new", MemberPlan(endpoint="ssl://d.example:5"), TOKEN)
    config = load(tmp_path / "new" / "garlicfarm.toml", {})
    section = config.farm[0]
    assert (config.node.id, section.name, section.application) == (4, "barn", "log")
    assert (section.raft.heartbeat_s, section.raft.rpc_timeout_s) == (0.5, 12.0)
    assert (section.retention.keep_entries, section.meta.destination) == (7, "A" * 516)
    assert section.endpoint.startswith("ssl://d.example:5?pin=sha256-")
    assert read_secret_file(section.secret_file) == (TOKEN.farm_secret,)
    assert stat.S_IMODE(section.secret_file.stat().st_mode) == 0o600
    assert UserStore(config.node.data_dir / "users").list() == [("local", "admin")]
    with DataDirectory.open(config.node.data_dir) as data:
        assert data.node_id == 4
        with closing(LogStore.open(data.farm_directory("barn"), farm="barn")) as store:
            genesis = store.genesis
    assert (genesis.farm_id, genesis.application, genesis.algorithm) == (TOKEN.farm_id, "log", 2)
    assert (genesis.configuration, genesis.epoch_length) == (None, 70)


@pytest.mark.parametrize("present", ["garlicfarm.toml", "data"])
def test_joining_node_overwrites_nothing(tmp_path: Path, present: str) -> None:
    (tmp_path / present).write_text("mine")
    with pytest.raises(ConfigError, match="nothing was overwritten"):
        create_joining_node(tmp_path, MemberPlan(endpoint="ssl://d.example:5"), TOKEN)
    assert [path.name for path in tmp_path.iterdir()] == [present]
    assert (tmp_path / present).read_text() == "mine"


@pytest.mark.parametrize(
    ("endpoint", "why"),
    [
        ("ssl://0.0.0.0:5", "0.0.0.0 means all addresses"),
        ("ssl://d.example:0", "port 0 means any free port"),
        ("ssl://d.example:100000", "the port 100000 is larger than 65535"),
        (f"ssl://{'d' * 64}.example:5", "no host has this name: label (empty or )?too long"),
        (f"ssl://{'d.' * 127}example:5", "at most 253 characters, this one 261"),
        ("tcp://d.example:5", "names no transport"),
        ("d.example", "not of the form scheme://host:port"),
    ],
)
def test_joining_node_that_nobody_can_dial_is_not_made(tmp_path: Path, endpoint: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        create_joining_node(tmp_path, MemberPlan(endpoint=endpoint), TOKEN)
    assert list(tmp_path.iterdir()) == []


def test_removed_node_leaves_what_else_is_there(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("mine")
    create_joining_node(tmp_path, MemberPlan(endpoint="ssl://d.example:5"), TOKEN)
    remove_node(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
