"""The command line's reference is what the commands say of themselves.

``python -m tests.project.test_docs_cli`` writes the page anew.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from garlicfarm.cli import cli
from garlicfarm.cli.command_group import Command
from garlicfarm.cli.exits import Exit

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"
ERRORS = PAGE.with_name("errors.md")
SEVERAL, SHARED = 4, "Options of several commands"
BEGIN, END = "<!-- commands: begin -->\n", "<!-- commands: end -->\n"


def commands(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    """Every command below ``group`` that does something, by its full name."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")


def render() -> str:
    """The sections of the page, from the commands themselves."""
    listed = dict(commands(cli, "garlicfarm"))
    rows = {name: {_row(each): each for each in _options(command)} for name, command in listed.items()}
    seen = Counter(row for each in rows.values() for row in each)
    shared = [row for row, times in seen.items() if times >= SEVERAL]
    parts = [f"### {SHARED}\n", _table(shared)]
    for name, command in listed.items():
        usage = " ".join([name, *command.collect_usage_pieces(click.Context(command))])
        parts += [f"### {name}\n", f"`{usage}`\n", " ".join((command.help or "").split()) + "\n"]
        own = [row for row in rows[name] if row not in shared]
        if own:
            parts.append(_table(own))
        if also := [f"`{option.opts[-1]}`" for row, option in rows[name].items() if row in shared]:
            parts.append(f"{SHARED}: {', '.join(also)}.\n")
        assert isinstance(command, Command)
        parts.append("\n".join(["```sh", *command.examples, "```", ""]))
    return "\n".join(parts)


def _options(command: click.Command) -> list[click.Option]:
    return [each for each in command.params if isinstance(each, click.Option)]


def _row(option: click.Option) -> str:
    return f"| {_names(option)} | {_meaning(option)} |"


def _table(rows: list[str]) -> str:
    return "\n".join(["| option | meaning |", "|---|---|", *rows, ""])


def _names(option: click.Option) -> str:
    value = "" if option.is_flag or option.count else f" {option.metavar or _type(option)}"
    return ", ".join(f"`{name}{value}`" for name in option.opts).replace("|", "\\|")


def _type(option: click.Option) -> str:
    kind: Any = option.type
    return (
        "|".join(kind.choices)
        if isinstance(kind, click.Choice)
        else str(kind.name).removesuffix(" range").upper()
    )


def _meaning(option: click.Option) -> str:
    parts = [option.help or ("How to print." if option.name == "output" else "")]
    kind = option.type
    if isinstance(kind, click.IntRange) and kind.max is not None:
        parts.append(f"{kind.min} to {kind.max}.")
    if option.required:
        parts.append("Required.")
    if option.show_default:
        parts.append(f"Default: {option.default}.")
    text = " ".join(" ".join(part.split()) for part in parts if part)
    return re.sub(r"\[default: (.*?)\]", r"Default: \1.", text).replace("|", "\\|")


def test_reference_of_commands_is_what_the_commands_say() -> None:
    text = PAGE.read_text(encoding="utf-8")
    shown = text.partition(BEGIN)[2].partition(END)[0]
    assert shown == render(), f"the commands changed: python -m {__name__} writes the page anew"


def test_reference_of_exit_codes_names_each_code_once() -> None:
    table = re.findall(r"^\| (\d+) \| ([a-z]+) \|", ERRORS.read_text(encoding="utf-8"), re.MULTILINE)
    assert [(int(number), name) for number, name in table] == [
        (code.value, code.name.lower().replace("_", "")) for code in Exit
    ]


if __name__ == "__main__":
    old = PAGE.read_text(encoding="utf-8")
    before, _, rest = old.partition(BEGIN)
    PAGE.write_text(before + BEGIN + render() + END + rest.partition(END)[2], encoding="utf-8")
