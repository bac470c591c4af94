"""Explore all that can happen to leases on heartbeats, within bounds: two members never publish at once.

``python -m tests.raft.explore_leases --elections 2 --entries 3``. Exit code 0: all states were seen, and none
is wrong; 1: one is, and how it came about is printed, or the limit of states was reached.
"""

from __future__ import annotations

import argparse
import struct
import sys
import time
from array import array
from typing import NamedTuple

from tests.raft.lease_model import Bounds, Model

WITNESSES = ("lost", "release", "election", "restart")


class Explored(NamedTuple):
    """``counterexample``: the steps to the first state that is wrong, in words; empty: none is."""

    states: int
    is_exhausted: bool
    counterexample: list[str]
    depth: int


def explore(model: Model, limit: int = sys.maxsize, progress: bool = False) -> Explored:
    """Visit the states breadth-first, so that a counterexample is as short as can be."""
    packing = struct.Struct("<11I")
    known: dict[bytes, None] = dict.fromkeys(
        packing.pack(*model.canonical(state)) for state in model.initial()
    )
    order = list(known)
    parents = array("I", [0] * len(order))
    roots = len(order)
    at = depth = 0
    ends = roots
    began = time.monotonic()
    while at < len(order):
        if at == ends:
            depth, ends = depth + 1, len(order)
            if progress:
                print(f"depth {depth}: {ends} states, {time.monotonic() - began:.0f} s", file=sys.stderr)
        for _, after in model.successors(packing.unpack(order[at])):
            key = packing.pack(*model.canonical(after))
            if key in known:
                continue
            if model.is_broken(after):
                steps = _path(model, order, parents, at, roots)
                return Explored(len(order), False, steps, depth)
            if len(order) >= limit:
                return Explored(len(order), False, [], depth)
            known[key] = None
            order.append(key)
            parents.append(at)
        at += 1
    return Explored(len(order), True, [], depth)


def _path(model: Model, order: list[bytes], parents: array[int], at: int, roots: int) -> list[str]:
    """The steps to a state, of members that keep their names."""
    path = []
    while at >= roots:
        path.append(at)
        at = parents[at]
    state = struct.unpack("<11I", order[at])
    steps = [model.show(state)]
    for at in reversed(path):
        goal = struct.unpack("<11I", order[at])
        step, state = next(each for each in model.successors(state) if model.canonical(each[1]) == goal)
        steps.append(model.tell(step))
    steps.append(next(model.tell(step) for step, found in model.successors(state) if model.is_broken(found)))
    return steps


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    usual = Bounds()
    for name, value in usual._asdict().items():
        if isinstance(value, bool):
            parser.add_argument(f"--{name}", action="store_true")
        elif name != "lasts":
            parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--lasts", type=int, nargs="+", default=usual.lasts)
    parser.add_argument("--limit", type=int, default=sys.maxsize, help="of states")
    parser.add_argument("--progress", action="store_true")
    options = parser.parse_args()
    bounds = Bounds(**{name: getattr(options, name) for name in usual._fields})
    bounds = bounds._replace(lasts=(*bounds.lasts,))
    model = Model(bounds)
    found = explore(model, options.limit, options.progress)
    print(f"bounds: {bounds}")
    print(f"began to publish after another member: {dict(model.witnessed)}")
    if found.counterexample:
        print(f"two members publish at once, after {len(found.counterexample) - 1} steps:")
        print("\n".join(f"{number:4} {step}" for number, step in enumerate(found.counterexample)))
        return 1
    if not found.is_exhausted:
        print(f"unfinished: stopped at {found.states} distinct states, {found.depth} steps deep")
        return 1
    print(f"explored {found.states} distinct states, frontier exhausted after {found.depth} steps")
    return 0


if __name__ == "__main__":
    sys.exit(main())
