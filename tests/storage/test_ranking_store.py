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
from garlicfarm.storage.ranking_store import MAX_QUERIES, MAX_RANKINGS, RankingStore


class Store(RankingStore):
    """A store with what it holds, in short."""

    def add(
        self, batch: int, body: bytes = b"{}", *, asof: int = 10, run: str = "r", query: str = "q"
    ) -> bool:
        return self.put(query, batch, body, asof=asof, run=run, user="paul", now_ms=5)

    def batches(self, query: str = "q") -> list[int]:
        return [each.batch for each in self.queries.get(query, ())]


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
    (known,) = again.queries["q"]
    assert (known.batch, known.asof, known.run, known.user, known.stored_ms) == (3, 10, "r", "paul", 5)
    assert again.body("q", 3) == body
    assert again.body("q", 4) is None
    assert again.body("another", 3) is None


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
    assert store.body("q", 3) == b"first"


def test_another_run_begins_anew_at_any_batch_and_index(store: Store) -> None:
    for batch in (3, 4):
        store.add(batch, b"first", asof=20)
    assert store.add(0, b"second", asof=7, run="s")
    assert store.add(4, b"second", asof=8, run="s")  # in the place of the first run's
    assert store.batches() == [3, 0, 4]
    assert store.body("q", 4) == b"second"
    assert store.add(5, b"first", asof=20)  # the first run's checkpoint continues
    with pytest.raises(RankingConflict, match="run s: batch 3 comes after batch 4"):
        store.add(3, b"third", run="s")


def test_oldest_ranking_makes_room_and_its_file_is_gone(store: Store, tmp_path: Path) -> None:
    for batch in range(MAX_RANKINGS + 2):
        store.add(batch)
    store.add(0, run="s")  # the newest, whatever its number is
    expected = [*range(3, MAX_RANKINGS + 2), 0]
    assert store.batches() == expected
    assert loaded(tmp_path / "rankings").batches() == expected
    assert len(list((tmp_path / "rankings" / "q").iterdir())) == MAX_RANKINGS


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
        with pytest.raises(RankingNotStored, match=r"cannot write .*/q/4\.ranking: No space left on device"):
            store.add(4, b"second")
    assert store.batches() == [3]
    assert store.add(4, b"second")
    assert loaded(tmp_path / "rankings").batches() == [3, 4]


def test_damaged_files_are_told_and_left_out_and_half_written_ones_removed(
    store: Store, tmp_path: Path
) -> None:
    for batch in range(4):
        store.add(batch, b"body")
    folder = tmp_path / "rankings" / "q"
    (folder / "0.ranking").write_bytes(b"no line of JSON")
    (folder / "1.ranking").write_bytes((folder / "1.ranking").read_bytes()[:-1])
    (folder / "3.ranking").rename(folder / "7.ranking")  # not where its head says
    (folder / "9.ranking.new").write_bytes(b"half")
    again = loaded(tmp_path / "rankings")
    assert again.batches() == [2]
    assert sorted(problem.partition(" is no stored ranking")[0] for problem in again.problems) == [
        str(folder / f"{name}.ranking") for name in (0, 1, 7)
    ]
    assert not (folder / "9.ranking.new").exists()
    assert {path.stem for path in again.unusable} == {"0", "1", "7"}
    (folder / "2.ranking").write_bytes((folder / "2.ranking").read_bytes()[:-1] + b"!")
    with pytest.raises(RankingNotStored, match="is damaged: delete the rankings of q"):
        again.body("q", 2)


def test_files_that_cannot_be_read_are_told_and_left_out_until_they_are_sent_again(
    store: Store, tmp_path: Path
) -> None:
    for batch in range(3):
        store.add(batch, b"body")
    store.add(0, query="other")
    folder = tmp_path / "rankings" / "q"
    (folder / "1.ranking").unlink()
    (folder / "1.ranking").symlink_to(folder / "1.ranking")
    (tmp_path / "rankings" / "gone").symlink_to(tmp_path / "rankings" / "gone")
    again = loaded(tmp_path / "rankings")
    assert (again.batches(), again.batches("other")) == ([0, 2], [0])
    assert again.body("q", 2) == b"body"
    of_query, of_file = again.problems
    assert of_query.endswith(
        "/rankings/gone cannot be read (Too many levels of symbolic links): its rankings are not shown"
    )
    assert of_file == (
        f"{folder}/1.ranking cannot be read (Too many levels of symbolic links): it is not shown, and the"
        " batch can be sent again"
    )
    assert len(again.unusable) == 2
    assert again.add(1, b"body", run="s")
    assert len(again.unusable) == 1
    assert loaded(tmp_path / "rankings").body("q", 1) == b"body"


def test_directory_that_cannot_be_read_is_an_error_and_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "rankings").symlink_to(tmp_path / "rankings")
    with pytest.raises(RankingNotStored, match=r"cannot read .*/rankings: Too many levels of"):
        loaded(tmp_path / "rankings")


def test_query_whose_rankings_could_not_be_read_stores_no_more(store: Store, tmp_path: Path) -> None:
    """They may be newer."""
    (tmp_path / "rankings").mkdir(exist_ok=True)
    (tmp_path / "rankings" / "q").symlink_to(tmp_path / "rankings" / "q")
    again = loaded(tmp_path / "rankings")
    with pytest.raises(RankingNotStored, match="cannot read what q has stored"):
        again.add(1)


def test_query_of_unusable_files_alone_can_be_deleted(store: Store, tmp_path: Path) -> None:
    store.add(1)
    (tmp_path / "rankings" / "q" / "1.ranking").write_bytes(b"rubbish")
    again = loaded(tmp_path / "rankings")
    assert not again.queries
    assert again.delete("q")
    assert not again.unusable
    assert not (tmp_path / "rankings" / "q").exists()
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


def test_killed_process_leaves_every_ranking_that_it_confirmed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        confirmed = [int(writer.stdout.readline()) for _ in range(MAX_RANKINGS + 20)]
        writer.send_signal(signal.SIGKILL)
        confirmed += [int(line) for line in writer.stdout.read().splitlines()]
    store = loaded(tmp_path)
    assert store.problems == []
    assert set(store.batches()) >= set(confirmed[-MAX_RANKINGS + 1 :])  # one more may have made room
    for batch in store.batches():
        assert store.body("q", batch) == b"%d" % batch * 999
