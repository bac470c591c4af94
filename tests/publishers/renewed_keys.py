"""A bundle of a service whose file is replaced while it is in use."""

from __future__ import annotations

import secrets
from pathlib import Path

from garlicfarm.credentials.destination_keys import write_bundle
from garlicfarm.i2p.keys import DestinationKeys, make_bundle
from tests.publishers.i2cp_keys import DAY_S, long_term_keys


def renew(
    path: Path, now_ms: int, *, destination: int = 1, node: int = 1, days: int = 90, hops: int = 1
) -> DestinationKeys:
    """Put another bundle in place of that in ``path``."""
    keys = make_bundle(
        long_term_keys(destination),
        secrets.token_bytes(32),
        node=node,
        expires_s=now_ms // 1000 + days * DAY_S,
        now_ms=now_ms,
        hops=hops,
        quantity=2,
    )
    path.unlink(missing_ok=True)
    write_bundle(path, keys)
    return keys
