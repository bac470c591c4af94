"""What it costs to verify a SYN, by the type of its sender's key: ms of CPU time, and signatures of Ed25519.

Prints one JSON line: the median of the rounds for each type, with the loading of the key. The table
`garlicfarm_plugin_i2cp.streaming.signatures.COSTS` has the ratios as whole numbers.

    .venv/bin/python -m benchmarks.signatures          # in an environment with what the tests need
"""

from __future__ import annotations

import json
import statistics
import sys
import time

from garlicfarm.i2p.destination import signing_key
from garlicfarm.i2p.signing import ED25519
from garlicfarm_plugin_i2cp.streaming.packet import decode_packet
from garlicfarm_plugin_i2cp.streaming.signatures import COSTS, verify_packet

ROUNDS, REPEATED = 15, 100
NOW_MS = 1_780_000_000_000


def verify_ms(kind: int) -> float:
    from tests.publishers.streaming.signed_syns import signed_syn  # which needs what the tests need

    destination, encoded = signed_syn(kind)
    packet = decode_packet(encoded)
    rounds = []
    for _ in range(ROUNDS):
        begun_s = time.process_time()
        for _ in range(REPEATED):
            verify_packet(encoded, packet, signing_key(destination), None, NOW_MS)
        rounds.append((time.process_time() - begun_s) / REPEATED * 1000)
    return statistics.median(rounds)


def main() -> int:
    found = {kind: verify_ms(kind) for kind in sorted(COSTS)}
    ratios = {kind: round(ms / found[ED25519], 2) for kind, ms in found.items()}
    print(json.dumps({"verify_ms": {kind: round(ms, 3) for kind, ms in found.items()}, "ratios": ratios}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
