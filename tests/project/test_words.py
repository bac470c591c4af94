"""Words that are gone: names that said too little or had two meanings, each with the one that took its place.

A word of `NAMES` must not come back as a Python name, since it is also a word of English. One of `WORDS` must
not come back anywhere, in code or prose.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLACES = (
    "garlicfarm",
    "transports",
    "plugins",
    "tests",
    "tools",
    "benchmarks",
    "examples",
    "docs",
    "README.md",
    "CONTRIBUTING.md",
)
SUFFIXES = {".css", ".html", ".js", ".json", ".md", ".py", ".sh", ".toml", ".txt", ".yaml"}

WORDS = {
    # net, http
    "Gatekeeper": "Authenticator",
    "dial_plain": "dial_without_handshake",
    # credentials, setup
    "further_farm": "add_farm",
    "read_master_key": "check_master_key",
    "sync_directory": "garlicfarm.durable_files.fsync_path",
    # storage
    "PlainIncoming": "JRaftSnapshotReceiver",
    "PlainOutgoing": "JRaftSnapshotSender",
    "garlicfarm.storage.incoming": "garlicfarm.storage.snapshot_receiver",
    "garlicfarm.storage.outgoing": "garlicfarm.storage.snapshot_sender",
    "took_snapshot": "on_snapshot_written",
    # publishing
    "garlicfarm.publishing.metals": "garlicfarm.publishing.meta_leaseset",
    "garlicfarm.publishing.records": "garlicfarm.publishing.fold_state",
    "garlicfarm.publishing.schema": "garlicfarm.publishing.validation",
    "garlicfarm.publishing.base64": "garlicfarm.publishing.i2p_base64",
    "VALIDITY_VERSION": "ALGORITHM_VERSION",
    # config
    "garlicfarm.config.forms": "garlicfarm.config.validators",
    # client
    "distrust": "certificate_error",
    # lab
    "Attendant": "LineServer",
    "why_it_fails": "startup_error",
    # testing
    "FarmSimulation": "PublisherSimulation",
    "KeptWord": "PersistentVote",
    "kept_word": "persistent_vote",
    "Misfortune": "FaultInjector",
    # plugins
    "MAX_BATCH_BYTES": "nothing: it was never kept",
}

NAMES = {
    "Gate": "FarmCredentials",
    "gates": "credentials",
    "Guard": "HandshakeLimiter",
    "Incoming": "SnapshotReceiver",
    "Outgoing": "SnapshotSender",
    "Weather": "NetworkFaults (simulator), LinkFaults (lab)",
    "World": "Scheduler",
    "attendant": "line_server",
    "metals": "meta_leaseset",
    "story": "trace_text",
    "weather": "faults",
}


_ANY_WORD = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, WORDS))})(?!\w)")


def files() -> Iterator[Path]:
    for place in PLACES:
        path = ROOT / place
        for found in [path] if path.is_file() else sorted(path.rglob("*")):
            parts = found.relative_to(ROOT).parts
            if found.suffix in SUFFIXES and parts[:2] != ("tests", "data") and found != Path(__file__):
                yield found


def words_in(text: str) -> set[str]:
    """The words of `WORDS` that a text holds, each as a whole word."""
    anyone = re.compile(
        rf"(?<![\w.])(?:{'|'.join(map(re.escape, sorted(WORDS, key=len, reverse=True)))})(?!\w)"
    )
    return set(anyone.findall(text))


def names_in(source: str) -> set[str]:
    """The words of `NAMES` that are names in Python source."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return NAMES.keys() & {token.string for token in tokens if token.type == tokenize.NAME}


@pytest.mark.parametrize("place", PLACES)
def test_no_word_that_is_gone_is_back(place: str) -> None:
    found = []
    for path in files():
        if path.relative_to(ROOT).parts[0] != place:
            continue
        text = path.read_text(encoding="utf-8")
        gone = {word: WORDS[word] for word in words_in(text)}
        if path.suffix == ".py":
            gone |= {name: NAMES[name] for name in names_in(text)}
        found += [f"{path.relative_to(ROOT)}: {word} is now {new}" for word, new in sorted(gone.items())]
    assert found == []


def test_words_are_found_whole_and_names_in_code_alone() -> None:
    assert words_in("the KeptWord of `garlicfarm.storage.incoming.x`") == {
        "KeptWord",
        "garlicfarm.storage.incoming",
    }
    assert words_in("KeptWords, mykept_word, myWeather") == set()
    assert names_in("# the weather\nx = World().story") == {"World", "story"}


def test_every_place_is_looked_into() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in files()} == set(PLACES)
