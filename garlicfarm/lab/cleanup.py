"""Ends what a lab started and removes its directory once the lab has ended, however it ended.

The lab runs this file as a child: ``python -I -S cleanup.py DIRECTORY``, with a pipe on stdin that only the
lab holds at the other end. The pipe ends with the lab, also by SIGKILL. What belongs to the lab then: each
process whose environment names the directory (the lab's children and theirs), and each that holds the
lock of a data directory below it (a node that was started again by hand). Only the standard library is used.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

MARK = "GARLICFARM_LAB"
"""The variable that names the lab's directory to its processes."""
REST_S = 0.05
TRIES = 100


def processes_of(directory: Path) -> list[int]:
    """Ids of the processes that belong to the lab in ``directory``, without this one."""
    holders = {lock_holder(data) for data in directory.glob("farm/*/data")}
    mark = f"{MARK}={directory}".encode()
    marked = {pid for pid in _processes() if mark in _environment(pid)}
    return sorted(pid for pid in marked | holders if pid is not None and pid != os.getpid())


def lock_holder(data_dir: Path) -> int | None:
    """The process that uses a node's data directory, if any: it holds the flock of ``lock`` in it."""
    lock = data_dir / "lock"
    try:
        inode = str(lock.stat().st_ino)
        held = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    for fields in map(str.split, held):
        # "1: FLOCK ADVISORY WRITE 7792 fe:00:2147756 0 EOF"; "1: -> FLOCK …" waits for it
        if fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == inode and _has_open(int(fields[4]), lock):
            return int(fields[4])
    return None


def _has_open(pid: int, file: Path) -> bool:
    with suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if descriptor.samefile(file):
                    return True
    return False


def _processes() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdecimal())


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # it has ended, or is another user's
        return []


def _kill(pid: int, directory: Path) -> None:
    with suppress(OSError):
        process = os.pidfd_open(pid)
        try:
            if pid in processes_of(directory):  # its id was not given to another process meanwhile
                signal.pidfd_send_signal(process, signal.SIGKILL)
        finally:
            os.close(process)


def main(directory: Path) -> None:
    """Wait for the end of stdin, then clean up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    for _ in range(TRIES):
        while found := processes_of(directory):
            for pid in found:
                _kill(pid, directory)
            time.sleep(REST_S)
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists():
            return
        # A process that the lab was just starting had no mark yet, and has written something meanwhile.
        time.sleep(REST_S)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
