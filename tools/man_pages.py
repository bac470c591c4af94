"""Writes the manual pages of the commands, from what they say of themselves: `python -m tools.man_pages`.

A page for the program and one for each of its first words, as `garlicfarm-farm`, in `share/man/man1`, which
wheels install. A test holds them against the commands.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click

from garlicfarm.cli import cli
from garlicfarm.cli.command_group import LONGEST_SENTENCE, Command

FOLDER = Path(__file__).resolve().parents[1] / "share" / "man" / "man1"


def pages() -> dict[str, str]:
    """Each page by the name of its file."""
    words = {name: command for name, command in _below(cli, "garlicfarm") if name.count(" ") == 1}
    made = {"garlicfarm.1": _program(words)}
    for name, command in words.items():
        page = name.replace(" ", "-")
        made[f"{page}.1"] = _word(page, name, command)
    return made


def _below(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    """Each command and group below ``group``, by its full name."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from _below(command, f"{path} {name}")


def _program(words: dict[str, click.Command]) -> str:
    lines = [
        *_head("garlicfarm", "a cluster node for the Garlic Farm protocol"),
        r"\fBgarlicfarm\fP \fICOMMAND\fP [\fIARGUMENT\fP ...]",
        ".SH DESCRIPTION",
        *_paragraphs(cli.help),
        ".SH COMMANDS",
    ]
    for name, command in words.items():
        lines += [".TP", rf"\fB{_escaped(name.replace(' ', '-'))}\fP(1)", _sentence(command)]
    return "\n".join([*lines, ".SH OPTIONS", *_options(cli.params), ""])


def _word(page: str, name: str, command: click.Command) -> str:
    """The page of ``command``: itself, if it does something, and all commands below it."""
    every = [(name, command), *(_below(command, name) if isinstance(command, click.Group) else ())]
    done = [
        (path, each)
        for path, each in every
        if not isinstance(each, click.Group) or each.invoke_without_command
    ]
    seen = Counter(str(_record(each)) for _, command in done for each in command.params)
    shared = {
        str(_record(each)): each
        for _, command in done
        for each in command.params
        if seen[str(_record(each))] > 2
    }
    lines = _head(page, _sentence(command).rstrip("."))
    for path, each in done:
        pieces = " ".join(each.collect_usage_pieces(click.Context(each)))
        lines += [rf"\fB{_escaped(path)}\fP {_escaped(pieces)}", ".br"]
    lines.pop()
    if isinstance(command, click.Group):
        lines += [".SH DESCRIPTION", *_paragraphs(command.help), ".SH COMMANDS"]
    for path, each in done:
        lines += [f".SS {_escaped(path)}" if len(done) > 1 else ".SH DESCRIPTION", *_paragraphs(each.help)]
        own = [option for option in each.params if str(_record(option)) not in shared]
        if len(done) == 1:
            lines.append(".SH OPTIONS")
        lines += _options(own)
        if isinstance(each, Command) and each.examples:
            lines += [".PP", "Examples:", ".EX", *(_escaped(line) for line in each.examples), ".EE"]
    if shared:
        lines += [".SH OPTIONS OF SEVERAL COMMANDS", *_options(list(shared.values()))]
    return "\n".join([*lines, ".SH SEE ALSO", r"\fBgarlicfarm\fP(1)", ""])


def _head(page: str, what: str) -> list[str]:
    title = _escaped(page.upper())
    return [
        r".\" Written by tools/man_pages.py.",
        f'.TH {title} 1 "" garlicfarm "Garlic Farm"',
        ".SH NAME",
        rf"{_escaped(page)} \- {what}",
        ".SH SYNOPSIS",
    ]


def _sentence(command: click.Command) -> str:
    return _text(command.get_short_help_str(LONGEST_SENTENCE))


def _paragraphs(help_text: str | None) -> list[str]:
    paragraphs = re.split(r"\n\s*\n", (help_text or "").strip())
    return [line for each in paragraphs for line in (".PP", _text(" ".join(each.split())))]


def _record(parameter: click.Parameter) -> tuple[str, str] | None:
    """Its names and meaning, as ``--help`` has them; None for an argument, which the synopsis names."""
    return parameter.get_help_record(click.Context(cli)) if isinstance(parameter, click.Option) else None


def _options(parameters: list[click.Parameter]) -> list[str]:
    records = [record for each in parameters if (record := _record(each)) is not None]
    return [
        line
        for names, meaning in records
        for line in (".TP", rf"\fB{_escaped(names)}\fP", _text(" ".join(meaning.split())))
    ]


def _text(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"\\fB\1\\fP", _escaped(text))


def _escaped(text: str) -> str:
    escaped = text.replace("\\", r"\e").replace("-", r"\-")
    return re.sub(r"^([.'])", r"\\&\1", escaped, flags=re.MULTILINE)


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for old in FOLDER.glob("*.1"):
        old.unlink()
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
