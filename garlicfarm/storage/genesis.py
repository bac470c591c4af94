"""What a store is created with."""

from __future__ import annotations

import msgspec

from garlicfarm.wire.messages import Configuration

__all__ = ["Genesis"]


class Genesis(msgspec.Struct, frozen=True):
    """What a store is created with; it is not a log entry. The farm, its id (16 bytes),
    the application (by its name, D14), the algorithm's version, and the Configuration in force
    at index 0. The latter is None on a node that joins: its leader sends it (``node join``)."""

    farm: str
    farm_id: bytes
    application: str
    algorithm: int
    configuration: Configuration | None
