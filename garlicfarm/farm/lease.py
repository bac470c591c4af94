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
        self._begun: dict[int, int] = {}  # began_ms -> lease; one or two, a poster has one outstanding
        self._held: tuple[int, int] | None = None

    def begin(self, began_ms: int, interval_ms: int, R: int) -> None:
        """A status is begun now, naming ``interval_ms`` and ``R`` in its ``config.node`` (D15)."""
        self._begun[began_ms] = lease_ms(interval_ms, R)

    def committed(self, began_ms: int) -> None:
        """This process saw the status it began at ``began_ms`` committed: statuses begun before it no
        longer matter. Raises `KeyError` for one that was not begun here (the caller's fault)."""
        lease = self._begun[began_ms]
        self._begun = {began: other for began, other in self._begun.items() if began > began_ms}
        self._held = (began_ms, lease)

    @property
    def expires_ms(self) -> int | None:
        """When it ends, on the clock of `begin`; None where it never began."""
        if self._held is None:
            return None
        began_ms, lease = self._held
        return began_ms + min([lease, *self._begun.values()])
