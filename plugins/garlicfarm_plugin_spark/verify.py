"""Compares Spark's states with those of the nodes, at the same index.

A node gives only its present state. So all nodes are polled, and the digests of each side are kept until the
other side has reached that index, or has passed it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256

import msgspec

from garlicfarm.client.trust import NodeAccess
from garlicfarm.errors import ConfigError, GarlicFarmError, UnreachableError
from garlicfarm.levels import unknown_algorithm
from garlicfarm.publishing.fold_state import SCHEMA, Header
from garlicfarm_plugin_spark.node_reader import FarmHead, NodeReader

KEPT = 1_000
"""How many digests of each side are kept for a farm. One side is seconds behind the other, not minutes."""


_log = logging.getLogger("garlicfarm.spark")

FarmKey = tuple[str, str]
"""Name and id (32 hex digits): a farm that is made anew has the same name."""


class Verifier:
    """Compares digests as they arrive. ``equal``: how many comparisons agreed, at most one for each node and
    index; ``last``: the farm's name and the index of the newest of them."""

    def __init__(self, agreed: Callable[[int], None] = lambda count: None) -> None:
        """``agreed`` is called with each new value of ``equal``."""
        self.equal = 0
        self.last: tuple[str, int] | None = None
        self._agreed = agreed
        self._ranked: dict[FarmKey, dict[int, str]] = {}
        self._stated: dict[tuple[FarmKey, str], dict[int, str]] = {}

    def ranked(self, farm: FarmKey, index: int, digest: str) -> None:
        """Spark's ``state_sha256`` at ``index``. Raises `GarlicFarmError`: a node's state differs."""
        if not _add(self._ranked.setdefault(farm, {}), index, digest):
            return  # a repeated batch
        for (of, node), states in self._stated.items():
            if of == farm:
                self._compare(farm, node, index, states)

    def stated(self, farm: FarmKey, node: str, index: int, state: bytes) -> None:
        """The state of the node with the URL ``node``. Raises `GarlicFarmError`: Spark's state at ``index``
        differs; `ConfigError`: the node runs another version of the common algorithm."""
        header = msgspec.json.decode(state, type=Header)
        if (unknown := unknown_algorithm(header.algorithm)) or header.schema != SCHEMA:
            other = unknown or f"{header.schema}; this program has {SCHEMA}"
            raise ConfigError([f"{node} ranks {farm[0]} at index {index} by {other}: upgrade this program"])
        states = self._stated.setdefault((farm, node), {})
        if _add(states, index, sha256(state).hexdigest()):
            self._compare(farm, node, index, states)

    def summary(self) -> str:
        """How many states agreed, as a sentence."""
        if self.last is None:
            return "verified nothing: no node was seen at the index of a ranking"
        farm, index = self.last
        return f"verified {self.equal} states, equal to the nodes', the last of {farm} at index {index}"

    def _compare(self, farm: FarmKey, node: str, index: int, states: Mapping[int, str]) -> None:
        ranked, stated = self._ranked.get(farm, {}).get(index), states.get(index)
        if ranked is None or stated is None:
            return
        if ranked != stated:
            raise GarlicFarmError(
                f"at index {index} of {farm[0]}, Spark's state is not that of {node} (SHA-256 {ranked[:12]}…"
                f" and {stated[:12]}…): compare the versions of garlicfarm, and report it if they are the"
                " same"
            )
        self.equal, self.last = self.equal + 1, (farm[0], index)
        self._agreed(self.equal)


class NodeStates:
    """Reads the states of each node separately. Calls block."""

    def __init__(self, nodes: NodeAccess) -> None:
        """Raises as `NodeReader`."""
        self._readers = {url.partition("?")[0]: NodeReader(replace(nodes, urls=(url,))) for url in nodes.urls}
        self._passed_over: set[tuple[str, str, str]] = set()

    def newest(self, farms: Mapping[str, FarmHead]) -> list[tuple[FarmKey, str, int, bytes]]:
        """(farm, URL, index, state) for each node that answers and each of ``farms`` that it has. A node may
        lack some, because a farm is created and deleted at one node after the other. Raises as `NodeReader`,
        except that a silent node is no error."""
        found = []
        for url, reader in self._readers.items():
            with suppress(UnreachableError):  # at the first request: each would take a timeout
                there = reader.heads()
                for farm in farms.keys() & there.keys():
                    farm_id = farms[farm].farm_id
                    if there[farm].farm_id != farm_id:
                        self._pass_over(url, farm, there[farm].farm_id)
                        continue
                    with suppress(ConfigError):  # it was deleted, or made anew, since this node listed it
                        index, state = reader.state(farm, farm_id)
                        if index:
                            found.append(((farm, farm_id), url, index, state))
        return found

    def _pass_over(self, url: str, farm: str, farm_id: str) -> None:
        if (url, farm, farm_id) not in self._passed_over:
            self._passed_over.add((url, farm, farm_id))
            _log.warning("%s", f"{url} has another farm {farm} (id {farm_id}): its states are not compared")

    def close(self) -> None:
        """Close the connections."""
        for reader in self._readers.values():
            reader.close()


def _add(digests: dict[int, str], index: int, digest: str) -> bool:
    """Whether it is new."""
    if digests.get(index) == digest:
        return False
    digests[index] = digest
    if len(digests) > KEPT:
        del digests[next(iter(digests))]
    return True
