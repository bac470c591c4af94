"""Until when the named member may publish (protocol page, section 6, point 6).

The farm names another member only after this one has been silent for R counted statuses of more than
half of the others, each at least 0.9 interval apart and all begun after they had applied its newest
status: no earlier than 0.9 (R − 1) intervals after it *began* that status. A lease of ¾ (R − 1)
intervals from that beginning therefore ends first, and the difference bears clocks of unequal rate.
The clock must count suspended time (Linux: ``CLOCK_BOOTTIME``).
"""

from __future__ import annotations

__all__ = ["Lease", "lease_ms"]


def lease_ms(interval_ms: int, R: int) -> int:
    """¾ (R − 1) intervals, in ms: how long after beginning a status its author may publish."""
    return 3 * (R - 1) * interval_ms // 4


class Lease:
    """The running lease of this process. It starts with none, whatever the log holds.

    A shorter interval or R shortens the running lease as soon as a status naming it is *begun*: that
    status may be committed, and judged by, without this process ever learning of it.
    """

    def __init__(self) -> None:
        self._newest: tuple[int, int] | None = None  # (began_ms, lease) of the one whose fate is open
        self._shortest: int | None = None  # lease of all begun since the held one, whatever came of them
        self._held: tuple[int, int] | None = None

    def begin(self, began_ms: int, interval_ms: int, R: int) -> None:
        """A status is begun now, naming ``interval_ms`` and ``R`` in its ``config.node`` (D15). A poster
        has one outstanding: of one begun earlier, nothing will be heard any more."""
        lease = lease_ms(interval_ms, R)
        self._newest = (began_ms, lease)
        self._shortest = lease if self._shortest is None else min(lease, self._shortest)

    def committed(self, began_ms: int) -> None:
        """This process saw the status it began last, at ``began_ms``, committed: statuses begun before it
        no longer matter. Raises `KeyError` for any other (the caller's fault)."""
        if self._newest is None or self._newest[0] != began_ms:
            raise KeyError(began_ms)
        self._held, self._newest, self._shortest = self._newest, None, None

    @property
    def expires_ms(self) -> int | None:
        """When it ends, on the clock of `begin`; None where it never began."""
        if self._held is None:
            return None
        began_ms, lease = self._held
        return began_ms + (lease if self._shortest is None else min(lease, self._shortest))
