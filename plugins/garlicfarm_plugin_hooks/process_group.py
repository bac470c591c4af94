"""Commands in process groups of their own, which end with the command, the deadline or the caller."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import trio

TAIL_BYTES = 4096
READ_BYTES = 65536
READ_PAUSE_S = 0.01
"""Between two reads, so that a command that prints without end does not occupy the node."""
LAST_READS = 16
"""Of what the pipe still holds when the command has ended: a process that left the group may print on."""
KILL_AFTER_S = 1.0
"""How long a group has to end after SIGTERM, and its first process after SIGKILL."""


class ProcessGroups:
    """Runs one command after the other."""

    def __init__(self) -> None:
        self._survivor: trio.Process | None = None

    @property
    def survivor(self) -> int | None:
        """The id of a process that could not be killed and still runs: it belongs to another user, or waits
        for a device."""
        if self._survivor is not None and self._survivor.poll() is not None:
            self._survivor = None
        return None if self._survivor is None else self._survivor.pid

    async def run(
        self, argv: Sequence[str], environment: Mapping[str, str], directory: Path, stderr_tail: bytearray
    ) -> int:
        """Run a command to its end and return its status: that of its exit, or minus a signal.

        It has no stdin, and its stdout is dropped. ``stderr_tail`` receives the last 4 KiB of its stderr,
        also if the call is cancelled. When the command ends, what is left of its group is killed. Cancelled,
        it sends SIGTERM to the group, and SIGKILL when the command has ended, or after a second. Raises
        `OSError`: it cannot be started.
        """
        read_end, write_end = os.pipe()
        os.set_blocking(read_end, False)
        try:
            try:
                process = await trio.lowlevel.open_process(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=write_end,
                    env=dict(environment),
                    cwd=directory,
                    start_new_session=True,
                )
            finally:
                os.close(write_end)
            try:
                with _descriptor(process.pid) as ended:
                    try:
                        async with trio.open_nursery() as nursery:
                            nursery.start_soon(_keep_tail, read_end, stderr_tail)
                            await trio.lowlevel.wait_readable(ended)
                            nursery.cancel_scope.cancel()
                    finally:
                        # Reaped only after its group was killed: the id could be another group's by then.
                        _signal(process.pid, signal.SIGTERM)
                        with trio.move_on_after(KILL_AFTER_S, shield=True):
                            await trio.lowlevel.wait_readable(ended)
            finally:
                _signal(process.pid, signal.SIGKILL)
                with trio.move_on_after(KILL_AFTER_S, shield=True):
                    await process.wait()
                if process.poll() is None:
                    self._survivor = process
                for _ in range(LAST_READS):
                    if not _read(read_end, stderr_tail):
                        break
            assert process.returncode is not None, "it has ended and was reaped"
            return process.returncode
        finally:
            os.close(read_end)


async def kill_marked(variable: str) -> None:
    """Kill all processes with ``variable``, "NAME=value", in the environment that they were started with."""
    while pids := await trio.to_thread.run_sync(_marked, variable.encode()):  # they may fork meanwhile
        for pid in pids:
            with suppress(ProcessLookupError), _descriptor(pid) as descriptor:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                await trio.lowlevel.wait_readable(descriptor)


def _marked(variable: bytes) -> list[int]:
    found = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it has ended, or belongs to another user
            if variable in file.read_bytes().split(b"\0"):
                found.append(int(file.parent.name))
    return found


def _signal(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):  # the latter: all of it runs as another user
        os.killpg(group, number)


@contextmanager
def _descriptor(pid: int) -> Iterator[int]:
    """A descriptor that becomes readable when the process ends, reaped or not."""
    descriptor = os.pidfd_open(pid)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


async def _keep_tail(descriptor: int, tail: bytearray) -> None:
    while True:
        await trio.lowlevel.wait_readable(descriptor)
        if not _read(descriptor, tail):
            return
        await trio.sleep(READ_PAUSE_S)


def _read(descriptor: int, tail: bytearray) -> bool:
    try:
        data = os.read(descriptor, READ_BYTES)
    except BlockingIOError:
        return False
    tail += data
    del tail[:-TAIL_BYTES]
    return bool(data)
