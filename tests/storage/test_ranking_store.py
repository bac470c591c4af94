"""The files of stored rankings: what a run may store, what makes room, and what a crash leaves."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from garlicfarm.errors import RankingConflict, RankingNotStored
from garlicfarm.storage import ranking_store
from garlicfarm.storage.ranking_store import MAX_QUERIES, RankingStore


class Store(RankingStore):
    """A store with what it holds, in short."""

    def add(
        self, batch: int, body: bytes = b"{}", *, asof: int = 10, run: str = "r", query: str = "q"
    ) -> bool:
        return self.put(query, batch, body, asof=asof, run=run, user="paul", now_ms=5)


def loaded(directory: Path) -> Store:
    store = Store(directory)
    store.load()
    return store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return loaded(tmp_path / "rankings")


def test_ranking_is_there_after_loading_with_all_that_is_known_of_it(store: Store, tmp_path: Path) -> None:
    body = b'{"index": 10}\n{"a second": "line"}\n'
    assert store.add(3, body)
    again = loaded(tmp_path / "rankings")
    assert again.queries == store.queries
    known = again.queries["q"]
    assert (known.batch, known.asof, known.run, known.user, known.stored_ms) == (3, 10, "r", "paul", 5)
    assert again.body("q") == body
    assert again.body("another") is None


@pytest.mark.parametrize("run", ["r", "another"])
def test_same_bytes_of_a_batch_are_stored_once_under_any_run(store: Store, run: str) -> None:
    assert store.add(3, b"bytes")
    before = store.queries
    assert not store.add(3, b"bytes", run=run)
    assert store.queries is before


@pytest.mark.parametrize(
    ("batch", "asof", "told"),
    [
        (3, 20, "query q, run r: batch 3 is stored with other contents"),
        (2, 20, "query q, run r: batch 2 comes after batch 3"),
        (4, 19, "query q, run r: batch 4 is as of index 19, and batch 3 as of 20"),
    ],
)
def test_contradiction_within_a_run_is_refused_and_changes_nothing(
    store: Store, batch: int, asof: int, told: str
) -> None:
    store.add(3, b"first", asof=20)
    before = store.queries
    with pytest.raises(RankingConflict) as raised:
        store.add(batch, b"other", asof=asof)
    assert str(raised.value) == told
    assert store.queries is before
    assert store.body("q") == b"first"


def test_newest_ranking_takes_the_place_of_the_last_one_and_of_any_of_another_run(
    store: Store, tmp_path: Path
) -> None:
    for batch, asof, run in ((3, 20, "r"), (4, 20, "r"), (0, 7, "s"), (4, 8, "s"), (5, 20, "r")):
        body = f"{batch} of {run}".encode()
        assert store.add(batch, body, asof=asof, run=run)
        for each in (store, loaded(tmp_path / "rankings")):
            assert (each.queries["q"].batch, each.body("q")) == (batch, body)
    assert len(list((tmp_path / "rankings").iterdir())) == 1


def test_query_too_many_is_refused_until_another_is_deleted(store: Store, tmp_path: Path) -> None:
    for number in range(MAX_QUERIES):
        store.add(1, query=f"q{number}")
    with pytest.raises(RankingConflict, match=f"rankings of {MAX_QUERIES} queries of the farm already"):
        store.add(1, query="late")
    assert store.add(2, query="q0")
    assert store.delete("q1")
    assert not store.delete("q1")
    assert store.add(1, query="late")
    assert set(loaded(tmp_path / "rankings").queries) == set(store.queries) >= {"late", "q0"}


def test_full_disk_is_an_error_that_says_so_and_leaves_the_old_ranking(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.add(3, b"first")

    def full(path: Path, parts: Iterable[bytes], mode: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(ranking_store, "replace_file", full)
        with pytest.raises(RankingNotStored, match=r"cannot write .*/q\.ranking: No space left on device"):
            store.add(4, b"second")
    assert (store.queries["q"].batch, store.body("q")) == (3, b"first")
    assert store.add(4, b"second")
    assert loaded(tmp_path / "rankings").body("q") == b"second"


def test_unusable_files_are_told_and_left_out_until_the_next_ranking_replaces_them(
    store: Store, tmp_path: Path
) -> None:
    for query in ("cut", "good", "loop", "no json"):
        store.add(1, b"body", query=query)
    folder = tmp_path / "rankings"
    (folder / "no json.ranking").write_bytes(b"no line of JSON")
    (folder / "cut.ranking").write_bytes((folder / "cut.ranking").read_bytes()[:-1])
    (folder / "loop.ranking").unlink()
    (folder / "loop.ranking").symlink_to(folder / "loop.ranking")
    (folder / "good.ranking.new").write_bytes(b"half")
    (folder / "folder").mkdir()
    again = loaded(folder)
    assert set(again.queries) == {"good"}
    assert not (folder / "good.ranking.new").exists()
    replaced = "it is not shown; the query's next ranking replaces it"
    assert again.problems == [
        f"{folder}/cut.ranking is not a stored ranking: {replaced}",
        f"{folder}/folder cannot be read (it is a directory, not a regular file): it is not shown; delete it",
        f"{folder}/loop.ranking cannot be read (Too many levels of symbolic links): {replaced}",
        f"{folder}/no json.ranking is not a stored ranking: {replaced}",
    ]
    assert {path.stem for path in again.unusable} == {"cut", "folder", "loop", "no json"}
    for query in ("cut", "loop", "no json"):
        assert again.add(0, b"next", query=query)
    assert {path.stem for path in again.unusable} == {"folder"}
    assert loaded(folder).body("loop") == b"next"
    (folder / "good.ranking").write_bytes((folder / "good.ranking").read_bytes()[:-1] + b"!")
    with pytest.raises(RankingNotStored, match="is damaged: delete the ranking of good"):
        again.body("good")


def test_directory_that_cannot_be_read_is_an_error_and_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "rankings").symlink_to(tmp_path / "rankings")
    with pytest.raises(RankingNotStored, match=r"cannot read .*/rankings: Too many levels of"):
        loaded(tmp_path / "rankings")


def test_unusable_file_of_a_query_can_be_deleted(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "rankings" / "q.ranking"
    store.add(1)
    path.write_bytes(b"rubbish")
    again = loaded(tmp_path / "rankings")
    assert not again.queries
    assert again.delete("q")
    assert not again.unusable
    assert not path.exists()
    assert not again.delete("q")


WRITER = """
import sys
from pathlib import Path
from garlicfarm.storage.ranking_store import RankingStore

store = RankingStore(Path(sys.argv[1]))
store.load()
for batch in range(100_000):
    store.put("q", batch, b"%d" % batch * 999, asof=batch, run="r", user="paul", now_ms=0)
    print(batch, flush=True)
"""


def test_killed_process_leaves_the_ranking_that_it_confirmed_last(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE) as writer:
        confirmed = [int(writer.stdout.readline()) for _ in range(120)]
        writer.send_signal(signal.SIGKILL)
        confirmed += [int(line) for line in writer.stdout.read().splitlines()]
    store = loaded(tmp_path)
    assert store.problems == []
    batch = store.queries["q"].batch
    assert batch in (confirmed[-1], confirmed[-1] + 1)  # it may have been killed before it could say so
    assert store.body("q") == b"%d" % batch * 999
