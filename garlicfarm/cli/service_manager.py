"""Telling the service manager that started this process how it is: the protocol of ``sd_notify(3)``.

Each message is one datagram to the Unix socket that ``NOTIFY_SOCKET`` names. Its lines are assignments.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Mapping

import trio

from garlicfarm.logs import EventLogger

VARIABLE = "NOTIFY_SOCKET"
WATCHDOG = "WATCHDOG_USEC"
TELL_TIMEOUT_S = 1.0
SIGNS = 3
"""So many signs of life come in the time in which the manager waits for one."""


class ServiceManager:
    """The service manager that ``environ`` names; if it names none, nothing is told. A failure is logged
    once, and changes nothing else."""

    def __init__(self, environ: Mapping[str, str], log: EventLogger) -> None:
        own = str(os.getpid())
        self._address = environ.get(VARIABLE, "")
        self._watchdog = environ.get(WATCHDOG, "") if environ.get("WATCHDOG_PID", own) == own else ""
        self._log = log
        self._has_failed = False

    async def ready(self) -> None:
        """This process serves."""
        await self._tell("READY=1")

    async def keep_alive(self) -> None:
        """Say again and again that this process runs, if the manager restarts one that does not, until
        cancelled."""
        if not self._address or not self._watchdog.isdecimal() or not (watchdog_us := int(self._watchdog)):
            return
        while True:
            await self._tell("WATCHDOG=1")
            await trio.sleep(watchdog_us / 1_000_000 / SIGNS)

    async def stopping(self, within_s: float) -> None:
        """This process stops, and will have ended ``within_s``. The manager waits for at least so long."""
        await self._tell("STOPPING=1", f"EXTEND_TIMEOUT_USEC={math.ceil(within_s * 1_000_000)}")

    async def _tell(self, *lines: str) -> None:
        if not self._address:
            return
        try:
            with (
                trio.fail_after(TELL_TIMEOUT_S),
                trio.socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as its,
            ):
                await its.connect(_binary(self._address))
                await its.send("\n".join(lines).encode())
        except (OSError, trio.TooSlowError) as error:
            cause = str(error) or f"it takes no message within {TELL_TIMEOUT_S:g} s"
            if not self._has_failed:
                self._log.warning("service-manager-not-told", socket=self._address, cause=cause)
            self._has_failed = True


def _binary(address: str) -> bytes:
    """The address of a Unix socket: a path, or an abstract name after ``@``."""
    if not address.startswith(("/", "@")):
        raise OSError(f"{VARIABLE} names neither an absolute path nor an abstract socket")
    encoded = os.fsencode(address)
    return b"\0" + encoded[1:] if address.startswith("@") else encoded
