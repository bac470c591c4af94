"""The extensions of the protocol (D5): what each is called in the handshake, and which version we speak."""

from __future__ import annotations

PRE_VOTE = "pre-vote"
TIMEOUT_NOW = "timeout-now"
READ_INDEX = "read-index"
LEADER_HINT = "leader-hint"

EXTENSIONS = {PRE_VOTE: "1", TIMEOUT_NOW: "1", READ_INDEX: "1", LEADER_HINT: "1"}
"""What members offer each other: name and version."""
