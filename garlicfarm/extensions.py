"""The extensions of the protocol (D5): what each is called in the handshake, and which version we speak."""

from __future__ import annotations

PRE_VOTE = "pre-vote"
TIMEOUT_NOW = "timeout-now"
READ_INDEX = "read-index"
LEADER_HINT = "leader-hint"
LEASE = "lease"

EXTENSIONS = dict.fromkeys((PRE_VOTE, TIMEOUT_NOW, READ_INDEX, LEADER_HINT, LEASE), "1")
"""What members offer each other: name and version."""
