"""The program's own log: one line per event on stderr, as text or as JSON. A thread writes it, so a
blocked pipe or a stopped terminal does not block the program.

``2026-11-21T02:19:01.123Z INFO  raft farm=farm node=1 term=3 event=became-leader``

An event is a fixed word with fields. Values are escaped, so that the name of a peer cannot forge a line.
Repetitions of one cause are logged once and then counted: `EventLogger`. Never log entry contents,
credentials or an Authorization header.
"""

from __future__ import annotations

import json
import logging
import os
import re
import select
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any, Literal, TextIO

from garlicfarm.printable import printable_json

MAX_CAUSES = 1024
MAX_WAITING = 1 << 20  # characters
FLUSH_S = 1.0
_BARE = re.compile(r"[A-Za-z0-9._:/@+?&=%\[\],~-]+")
_WORD = re.compile(r"[a-z][a-z0-9-]*")


class EventLogger:
    """Writes events, at most one line per interval for each (event, peer). The next line of that cause has
    the number of suppressed events as ``suppressed=n``.

    :param logger: ``garlicfarm.<component>``.
    :param clock: monotonic seconds.
    :param context: fields at the start of every line (``farm="farm"``, ``node=1``).

    At most 1024 causes are stored. The one silent for longest is dropped first, and its count, if any, is
    logged then. `flush` does so for all.
    """

    def __init__(
        self,
        logger: logging.Logger,
        *,
        clock: Callable[[], float] = time.monotonic,
        interval_s: float = 1.0,
        **context: object,
    ) -> None:
        self._logger = logger
        self._clock = clock
        self._interval_s = interval_s
        self._context = context
        # Cause → (time of its last line, level, fields, number suppressed since).
        self._causes: dict[tuple[str, object], tuple[float, int, dict[str, object], int]] = {}

    def bind(self, **context: object) -> EventLogger:
        """A logger with more context and its own counts."""
        merged = {**self._context, **context}
        return EventLogger(self._logger, clock=self._clock, interval_s=self._interval_s, **merged)

    def debug(self, event: str, **fields: object) -> None:
        self.log(logging.DEBUG, event, **fields)

    def info(self, event: str, **fields: object) -> None:
        self.log(logging.INFO, event, **fields)

    def warning(self, event: str, **fields: object) -> None:
        self.log(logging.WARNING, event, **fields)

    def error(self, event: str, **fields: object) -> None:
        self.log(logging.ERROR, event, **fields)

    def log(self, level: int, event: str, **fields: object) -> None:
        """Log one event. ``event`` is a fixed word (``peer-unreachable``). The field ``peer`` or
        ``leader``, if any, distinguishes causes, so keep it coarse: an address without its port."""
        if _WORD.fullmatch(event) is None:
            raise ValueError(f"an event must be a fixed word, not {event!r}")
        if not self._logger.isEnabledFor(level):
            return
        cause = (event, fields.get("peer", fields.get("leader")))
        now = self._clock()
        written, _, _, suppressed = self._causes.pop(cause, (now - self._interval_s, 0, {}, 0))
        if now - written < self._interval_s:
            self._causes[cause] = (written, level, fields, suppressed + 1)
        else:
            self._causes[cause] = (now, level, fields, 0)
            self._write(level, event, fields, suppressed)
        if len(self._causes) > MAX_CAUSES:
            self._forget(next(iter(self._causes)))

    def flush(self) -> None:
        """Log all pending counts, and drop all causes."""
        for cause in list(self._causes):
            self._forget(cause)

    def _forget(self, cause: tuple[str, object]) -> None:
        _, level, fields, suppressed = self._causes.pop(cause)
        if suppressed:
            self._write(level, cause[0], fields, suppressed)

    def _write(self, level: int, event: str, fields: dict[str, object], suppressed: int) -> None:
        told = {**self._context, **fields}
        if suppressed:
            told["suppressed"] = suppressed
        self._logger.log(level, event, extra={"garlicfarm_fields": {**told, "event": event}})


class TextFormatter(logging.Formatter):
    """``TIME LEVEL component key=value …``; a value with special characters is a JSON string."""

    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{key}={_escaped(value)}" for key, value in _fields(record).items())
        return f"{_time(record)} {record.levelname:<5} {_component(record)} {fields}"


class JsonFormatter(logging.Formatter):
    """One JSON object per line, with the keys of the text form."""

    def format(self, record: logging.LogRecord) -> str:
        head = {"time": _time(record), "level": record.levelname.lower(), "component": _component(record)}
        return printable_json(json.dumps({**head, **_fields(record)}, default=str))


@contextmanager
def configured(
    level: Literal["debug", "info", "warning", "error"], format: Literal["text", "json"], stream: TextIO
) -> Iterator[None]:
    """Send the log of this process to the file of ``stream`` for the duration of the block: our events from
    ``level`` on, those of libraries from warning on, each library message at most once a second. Replaces
    any earlier handlers; the levels are restored at the end.

    Logging never blocks. At most 1 MiB is buffered; then lines are dropped and counted in their place, as
    ``event=lines-dropped lines=n``. The end of the block waits up to a second for the buffer to be written.
    """
    root, ours = logging.getLogger(), logging.getLogger("garlicfarm")
    levels = root.level, ours.level
    handler = _Output(stream.fileno())
    handler.addFilter(_once_a_second())
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    ours.setLevel(level.upper())
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(levels[0])
        ours.setLevel(levels[1])
        handler.close()


class _Output(logging.Handler):
    """Passes lines to a thread, which ends with `close`; a thread that hangs then dies with the process."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._changed = threading.Condition()
        self._lines: list[str] = []
        self._size = 0
        self._dropped = 0  # lines, since the last one in _lines
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = f"{self.format(record)}\n"
        except Exception:  # noqa: BLE001 - a library's message that does not fit its arguments
            line = f"{self.format(_own_record('message-does-not-fit', logger=record.name))}\n"
        with self._changed:
            if self._size + len(line) > MAX_WAITING:
                self._dropped += 1
                return
            self._lines.append(line)
            self._size += len(line)
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            if self._closing:  # the interpreter closes all handlers again at exit
                return
            self._closing = True
            self._changed.notify()
        self._thread.join(FLUSH_S)
        super().close()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines or self._closing)
                lines, dropped = self._lines, self._dropped
                self._lines, self._size, self._dropped = [], 0, 0
            if not lines:
                return
            for line in lines:  # one by one: then other writers of the pipe cannot interrupt a short line
                dropped += not self._write(line)
            if dropped and not self._write(f"{self.format(_own_record('lines-dropped', lines=dropped))}\n"):
                with self._changed:
                    self._dropped += dropped

    def _write(self, line: str) -> bool:
        """False: the reader has closed it, or the disk is full."""
        data = line.encode(errors="backslashreplace")
        while data:
            try:
                data = data[os.write(self._descriptor, data) :]
            except BlockingIOError:  # another user of the pipe made it non-blocking
                writable = select.poll()
                writable.register(self._descriptor, select.POLLOUT)
                writable.poll()
            except OSError:
                return False
        return True


def _own_record(event: str, **fields: object) -> logging.LogRecord:
    level = logging.WARNING
    attributes = {"name": "garlicfarm.log", "levelno": level, "levelname": logging.getLevelName(level)}
    return logging.makeLogRecord({**attributes, "garlicfarm_fields": {"event": event, **fields}})


def _once_a_second() -> Callable[[logging.LogRecord], bool]:
    """A filter for messages that no `EventLogger` wrote: without file descriptors, Trio logs a traceback
    ten times a second."""
    told: dict[tuple[str, str], tuple[float, int]] = {}

    def passes(record: logging.LogRecord) -> bool:
        if hasattr(record, "garlicfarm_fields"):
            return True
        cause = (record.name, str(record.msg))
        now = time.monotonic()
        written, suppressed = told.pop(cause, (now - 1, 0))
        if now - written < 1:
            told[cause] = (written, suppressed + 1)
            return False
        told[cause] = (now, 0)
        if len(told) > MAX_CAUSES:
            del told[next(iter(told))]
        if suppressed:
            record.suppressed = suppressed
        return True

    return passes


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """The event's fields; for a library's record its message and the number suppressed."""
    fields = dict(getattr(record, "garlicfarm_fields", None) or {"message": record.getMessage()})
    if hasattr(record, "suppressed"):
        fields["suppressed"] = record.suppressed
    if record.exc_info:
        fields["exception"] = logging.Formatter().formatException(record.exc_info)
    return fields


def _time(record: logging.LogRecord) -> str:
    written = datetime.fromtimestamp(record.created, UTC)
    return written.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _component(record: logging.LogRecord) -> str:
    return record.name.removeprefix("garlicfarm.")


def _escaped(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)
    return text if _BARE.fullmatch(text) else printable_json(json.dumps(text))


def place_of(error: BaseException) -> str:
    """``file:line`` where an error was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{PurePath(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "nowhere"
