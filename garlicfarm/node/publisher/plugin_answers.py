"""The answers of publisher plugins, checked: the farm refuses a status with a wrong value in it."""

from __future__ import annotations

from garlicfarm.i2p.encoding import encode
from garlicfarm.node.checked_answer import checked
from garlicfarm.publisher import KeyReport, Published, PublisherStatus


def checked_key(answer: object) -> KeyReport | None:
    """Raises `TypeError` or `ValueError`: not what `Publisher.key` has to be (a defect)."""
    return None if answer is None else checked(answer, KeyReport)


def checked_published(answer: object) -> Published:
    """Raises `TypeError` or `ValueError`: not what `Publisher.publish` has to return (a defect)."""
    return checked(answer, Published)


def checked_status(answer: object, destination: bytes | None) -> PublisherStatus:
    """``destination``: the plugin's. Raises `TypeError` or `ValueError`: not what `Publisher.status` has to
    return (a defect)."""
    status = checked(answer, PublisherStatus)
    if status.leaf is not None and (destination is None or status.leaf.destination != encode(destination)):
        raise ValueError("its status is about another destination than its own")
    return status
