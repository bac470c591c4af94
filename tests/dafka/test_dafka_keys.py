"""CURVE keys, the known peers, and the ZAP handler that admits them."""

from __future__ import annotations

from pathlib import Path

import pytest
from zmq.utils import z85

from garlicfarm.errors import ConfigError
from garlicfarm_plugin_dafka.codec import Ack, DirectTail, Record
from garlicfarm_plugin_dafka.keys import (
    MAY_SEND,
    MAY_SUBSCRIBE,
    KnownPeer,
    PeerRole,
    create_key,
    read_key,
    read_known_peers,
)
from garlicfarm_plugin_dafka.zap import zap_answer

KEY = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
OTHER = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"


def problems_of(path: Path) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        read_known_peers(path)
    return caught.value.problems


def test_a_key_is_made_once_and_private(tmp_path):
    file = tmp_path / "keys" / "node.key"
    made = create_key(file)
    assert read_key(file) == made
    assert file.stat().st_mode & 0o777 == 0o600
    assert len(made.public) == len(made.secret) == 40
    assert made.secret not in repr(made)
    with pytest.raises(ConfigError, match="never overwritten"):
        create_key(file)
    file.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_key(file)


@pytest.mark.parametrize("text", ["", KEY[1:], KEY[:-1] + ",", "#" * 40, "ä" * 40])
def test_a_file_without_a_key_is_refused(tmp_path, text):
    file = tmp_path / "node.key"
    file.write_text(text, encoding="utf-8")
    file.chmod(0o600)
    with pytest.raises(ConfigError, match="holds no CURVE key"):
        read_key(file)


def test_known_peers_are_read_by_their_keys(tmp_path):
    file = tmp_path / "peers.toml"
    file.write_text(
        f"""
        [store-1]
        key = "{KEY}"
        roles = ["store"]
        [both]
        key = "{OTHER}"
        roles = ["producer", "consumer"]
        """
    )
    assert read_known_peers(file) == {
        KEY: KnownPeer("store-1", KEY, frozenset({PeerRole.STORE})),
        OTHER: KnownPeer("both", OTHER, frozenset({PeerRole.PRODUCER, PeerRole.CONSUMER})),
    }


def test_every_problem_of_a_file_of_known_peers_is_named(tmp_path):
    file = tmp_path / "peers.toml"
    file.write_text(
        f'''
        a = 1
        [b]
        key = "{KEY}"
        [c]
        key = "short"
        roles = ["store"]
        [d]
        key = "{KEY}"
        roles = []
        [e]
        key = "{KEY}"
        roles = ["storage"]
        [f]
        key = "{KEY}"
        roles = ["store"]
        [g]
        key = "{KEY}"
        roles = ["store"]
        '''
    )
    problems = problems_of(file)
    assert len(problems) == 6
    for name, problem in zip("abcdeg", problems, strict=True):
        assert f"[{name}]" in problem
    assert problems[-1].endswith("f has the same key")
    file.write_text("no TOML")
    assert "is not TOML" in problems_of(file)[0]
    file.write_bytes(b"\xff")
    assert "is not TOML" in problems_of(file)[0]
    file.write_text("# " * (1 << 20))
    assert "is larger than" in problems_of(file)[0]
    assert "cannot be read" in problems_of(tmp_path / "none")[0]


def test_only_stores_acknowledge_and_only_producers_publish():
    assert {role for role in PeerRole if Ack in MAY_SEND[role]} == {PeerRole.STORE}
    assert {role for role in PeerRole if Record in MAY_SEND[role]} == {PeerRole.PRODUCER}
    assert {role for role in PeerRole if Record in MAY_SUBSCRIBE[role]} == {PeerRole.CONSUMER, PeerRole.STORE}
    assert {role for role in PeerRole if DirectTail in MAY_SUBSCRIBE[role]} == {
        PeerRole.CONSUMER,
        PeerRole.STORE,
    }
    both = KnownPeer("both", KEY, frozenset({PeerRole.PRODUCER, PeerRole.CONSUMER}))
    assert both.may_send == MAY_SEND[PeerRole.PRODUCER] | MAY_SEND[PeerRole.CONSUMER]
    assert both.may_subscribe == MAY_SUBSCRIBE[PeerRole.PRODUCER] | MAY_SUBSCRIBE[PeerRole.CONSUMER]


def request(**fields: bytes) -> list[bytes]:
    frames = {
        "version": b"1.0",
        "number": b"7",
        "domain": b"dafka/12",
        "address": b"",
        "identity": b"",
        "mechanism": b"CURVE",
        "key": z85.decode(KEY),
    }
    return list((frames | fields).values())


KNOWN = {KEY: KnownPeer("store-1", KEY, frozenset({PeerRole.STORE}))}
ADMITTED = [b"1.0", b"7", b"200", b"OK", b"12", b""]


class Door:
    """Notes what the handler asks of the entrance."""

    def __init__(self, *, has_place: bool = True) -> None:
        self.has_place = has_place
        self.admitted: list[tuple[str, str]] = []
        self.refused: list[tuple[str, str]] = []

    def admit(self, number: str, key: str) -> bool:
        self.admitted.append((number, key))
        return self.has_place

    def refuse(self, number: str, key: str) -> None:
        self.refused.append((number, key))


def test_a_known_key_is_admitted_and_the_connection_becomes_the_user():
    door = Door()
    assert zap_answer(request(), KNOWN, door.admit, door.refuse) == ADMITTED
    assert (door.admitted, door.refused) == ([("12", KEY)], [])


def test_without_keys_connections_in_the_clear_are_admitted_and_no_others():
    door = Door()
    assert zap_answer(request(mechanism=b"NULL")[:-1], None, door.admit, door.refuse) == ADMITTED
    assert zap_answer(request(), None, door.admit, door.refuse)[2] == b"400"
    assert door.admitted == [("12", "")]


def test_a_known_key_without_a_place_is_not_admitted_and_not_called_unknown():
    door = Door(has_place=False)
    assert zap_answer(request(), KNOWN, door.admit, door.refuse)[2] == b"400"
    assert door.refused == []


@pytest.mark.parametrize(
    ("frames", "key"),
    [
        (request(key=z85.decode(OTHER)), OTHER),
        (request(key=z85.decode(OTHER), address=b"\xff"), OTHER),
        (request(mechanism=b"PLAIN"), ""),
        (request(mechanism=b"NULL")[:-1], ""),
        (request(domain=b"global"), ""),
        (request(domain=b"dafka/"), ""),
        (request(version=b"2.0"), ""),
        (request(key=b"short"), ""),
        ([b"1.0"], ""),
        ([], ""),
    ],
)
def test_everything_else_is_refused(frames, key):
    door = Door()
    answer = zap_answer(frames, KNOWN, door.admit, door.refuse)
    assert answer[2] == b"400"
    assert answer[4] == b""
    assert [each[1] for each in door.refused] == [key]
    assert door.admitted == []
