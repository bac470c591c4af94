"""Rankings that queries outside of the farm have computed of it, kept at this node and never in its log.

::

    data/farms/FARM/rankings/QUERY.ranking
        a line of JSON (`StoredRanking`), then the body as it was received

The newest ranking of each query, written beside its place and renamed, so that after a crash it is there
whole or not at all. A query has batches, numbered by Spark from 0. A *run* is one count of them: a query that
begins anew counts from 0 again, under another run. So batch and index ascend within a run, and a batch that
is repeated after a crash has the same bytes. What contradicts that is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import msgspec

from garlicfarm.descriptors import patiently
from garlicfarm.durable_files import fsync_path, make_private_directory, replace_file
from garlicfarm.errors import RankingConflict, RankingNotStored
from garlicfarm.regular_files import read_file, reading

MAX_QUERIES = 16
"""of a farm"""
_SUFFIX = ".ranking"
_UNFINISHED = ".ranking.new"  # as `replace_file` names it
_MAX_HEAD_BYTES = 4096


class StoredRanking(msgspec.Struct, frozen=True):
    """A stored ranking, without its body.

    ``batch``: 0 or more. ``asof``: the index of the log that it ranks the members at. ``user``: of this node,
    who sent it. ``stored_ms``: this node's wall clock, ms since 1970.
    """

    batch: int
    asof: int
    run: str
    user: str
    stored_ms: int
    size_bytes: int
    sha256: str


class RankingStore:
    """The stored rankings of one farm. Blocking, for a thread; one call at a time. ``queries`` and
    ``unusable`` can be read meanwhile: they are replaced, and never changed.

    ``problems``: a sentence about each file that `load` left out because it is damaged or cannot be read.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.queries: Mapping[str, StoredRanking] = {}
        """Name of a query → its newest ranking."""
        self.unusable: frozenset[Path] = frozenset()
        """The files that `load` left out, and that were not replaced or deleted since."""
        self.problems: list[str] = []

    def load(self) -> None:
        """Read what is stored. Raises `RankingNotStored`: the directory cannot be read."""
        self.queries, self.problems, self.unusable = {}, [], frozenset()
        try:
            paths = sorted(patiently(lambda: list(self._directory.iterdir())))
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._failure("this node cannot read", error) from error
        for path in paths:
            if path.name.endswith(_UNFINISHED):
                with suppress(OSError):  # it is never read
                    path.unlink()
            elif (head := self._head(path)) is not None:
                self.queries = {**self.queries, path.stem: head}

    def put(
        self, query: str, batch: int, body: bytes, *, asof: int, run: str, user: str, now_ms: int
    ) -> bool:
        """Store the ranking ``body`` of a batch in the place of the query's last one, durably; whether it is
        new: False if these very bytes are stored for that batch already, by whichever run.

        :param query: named as a farm is; so is ``run``.
        :raises RankingConflict: the run has stored other bytes for this batch, or a later batch, or one of a
            higher ``asof``; or there are `MAX_QUERIES` others. Nothing was changed.
        :raises RankingNotStored: the operating system refuses, as on a full disk.
        """
        digest = sha256(body).hexdigest()
        old = self.queries.get(query)
        if old is None and len(self.queries) >= MAX_QUERIES:
            raise RankingConflict(
                f"this node keeps rankings of {MAX_QUERIES} queries of the farm already: delete that of one"
            )
        if old is not None:
            if (old.batch, old.sha256) == (batch, digest):
                return False
            if old.run == run:
                _check_order(query, old, batch, asof)
        new = StoredRanking(batch, asof, run, user, now_ms, len(body), digest)
        path = self._path(query)
        try:
            make_private_directory(self._directory)
            replace_file(path, [msgspec.json.encode(new), b"\n", body], 0o600)
        except OSError as error:
            raise self._failure("this node cannot write", error) from error
        self.queries = {**self.queries, query: new}
        self.unusable -= {path}
        return True

    def body(self, query: str) -> bytes | None:
        """The stored ranking of a query; None: there is none. Raises `RankingNotStored`: the file cannot be
        read, or is damaged."""
        known = self.queries.get(query)
        if known is None:
            return None
        path = self._path(query)
        try:
            body = read_file(path).partition(b"\n")[2]
        except OSError as error:
            raise self._failure("this node cannot read", error) from error
        if sha256(body).hexdigest() != known.sha256:
            raise RankingNotStored(f"{path} is damaged: delete the ranking of {query}")
        return body

    def delete(self, query: str) -> bool:
        """Forget the ranking of a query, durably; whether there was one. Raises `RankingNotStored`."""
        path = self._path(query)
        if query not in self.queries and path not in self.unusable:
            return False
        try:
            path.unlink()
            fsync_path(self._directory)
        except OSError as error:
            raise self._failure("this node cannot delete", error) from error
        self.queries = {name: ranking for name, ranking in self.queries.items() if name != query}
        self.unusable -= {path}
        return True

    def _head(self, path: Path) -> StoredRanking | None:
        why = "is not a stored ranking"
        try:
            with reading(path) as file:
                line = file.readline(_MAX_HEAD_BYTES)
            found = msgspec.json.decode(line, type=StoredRanking)
            if (len(line) + found.size_bytes, _SUFFIX) == (path.stat().st_size, path.suffix):
                return found
        except OSError as error:
            why = f"cannot be read ({error.strerror})"
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
        remedy = "the query's next ranking replaces it" if path.suffix == _SUFFIX else "delete it"
        self.problems.append(f"{path} {why}: it is not shown; {remedy}")
        self.unusable |= {path}
        return None

    def _path(self, query: str) -> Path:
        return self._directory / f"{query}{_SUFFIX}"

    def _failure(self, what: str, error: OSError) -> RankingNotStored:
        return RankingNotStored(f"{what} {error.filename or self._directory}: {error.strerror}")


def _check_order(query: str, newest: StoredRanking, batch: int, asof: int) -> None:
    """Raises `RankingConflict`: a new ranking of this batch does not follow the newest one of its run."""
    said = f"query {query}, run {newest.run}: batch {batch}"
    if batch == newest.batch:
        raise RankingConflict(f"{said} is stored with other contents")
    if batch < newest.batch:
        raise RankingConflict(f"{said} comes after batch {newest.batch}")
    if asof < newest.asof:
        raise RankingConflict(f"{said} is as of index {asof}, and batch {newest.batch} as of {newest.asof}")
