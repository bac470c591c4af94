"""The lease: until when the named member may publish.

Below level 2 it rests on statuses; from there on it rides on heartbeats (`garlicfarm.leases`).

The farm names another member only after this one has been silent for R counted statuses of more than half of
the others. These are at least 0.9 interval apart and all begun after the others had applied its newest
status: that is no earlier than 0.9 (R − 1) intervals after it *began* that status. A lease of ¾ (R − 1)
intervals from that beginning therefore ends first; the difference allows for clocks of unequal rate. The
clock must count suspended time (Linux: ``CLOCK_BOOTTIME``).

Source: docs/reference/protocol.md, "The common algorithm", point 6.
"""

from __future__ import annotations

_MIN_R = 3


def lease_ms(interval_ms: int, R: int) -> int:
    """¾ (R − 1) intervals, in ms: how long its author may publish after beginning a status."""
    return 3 * (R - 1) * interval_ms // 4


def least_R(
    interval_ms: int, *, election_timeout_max_s: float, rpc_timeout_s: float, retire_timeout_s: float
) -> int:
    """The least R ≥ 3 with which a slow change of the leader ends no lease.

    While there is no leader no status is committed. The newest lease may be an interval old by then. One
    election may fail (2 × the upper election timeout), the status that was under way to the dead leader is
    repeated after ``rpc_timeout_s``, and a publisher stops ``retire_timeout_s``, at most a quarter of the
    lease, before the lease ends. The lease has to be as long as all of that together."""
    without_commit_ms = interval_ms + round(1000 * (2 * election_timeout_max_s + rpc_timeout_s))
    retire_ms = round(1000 * retire_timeout_s)
    needed_ms = min(without_commit_ms + retire_ms, -(-4 * without_commit_ms // 3))
    return max(_MIN_R, 1 - (-4 * needed_ms // (3 * interval_ms)))


def least_lease_ms(*, election_timeout_max_s: float, heartbeat_s: float, retire_timeout_s: float) -> int:
    """The shortest lease on heartbeats (D24), in ms, that a slow change of the leader does not end.

    While there is no leader nothing is granted. One election may fail (2 × the upper election timeout). Three
    heartbeats pass besides: a lease counts from the last grant but one of the dead leader, and the second one
    of the new leader is the first that gives one. A publisher stops ``retire_timeout_s`` before the lease
    ends, at most a quarter of the lease."""
    without_grant_ms = round(1000 * (2 * election_timeout_max_s + 3 * heartbeat_s))
    retire_ms = round(1000 * retire_timeout_s)
    return min(without_grant_ms + retire_ms, -(-4 * without_grant_ms // 3))


class Lease:
    """The lease of this process, as it rests on statuses. A new process has none, regardless of the log.

    A shorter interval or R shortens the lease as soon as a status that names it is *begun*: the others may
    see that status committed, and apply it, before this process learns of it.
    """

    def __init__(self) -> None:
        self._newest: tuple[int, int] | None = None  # (began_ms, lease) of the status whose outcome is open
        self._shortest: int | None = None  # shortest lease of all statuses begun since the held one
        self._held: tuple[int, int] | None = None

    def begin(self, began_ms: int, interval_ms: int, R: int) -> None:
        """A status is begun now. Its ``config.node``, the node's report on itself (D15), names these values.
        Only one is outstanding: the outcome of an earlier one no longer matters."""
        lease = lease_ms(interval_ms, R)
        self._newest = (began_ms, lease)
        self._shortest = lease if self._shortest is None else min(lease, self._shortest)

    def committed(self, began_ms: int) -> None:
        """The status that this process began last, at ``began_ms``, is committed. Raises `KeyError` for any
        other one (the caller's fault)."""
        if self._newest is None or self._newest[0] != began_ms:
            raise KeyError(began_ms)
        self._held, self._newest, self._shortest = self._newest, None, None

    @property
    def expires_ms(self) -> int | None:
        """When it ends, on the clock of `begin`; None if it never began."""
        if self._held is None:
            return None
        began_ms, lease = self._held
        return began_ms + (lease if self._shortest is None else min(lease, self._shortest))
