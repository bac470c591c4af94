"""What a store is created with."""

from __future__ import annotations

import msgspec

from garlicfarm.agreed import EPOCH_LENGTH
from garlicfarm.wire.messages import Configuration

__all__ = ["Genesis"]


class Genesis(msgspec.Struct, frozen=True):
    """What a store is created with; it is not a log entry. The farm, its id (16 bytes), the application (by
    its name, D14), the algorithm's version, and the Configuration in force at index 0, which is None on a
    node that joins: its leader sends it (``node join``). ``epoch_length``: how many Application entries make
    an epoch (D23)."""

    farm: str
    farm_id: bytes
    application: str
    algorithm: int
    configuration: Configuration | None
    epoch_length: int = EPOCH_LENGTH
