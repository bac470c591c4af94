"""What is fuzzed: functions of bytes that may raise nothing, and the inputs that they start from.

A target catches the errors that its subject documents, and no others. So any exception that leaves it is
a finding: an undocumented error, or an assertion of the target's own (what was decoded encodes to the
same bytes; pieces give what the whole gives; a refused state changes nothing).

The first bytes of an input choose what is done with the rest; `seeds` begin with them.
"""

from __future__ import annotations

from collections.abc import Mapping

from garlicfarm.wire import RequestDecoder
from tests.fuzz.targets import farm, feeds, files, handshake, router, wire
from tests.fuzz.targets.base import SMALL, Target, decoded, pieces

__all__ = ["TARGETS", "Target", "planted"]

TARGETS: Mapping[str, Target] = {
    name: target
    for module in (wire, feeds, router, handshake, farm, files)
    for name, target in module.TARGETS.items()
}


def _planted(data: bytes) -> None:
    """Requests, by a decoder that would not check ``entry_size``."""
    for message in decoded(RequestDecoder(SMALL), pieces(data[2:], 0)):
        if isinstance(message, str) and "entry_size" in message:
            raise IndexError(message)


planted = Target(_planted, lambda: [seed for seed in wire.TARGETS["wire"].seeds() if seed[0] == 0])
"""A target with a defect, for the fuzzer to be tested by: no seed shows it."""
