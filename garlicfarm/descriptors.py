"""File descriptors: how many this process may have open, and how it survives having none left.

Theory of operation. Strangers can open connections; they must never use up what the store needs.

* A new descriptor has the lowest free number. So an accepted connection with a number of at least `ceiling`
  shows that nearly all are in use: listeners close it, and pause. The numbers from there on are left for
  files, and for connections that this process opens.
* Threads of libraries, such as ZeroMQ's, do not know that rule. So `reserve` holds some descriptors open.
  When a file cannot be opened, `patiently` releases a few and tries again at once; `close` puts them back.
* Opening a file writes nothing. To try it again is no second attempt at a write or a sync that failed.
"""

from __future__ import annotations

import errno
import os
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

RAISE = "raise it with `ulimit -n`, or LimitNOFILE= in the systemd unit"
WAIT_S = 1.0  # in the event loop, too
RESERVED = 16
_HEADROOM = 64
_NODE = 64  # of a node without farms, with what its plugins open
_FARM = 32  # of each farm: files, and connections to its members
_CONNECTIONS = 1024
_RELEASED = 4  # another thread may be quicker, but hardly four times
_RETRY_S = 0.02
_SHORTAGE = {errno.EMFILE, errno.ENFILE}

_T = TypeVar("_T")
_lock = threading.Lock()
_spares: list[int] = []
_wanted_spares = 0


def is_shortage(error: BaseException) -> bool:
    """Whether this process, or the machine, has no descriptor left."""
    return isinstance(error, OSError) and error.errno in _SHORTAGE


def limit() -> int:
    """How many descriptors this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else 1 << 20


def raise_limit() -> None:
    """Raise the limit as far as the system allows. A thousand, the usual soft limit, is fewer than strangers
    may open beside the members' connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):  # some systems call it unlimited, and allow less
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def required(farms: int) -> int:
    """The limit below which a node with this many farms does not start."""
    return _NODE + _FARM * farms


def wanted(farms: int) -> int:
    """The limit from which on a node admits as many connections as it would without one."""
    return required(farms) + _HEADROOM + _CONNECTIONS


def share(most: int, farms: int = 1) -> int:
    """How many of ``most`` connections to admit, of the `_CONNECTIONS` of all listeners."""
    return max(4, most * min(_CONNECTIONS, limit() - required(farms)) // _CONNECTIONS)


def ceiling() -> int:
    """The number from which on a descriptor is not for an incoming connection."""
    most = limit()
    return most - min(_HEADROOM, most // 4)


@contextmanager
def reserve() -> Iterator[None]:
    """Hold descriptors for `patiently` while the context lasts; several contexts share them."""
    global _wanted_spares
    _wanted_spares += RESERVED
    _refill()
    try:
        yield
    finally:
        _wanted_spares -= RESERVED
        _release(len(_spares) - _wanted_spares)


def patiently(attempt: Callable[[], _T], wait_s: float = WAIT_S) -> _T:
    """What ``attempt()`` returns. If it raises for lack of a descriptor, it is called again with the reserved
    ones released, then now and then for ``wait_s``. Blocking, from any thread. Raises what it raises last."""
    until = 0.0
    while True:
        try:
            made = attempt()
        except OSError as error:
            if not is_shortage(error):
                raise
            now = time.monotonic()
            until = until or now + wait_s
            if not _release(_RELEASED):
                if now >= until:
                    raise
                time.sleep(_RETRY_S)
        else:
            _refill()
            return made


def close(descriptor: int) -> None:
    """Close a file. If reserved descriptors are missing, this one becomes one of them."""
    with _lock:
        if _spares and len(_spares) < _wanted_spares:
            os.dup2(_spares[0], descriptor, inheritable=False)  # in one step, so that no thread takes it
            _spares.append(descriptor)
            return
    os.close(descriptor)


def _release(number: int) -> int:
    """Close so many reserved descriptors; returns how many there were."""
    with _lock:
        released = [_spares.pop() for _ in range(min(number, len(_spares)))]
    for each in released:
        os.close(each)
    return len(released)


def _refill() -> None:
    with _lock, suppress(OSError):
        while len(_spares) < _wanted_spares:
            _spares.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
