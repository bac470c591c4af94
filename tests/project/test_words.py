"""Words that are gone: names that said too little or had two meanings, each with the one that took its place.

A word of `NAMES` must not come back as a Python name, since it is also a word of English. One of `WORDS` must
not come back anywhere, in code or prose. No module of `MODULES` may exist, or be named by dots or path.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterable, Iterator
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

MODULES = {
    # The top: each of these has a room now.
    "garlicfarm.admission": "garlicfarm.net.admission",
    "garlicfarm.attempts": "garlicfarm.credentials.login_attempts",
    "garlicfarm.certificates": "garlicfarm.credentials.certificates",
    "garlicfarm.further_farm": "garlicfarm.setup.add_farm",
    "garlicfarm.handshake": "garlicfarm.net.handshake",
    "garlicfarm.i2p_tunnel": "garlicfarm.setup.i2p_tunnel",
    "garlicfarm.identity": "garlicfarm.credentials.member_credentials, garlicfarm.credentials.private_files",
    "garlicfarm.link": "garlicfarm.net.link",
    "garlicfarm.master_key": "garlicfarm.credentials.destination_keys",
    "garlicfarm.provision": "garlicfarm.setup.provision",
    "garlicfarm.recovery": "garlicfarm.setup.recovery",
    "garlicfarm.tcp": "garlicfarm.net.tcp",
    "garlicfarm.token": "garlicfarm.credentials.join_token",
    "garlicfarm.users": "garlicfarm.credentials.users",
    # publishing
    "garlicfarm.farm": "garlicfarm.publishing",
    "garlicfarm.farm.base64": "garlicfarm.i2p.encoding",
    "garlicfarm.farm.explain": "garlicfarm.publishing.ranking",
    "garlicfarm.farm.log": "garlicfarm.log_application",
    "garlicfarm.farm.metals": "garlicfarm.publishing.meta_leaseset",
    "garlicfarm.farm.ranking": "garlicfarm.publishing.scoring",
    "garlicfarm.farm.records": "garlicfarm.publishing.fold_state",
    "garlicfarm.farm.schema": "garlicfarm.publishing.validation",
    "garlicfarm.farm.state": "garlicfarm.publishing.fold",
    "garlicfarm.farm.status": "garlicfarm.publishing.entries",
    "garlicfarm.publishing.base64": "garlicfarm.i2p.encoding",
    "garlicfarm.publishing.i2p_base64": "garlicfarm.i2p.encoding, garlicfarm.i2p.destination",
    "garlicfarm.publishing.metals": "garlicfarm.publishing.meta_leaseset",
    "garlicfarm.publishing.records": "garlicfarm.publishing.fold_state",
    "garlicfarm.publishing.schema": "garlicfarm.publishing.validation",
    # cli, config, feed
    "garlicfarm.cli.lazy": "garlicfarm.cli.command_group",
    "garlicfarm.config.forms": "garlicfarm.config.validators",
    "garlicfarm.feed.records": "garlicfarm.feed.binary_format",
    # node
    "garlicfarm.node.farm": "garlicfarm.node.replica",
    "garlicfarm.node.handover": "garlicfarm.node.publisher.handover",
    "garlicfarm.node.members": "garlicfarm.node.membership",
    "garlicfarm.node.poster": "garlicfarm.node.publisher.status_reporter",
    "garlicfarm.node.posting": "garlicfarm.node.proposals",
    "garlicfarm.node.reading": "garlicfarm.node.read_index",
    "garlicfarm.node.view": "garlicfarm.node.admin_view",
    # raft
    "garlicfarm.raft.appended": "garlicfarm.raft.append_checks",
    "garlicfarm.raft.candidacy": "garlicfarm.raft.candidate",
    "garlicfarm.raft.changes": "garlicfarm.raft.conf_change",
    "garlicfarm.raft.membership": "garlicfarm.raft.configuration_tracker",
    "garlicfarm.raft.proposals": "garlicfarm.raft.uncommitted",
    "garlicfarm.raft.enrolment": "garlicfarm.raft.joiner",
    "garlicfarm.raft.leadership": "garlicfarm.raft.leader",
    "garlicfarm.raft.member": "garlicfarm.raft.state",
    "garlicfarm.raft.reads": "garlicfarm.raft.read_index",
    # storage
    "garlicfarm.storage.incoming": "garlicfarm.storage.snapshot_receiver",
    "garlicfarm.storage.outgoing": "garlicfarm.storage.snapshot_sender",
    "garlicfarm.storage.plain": "garlicfarm.storage.jraft_snapshots",
    "garlicfarm.storage.rewrite": "garlicfarm.storage.log_store",
    # testing, lab
    "garlicfarm.testing.attendant": "garlicfarm.lab.line_server",
    "garlicfarm.testing.i2pd": "garlicfarm.lab.i2pd",
    "garlicfarm.testing.invariants": "garlicfarm.testing.simulator.invariants",
    "garlicfarm.testing.processes": "garlicfarm.lab.processes",
    "garlicfarm.testing.simulate": "garlicfarm.testing.simulator.simulation",
    "garlicfarm.testing.simulate_farm": "garlicfarm.testing.simulator.publisher_simulation",
    "garlicfarm.testing.simulate_slow": "garlicfarm.testing.simulator.slow_simulation",
    "garlicfarm.testing.simulated_clients": "garlicfarm.testing.simulator.clients",
    "garlicfarm.testing.simulated_cluster": "garlicfarm.testing.simulator.cluster",
    "garlicfarm.testing.simulated_faults": "garlicfarm.testing.simulator.faults",
    "garlicfarm.testing.simulated_links": "garlicfarm.testing.simulator.slow_links",
    "garlicfarm.testing.simulated_member": "garlicfarm.testing.simulator.member",
    "garlicfarm.testing.simulated_misfortune": "garlicfarm.testing.simulator.fault_injector",
    "garlicfarm.testing.simulated_network": "garlicfarm.testing.simulator.network",
    "garlicfarm.testing.simulated_router": "garlicfarm_plugin_simulated",
    "garlicfarm.testing.simulated_slow": "garlicfarm.testing.simulator.slow_cluster",
    "garlicfarm.testing.tun_network": "garlicfarm.lab.tun_network",
    # tests, benchmarks
    "benchmarks.plain_copy": "benchmarks.reference_copy",
    "tests.farm": "tests.publishing",
    "tests.node.plain": "tests.node.support.jraft_peer",
    "tests.node.support.plain": "tests.node.support.jraft_peer",
    "tests.sim": "tests.testing",
}

WORDS = {
    # wire
    "MAX_BATCH_BYTES": "nothing: it was never kept",
    # raft
    "Candidacy": "Candidate",
    "Enrolment": "Joiner",
    "enrolment": "joiner",
    "ForwardedReads": "ReadIndexForwarder",
    "KeptWord": "PersistentVote",
    "kept_word": "persistent_vote",
    "on_told_to_leave": "on_order_to_leave",
    "more_committed": "has_more_committed",
    "vote_for_self": "OwnVote",
    # node
    "FarmApplication": "PublisherFold",
    "told_to_leave": "on_order_to_leave",
    # net, http
    "Gatekeeper": "Authenticator",
    "dial_plain": "dial_without_handshake",
    # credentials, setup
    "further_farm": "add_farm",
    "read_master_key": "read_keys",
    "sync_directory": "garlicfarm.durable_files.fsync_path",
    # storage
    "PlainIncoming": "JRaftSnapshotReceiver",
    "PlainOutgoing": "JRaftSnapshotSender",
    "took_snapshot": "on_snapshot_written",
    # publishing
    "VALIDITY_VERSION": "ALGORITHM_VERSION",
    # cli, client
    "LazyGroup": "CommandGroup",
    "distrust": "certificate_error",
    # lab
    "Attendant": "LineServer",
    "why_it_fails": "startup_error",
    # testing
    "FarmSimulation": "PublisherSimulation",
    "Misfortune": "FaultInjector",
    # tests, benchmarks
    "SoakPosters": "SoakWriters",
    "plain_copy": "reference_copy",
    "plain_peer": "jraft_peer",
}

NAMES = {
    "Caller": "RpcClient (a link), Principal (a session)",
    "Changes": "PendingConfChange",
    "Farm": "Replica",
    "Gate": "FarmCredentials",
    "Guard": "HandshakeLimiter",
    "Incoming": "SnapshotReceiver",
    "Leadership": "Leader",
    "Members": "Membership",
    "Outgoing": "SnapshotSender",
    "Poster": "StatusReporter (node), RetryingClient (benchmarks), Writers (crash test)",
    "Posters": "Writers",
    "Reads": "ReadIndexRequests (node), ReadIndexQueue (raft), LinearizableReads (invariant)",
    "Slot": "PendingResponse",
    "Story": "Report",
    "View": "ScoredStatus (publishing), FarmAdminView (node)",
    "Weather": "NetworkFaults (simulator), LinkFaults (lab)",
    "World": "Scheduler",
    "_news": "_wait_for_commit",
    "attendant": "line_server",
    "caller": "rpc_client, principal",
    "ever": "all_members",
    "gate": "credentials",
    "gates": "credentials",
    "guard": "limiter",
    "is_plain": "is_jraft",
    "metals": "meta_leaseset",
    "misfortune": "fault_injector",
    "obey": "apply (policy)",
    "poster": "author (of an entry), writer (a user), status_reporter",
    "posters": "authors, writers",
    "slot": "pending",
    "story": "trace_text",
    "weather": "faults",
    "world": "scheduler",
}


def _pattern(words: Iterable[str], behind: str) -> re.Pattern[str]:
    longest_first = "|".join(map(re.escape, sorted(words, key=len, reverse=True)))
    return re.compile(rf"(?<![\w./])(?:{longest_first})(?!{behind})")


_PATHS = {name.replace(".", "/"): name for name in MODULES}
_ANY_WORD = _pattern(WORDS, r"\w")
_ANY_NAME = re.compile(rf"\b(?:{'|'.join(NAMES)})\b")
_ANY_MODULE = _pattern(MODULES, r"[\w/-]")  # "garlicfarm.farm/1" is the schema of a snapshot
_ANY_PATH = _pattern(_PATHS, r"[\w-]")


def files() -> Iterator[Path]:
    for place in PLACES:
        path = ROOT / place
        for found in [path] if path.is_file() else sorted(path.rglob("*")):
            parts = found.relative_to(ROOT).parts
            if found.suffix in SUFFIXES and parts[:2] != ("tests", "data") and found != Path(__file__):
                yield found


def words_in(text: str) -> dict[str, str]:
    """The words of `WORDS` and `MODULES` that a text holds, each as a whole word, and the new ones."""
    found = {word: WORDS[word] for word in _ANY_WORD.findall(text)}
    found |= {name: MODULES[name] for name in _ANY_MODULE.findall(text)}
    return found | {path: MODULES[_PATHS[path]] for path in _ANY_PATH.findall(text)}


def names_in(source: str) -> set[str]:
    """The words of `NAMES` that are names in Python source."""
    if not _ANY_NAME.search(source):  # of hundreds of files, few have to be taken apart
        return set()
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return NAMES.keys() & {token.string for token in tokens if token.type == tokenize.NAME}


@pytest.mark.parametrize("place", PLACES)
def test_no_word_that_is_gone_is_back(place: str) -> None:
    found = []
    for path in files():
        if path.relative_to(ROOT).parts[0] != place:
            continue
        text = path.read_text(encoding="utf-8")
        gone = words_in(text)
        if path.suffix == ".py":
            gone |= {name: NAMES[name] for name in names_in(text)}
        found += [f"{path.relative_to(ROOT)}: {word} is now {new}" for word, new in sorted(gone.items())]
    assert found == []


@pytest.mark.parametrize("module", MODULES)
def test_no_module_that_is_gone_is_back(module: str) -> None:
    path = ROOT / module.replace(".", "/")
    assert not path.with_suffix(".py").exists()
    assert not (path / "__init__.py").exists()


def test_words_are_found_whole_and_names_in_code_alone() -> None:
    text = "the KeptWord of `garlicfarm.storage.incoming.x`, tests/farm/test_x.py, garlicfarm/token.py"
    assert words_in(text).keys() == {
        "KeptWord",
        "garlicfarm.storage.incoming",
        "tests/farm",
        "garlicfarm/token",
    }
    assert not words_in(
        "KeptWords, mykept_word, garlicfarm.farm/1, garlicfarm.farm-create/1, garlicfarm.tokens"
    )
    assert names_in("# the weather\nx = World().story") == {"World", "story"}


def test_every_place_is_looked_into() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in files()} == set(PLACES)
