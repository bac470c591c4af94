"""Rankings that queries outside of the farm have computed of it, kept at this node and never in its log.

::

    data/farms/FARM/rankings/QUERY/BATCH.ranking
        a line of JSON (`StoredRanking`), then the body as it was received

One file per ranking, written beside its place and renamed, so that after a crash it is there whole or not at
all. A query has batches, numbered by Spark from 0. A *run* is one count of them: a query that begins anew
counts from 0 again, under another run. So batch and index ascend within a run, and a batch that is repeated
after a crash has the same bytes. What contradicts that is refused.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import msgspec

from garlicfarm.descriptors import patiently
from garlicfarm.durable_files import fsync_path, make_private_directory, replace_file
from garlicfarm.errors import RankingConflict, RankingNotStored
from garlicfarm.regular_files import read_file, reading

__all__ = ["MAX_QUERIES", "MAX_RANKINGS", "RankingStore", "StoredRanking"]

MAX_QUERIES = 16
"""of a farm"""
MAX_RANKINGS = 100
"""of a query; the oldest one makes room"""
_SUFFIX = ".ranking"
_MAX_HEAD_BYTES = 4096


class StoredRanking(msgspec.Struct, frozen=True):
    """A stored ranking, without its body.

    ``batch``: 0 or more. ``asof``: the index of the log that it ranks the members at. ``user``: of this node,
    who sent it. ``stored_ms``: this node's wall clock, ms since 1970. ``number`` ascends in the order in
    which a query's rankings came.
    """

    batch: int
    asof: int
    run: str
    user: str
    stored_ms: int
    size_bytes: int
    sha256: str
    number: int


class RankingStore:
    """The stored rankings of one farm. Blocking, for a thread; one call at a time. ``queries`` and
    ``unusable`` can be read meanwhile: they are replaced, and never changed.

    ``problems``: a sentence about each file that `load` left out because it is damaged or cannot be read.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.queries: Mapping[str, Sequence[StoredRanking]] = {}
        """Name of a query → its rankings, in the order in which they came; never empty."""
        self.unusable: frozenset[Path] = frozenset()
        """The files that `load` left out, and that were not replaced or deleted since."""
        self.problems: list[str] = []

    def load(self) -> None:
        """Read what is stored. Raises `RankingNotStored`: the directory cannot be read."""
        queries: dict[str, list[StoredRanking]] = {}
        self.problems, self.unusable = [], frozenset()
        try:
            folders = sorted(patiently(lambda: list(self._directory.iterdir())))
        except FileNotFoundError:
            folders = []
        except OSError as error:
            raise self._failure("this node cannot read", error) from error
        for folder in folders:
            for path in self._files(folder):
                if (head := self._head(path)) is not None:
                    queries.setdefault(folder.name, []).append(head)
        self.queries = {
            query: tuple(sorted(heads, key=lambda each: each.number)) for query, heads in queries.items()
        }

    def put(
        self, query: str, batch: int, body: bytes, *, asof: int, run: str, user: str, now_ms: int
    ) -> bool:
        """Store the ranking ``body`` of a batch, durably; whether it is new: False if these very bytes are
        stored for that batch already, by whichever run.

        :param query: named as a farm is; so is ``run``.
        :raises RankingConflict: the run has stored other bytes for this batch, or a later batch, or one of a
            higher ``asof``; or there are `MAX_QUERIES` others. Nothing was changed.
        :raises RankingNotStored: the operating system refuses, as on a full disk, or did not give what the
            query has stored.
        """
        if self._directory / query in self.unusable:  # those in it may be newer
            raise RankingNotStored(
                f"this node cannot read what {query} has stored: repair its disk and restart it, or delete"
                f" the rankings of {query}"
            )
        rankings = self.queries.get(query, ())
        if not rankings and len(self.queries) >= MAX_QUERIES:
            raise RankingConflict(
                f"this node keeps rankings of {MAX_QUERIES} queries of the farm already: delete those of one"
            )
        digest = sha256(body).hexdigest()
        old = next((each for each in rankings if each.batch == batch), None)
        if old is not None and old.sha256 == digest:
            return False
        _check_order(query, [each for each in rankings if each.run == run], batch, asof)
        number = rankings[-1].number + 1 if rankings else 0
        new = StoredRanking(batch, asof, run, user, now_ms, len(body), digest, number)
        kept = [*(each for each in rankings if each is not old), new]
        path = self._path(query, batch)
        try:
            make_private_directory(path.parent)
            replace_file(path, [msgspec.json.encode(new), b"\n", body], 0o600)
            self.queries = {**self.queries, query: tuple(kept[-MAX_RANKINGS:])}
            self.unusable -= {path}
            for dropped in kept[:-MAX_RANKINGS]:
                self._path(query, dropped.batch).unlink(missing_ok=True)
        except OSError as error:
            raise self._failure("this node cannot write", error) from error
        return True

    def body(self, query: str, batch: int) -> bytes | None:
        """The stored ranking of a batch; None: there is none. Raises `RankingNotStored`: the file cannot be
        read, or is damaged."""
        known = next((each for each in self.queries.get(query, ()) if each.batch == batch), None)
        if known is None:
            return None
        path = self._path(query, batch)
        try:
            body = read_file(path).partition(b"\n")[2]
        except OSError as error:
            raise self._failure("this node cannot read", error) from error
        if sha256(body).hexdigest() != known.sha256:
            raise RankingNotStored(f"{path} is damaged: delete the rankings of {query}")
        return body

    def delete(self, query: str) -> bool:
        """Forget all rankings of a query, durably; whether there were any. Raises `RankingNotStored`."""
        folder = self._directory / query
        unusable = {path for path in self.unusable if folder in (path, path.parent)}
        if query not in self.queries and not unusable:
            return False
        try:
            shutil.rmtree(folder)
            fsync_path(self._directory)
        except OSError as error:
            raise self._failure("this node cannot delete", error) from error
        self.queries = {name: rankings for name, rankings in self.queries.items() if name != query}
        self.unusable -= unusable
        return True

    def _files(self, folder: Path) -> list[Path]:
        """The rankings of a query. Removes half a file that a crash left."""
        try:
            found = sorted(path for path in patiently(lambda: list(folder.iterdir())) if _SUFFIX in path.name)
        except OSError as error:
            self._leave_out(folder, f"cannot be read ({error.strerror}): its rankings are not shown")
            return []
        for path in found:
            if path.suffix != _SUFFIX:
                with suppress(OSError):  # it is never read
                    path.unlink()
        return [path for path in found if path.suffix == _SUFFIX]

    def _head(self, path: Path) -> StoredRanking | None:
        why = "is no stored ranking"
        try:
            with reading(path) as file:
                line = file.readline(_MAX_HEAD_BYTES)
            found = msgspec.json.decode(line, type=StoredRanking)
            if (len(line) + found.size_bytes, f"{found.batch}") == (path.stat().st_size, path.stem):
                return found
        except OSError as error:
            why = f"cannot be read ({error.strerror})"
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
        self._leave_out(path, f"{why}: it is not shown, and the batch can be sent again")
        return None

    def _leave_out(self, path: Path, why: str) -> None:
        self.problems.append(f"{path} {why}")
        self.unusable |= {path}

    def _path(self, query: str, batch: int) -> Path:
        return self._directory / query / f"{batch}{_SUFFIX}"

    def _failure(self, what: str, error: OSError) -> RankingNotStored:
        return RankingNotStored(f"{what} {error.filename or self._directory}: {error.strerror}")


def _check_order(query: str, of_run: Sequence[StoredRanking], batch: int, asof: int) -> None:
    """Raises `RankingConflict`: a new ranking of this batch does not follow those of its run."""
    if not of_run:
        return
    newest = max(of_run, key=lambda each: each.batch)
    said = f"query {query}, run {newest.run}: batch {batch}"
    if any(each.batch == batch for each in of_run):
        raise RankingConflict(f"{said} is stored with other contents")
    if batch < newest.batch:
        raise RankingConflict(f"{said} comes after batch {newest.batch}")
    if asof < newest.asof:
        raise RankingConflict(f"{said} is as of index {asof}, and batch {newest.batch} as of {newest.asof}")
