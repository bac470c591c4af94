"""Errors become exit codes and messages: here, and nowhere else."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from enum import IntEnum

import click

from garlicfarm import errors
from garlicfarm.printable import printable


class Exit(IntEnum):
    """Exit codes; kept stable."""

    OK = 0
    ERROR = 1
    USAGE = 2
    UNREACHABLE = 3
    AUTH = 4
    NO_QUORUM = 5
    DEGRADED = 6
    STORAGE = 7
    REMOVED = 8
    DEADLINE = 124
    INTERRUPTED = 130


NOT_TO_RESTART = (Exit.USAGE, Exit.STORAGE, Exit.REMOVED)
"""The exit codes of `node start` that a restart cannot cure; the systemd unit names them."""

_CODES: tuple[tuple[type[BaseException], Exit], ...] = (
    (errors.ConfigError, Exit.USAGE),
    (errors.PluginError, Exit.USAGE),
    (errors.UnreachableError, Exit.UNREACHABLE),
    (errors.AuthError, Exit.AUTH),
    (errors.NotLeader, Exit.NO_QUORUM),
    (errors.NoQuorum, Exit.NO_QUORUM),
    (errors.StorageError, Exit.STORAGE),
    (errors.DiskHangs, Exit.STORAGE),
    (errors.Removed, Exit.REMOVED),
    (errors.FellBehind, Exit.USAGE),  # a restart finds the same
    (errors.GarlicFarmError, Exit.ERROR),
    (TimeoutError, Exit.DEADLINE),
    (PermissionError, Exit.ERROR),
    (click.exceptions.Abort, Exit.INTERRUPTED),
    (KeyboardInterrupt, Exit.INTERRUPTED),
)


def explain(error: BaseException) -> tuple[Exit, list[str]] | None:
    """The exit code of ``error`` and what to write on stderr; None for a defect of the program.

    Of an exception group the first error of ours that it holds counts, else the interrupt.
    """
    if isinstance(error, click.ClickException):
        return Exit(error.exit_code), _usage(error)
    if isinstance(error, OSError) and error.filename is None and error.errno in _OUTPUT:
        return Exit.ERROR, _OUTPUT[error.errno]
    leaves = list(_leaves(error))
    # An interrupt cancels everything else, which may raise errors of its own.
    for leaf in sorted(leaves, key=lambda leaf: not isinstance(leaf, KeyboardInterrupt)):
        code = _code(leaf)
        if code is not None:
            return code, ["\n  ".join(map(printable, text.split("\n"))) for text in _message(leaf, code)]
    return None


_OUTPUT: dict[int | None, list[str]] = {
    errno.EPIPE: [],  # its reader has left, as in `garlicfarm log tail | head`
    errno.ENOSPC: ["error: the disk that the output goes to is full"],
}
"""Reasons why the output of a command cannot be written, and the message for each."""


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for child in error.exceptions:
            yield from _leaves(child)
    else:
        yield error


def _code(error: BaseException) -> Exit | None:
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    trio = sys.modules.get("trio")  # its errors exist only where it is imported
    if trio is not None and isinstance(error, trio.TooSlowError):
        return Exit.DEADLINE
    return None


def _usage(error: click.ClickException) -> list[str]:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return [error.format_message()]
    context = getattr(error, "ctx", None)
    lines = [] if context is None else [context.get_usage()]
    return [*lines, printable(f"error: {error.format_message()}".replace("\n\t", " "))]


def _message(error: BaseException, code: Exit) -> list[str]:
    if code is Exit.INTERRUPTED:
        return ["interrupted"]
    if isinstance(error, errors.ConfigError):
        return [f"error: {problem}" for problem in error.problems]
    if isinstance(error, PermissionError):
        return [f"error: {error.filename}: {error.strerror}; is this the node's user?"]
    if isinstance(error, errors.EntryRefused):
        return [f"error: the entry is refused: {error}"]
    return [f"error: {str(error) or ('deadline passed' if code is Exit.DEADLINE else type(error).__name__)}"]
