"""The options that mean the same everywhere, and the output formats."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from garlicfarm.agreed import EPOCH_LENGTH
from garlicfarm.cli.say import put
from garlicfarm.durations import DURATION_RULE, format_ms, parse_ms
from garlicfarm.names import did_you_mean
from garlicfarm.printable import printable

if TYPE_CHECKING:
    from garlicfarm.setup.provision import FarmPlan


@dataclass(frozen=True, slots=True)
class Options:
    """The shared options as given; what a command does not offer keeps its default."""

    config: Path | None = None
    node: tuple[str, ...] = ()
    farm: str | None = None
    user: str | None = None
    password_file: Path | None = None
    ca: Path | None = None
    pin: str | None = None
    output: str = "table"
    timeout_s: float | None = None
    verbosity: int = 0
    """How often ``-v`` was given, less how often ``-q`` was."""


class Choice(click.Choice[str]):
    """A choice whose error names the value that is spelt alike."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        close = "" if value in self.choices else did_you_mean(value, self.choices)
        if close:
            self.fail(f"{value!r} is not one of {', '.join(map(repr, self.choices))}{close}", param, ctx)
        return super().convert(value, param, ctx)


class _Application(Choice):
    """One in the house, or one that an installed distribution brings."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from garlicfarm.plugins import APPLICATIONS, list_plugins

        if value in self.choices:
            return str(value)
        installed = [info.name for info in list_plugins(APPLICATIONS)]
        return Choice([*self.choices, *installed]).convert(value, param, ctx)


class Seconds(click.ParamType[float]):
    """A duration, in seconds."""

    name = "duration"

    def __init__(self, least_ms: int = 1) -> None:
        self._least_ms = least_ms

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        ms = parse_ms(str(value))
        if ms is None or ms < self._least_ms:
            least = format_ms(self._least_ms)
            self.fail(f"{value!r} must be {DURATION_RULE}, and at least {least}", param, ctx)
        return ms / 1000


MEMBER_ID = click.IntRange(1, 2**31 - 1)
DIRECTORY = click.argument("directory", type=click.Path(file_okay=False, path_type=Path), default=".")
LISTEN = click.option(
    "--listen", metavar="URL", default="", help="Where to listen, if not on every address at that port."
)
ADMIN_URL = click.option(
    "--admin-url",
    metavar="URL",
    default="",
    help="Where the admin API listens.  [default: https://127.0.0.1:27151]",
)

_FILE = click.Path(path_type=Path)
_DECORATORS: Mapping[str, Sequence[Callable[[Any], Any]]] = {
    "config": [click.option("--config", type=_FILE, help="Configuration file of the node.")],
    "node": [
        click.option(
            "--node",
            multiple=True,
            metavar="URL",
            help="Admin URL, https://HOST:PORT, or with the pin of that node's certificate,"
            " https://HOST:PORT?pin=sha256-…, as `node address` prints it there. Repeatable, tried in turn.",
        )
    ],
    "farm": [click.option("--farm", metavar="NAME", help="The farm, if the node has several.")],
    "user": [
        click.option("--user", metavar="NAME", help="Log in as this user."),
        click.option("--password-file", type=_FILE, help="File (mode 0600) that holds the user's password."),
    ],
    "tls": [
        click.option("--ca", type=_FILE, help="Certificate authority of the nodes whose URL has no pin."),
        click.option(
            "--pin", metavar="sha256-…", help="Pin of the certificate of the nodes whose URL has no pin."
        ),
    ],
    "output": [
        click.option(
            "-o",
            "--output",
            type=click.Choice(["table", "json", "jsonl"]),
            default="table",
            show_default=True,
        )
    ],
    "timeout": [
        click.option(
            "--timeout",
            "timeout_s",
            type=Seconds(),
            metavar="TIME",
            help="Give up after this time, such as 90s or 5m, with exit code 124.",
        )
    ],
    "verbosity": [
        click.option("-v", "verbose", count=True, help="Log more on stderr; repeatable."),
        click.option("-q", "quiet", count=True, help="Log less on stderr; repeatable."),
    ],
}

_FIELDS = {
    "user": ("user", "password_file"),
    "tls": ("ca", "pin"),
    "timeout": ("timeout_s",),
    "verbosity": ("verbose", "quiet"),
}


def shared_options(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add shared options to a command, which gets them as its keyword argument ``options``.

    ``names`` out of config, node, farm, user (with ``--password-file``), tls (``--ca``, ``--pin``),
    output, timeout, verbosity; none: those of a command that asks a node, which is all but the last.
    """
    chosen = names or tuple(name for name in _DECORATORS if name != "verbosity")
    fields = [field for name in chosen for field in _FIELDS.get(name, (name,))]

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def with_options(**arguments: Any) -> Any:
            given = {field: arguments.pop(field) for field in fields}
            if "verbose" in given:
                given["verbosity"] = given.pop("verbose") - given.pop("quiet")
            return command(options=Options(**given), **arguments)

        wrapped: Callable[..., Any] = with_options
        for name in reversed(chosen):
            for decorator in reversed(_DECORATORS[name]):
                wrapped = decorator(wrapped)
        return wrapped

    return decorate


def application_option(default: str = "publisher") -> Callable[[Any], Any]:
    """``--application`` of a command that makes a farm."""
    return click.option(
        "--application",
        type=_Application(["publisher", "log"]),
        default=default,
        show_default=True,
        help="Or the name of one that is installed.",
    )


def new_farm_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a command that makes a farm; `new_farm` takes them."""
    for option in (
        click.option(
            "--epoch-length",
            type=click.IntRange(1, 10**9),
            default=EPOCH_LENGTH,
            show_default=True,
            help="How many entries make an epoch, for feeds that pass the log on in parts; it never changes.",
        ),
        application_option(),
        click.option(
            "--master", metavar="BASE64", default="", help="Master destination of the Meta LeaseSet."
        ),
    ):
        command = option(command)
    return command


def new_farm(name: str, preset: str, *, master: str, application: str, epoch_length: int) -> FarmPlan:
    """The plan of a new farm, from the values of `new_farm_options`."""
    from garlicfarm.config.model import PRESET_INTERVALS_MS, PRESET_LEASES_MS
    from garlicfarm.setup.provision import FarmPlan

    return FarmPlan(
        name=name,
        application=application,
        preset=preset,
        master=master,
        interval_ms=PRESET_INTERVALS_MS[preset],
        lease_ms=PRESET_LEASES_MS[preset],
        epoch_length=epoch_length,
    )


def print_json(schema: str, body: Mapping[str, Any]) -> None:
    """One JSON object on stdout, led by its schema, as ``garlicfarm.status/1``."""
    put(json.dumps({"schema": schema, **body}, indent=2))


def print_object(
    output: str,
    schema: str,
    body: Mapping[str, Any],
    *,
    rows: Iterable[Mapping[str, Any]] | None = None,
    lines: Iterable[object] | None = None,
) -> None:
    """One object on stdout: as JSON led by its schema, or as its ``rows``, in a table or a JSON line each.

    :param rows: None: one row, ``body``.
    :param lines: what people read instead of the table.
    """
    if output == "json":
        print_json(schema, body)
    elif output == "table" and lines is not None:
        for line in lines:
            put(printable(str(line)))
    else:
        print_rows(output, schema, [body] if rows is None else rows)


def print_rows(output: str, schema: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Rows of equal keys on stdout: an aligned table, ``{"schema", "rows"}``, or a JSON line each."""
    if output == "jsonl":
        for row in rows:
            put(json.dumps(row))
        return
    rows = list(rows)
    if output == "json":
        print_json(schema, {"rows": rows})
    elif rows:
        header = [key.replace("_", " ").upper() for key in rows[0]]
        lines = [header, *([_cell(value) for value in row.values()] for row in rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
        for line in lines:
            put("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _cell(value: Any) -> str:
    if isinstance(value, tuple | list):
        value = json.dumps(value)  # which is TOML's spelling, too
    text = "-" if value is None or value == "" else str(value)
    # Others may have named it: a terminal must not obey it.
    return printable(text)
