"""The help of each command ends with examples, and the list of commands has headings."""

from __future__ import annotations

import shlex

import click
import pytest

from garlicfarm.cli import COMMANDS, cli, run
from garlicfarm.cli.command_group import Command, CommandGroup
from tests.project.test_docs_cli import commands

LEAVES = dict(commands(cli, "garlicfarm"))
WIDTH = 76
"""What is left of a terminal of 80 columns."""


def own_words(example: str) -> list[str]:
    """The words of the one garlicfarm command in a line for the shell."""
    lexer = shlex.shlex(example.replace("\\\n", " "), posix=True, punctuation_chars="|<>")
    lexer.whitespace_split = True
    words = list(lexer)
    words = words[words.index("garlicfarm") :]
    ends = [place for place, word in enumerate(words) if word[0] in "|<>"]
    return words[: ends[0]] if ends else words


def parse(words: list[str]) -> str:
    """Parse a command line as a whole, and run nothing; the name of its command."""
    command: click.Command = cli
    context: click.Context | None = None
    path, rest = words[0], words[1:]
    while isinstance(command, CommandGroup) and rest and not rest[0].startswith("-"):
        context = click.Context(command, parent=context, info_name=path)
        name, found, rest = command.resolve_command(context, rest)
        assert found is not None
        command, path = found, f"{path} {name}"
    command.make_context(path, list(rest), parent=context)
    return path


@pytest.mark.parametrize("name", LEAVES)
def test_every_command_has_examples_that_parse(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    command = LEAVES[name]
    assert isinstance(command, Command)
    assert command.examples
    # The files of the examples do not exist.
    monkeypatch.setattr(click.File, "convert", lambda self, value, param, ctx: value)
    for example in command.examples:
        assert parse(own_words(example)) == name
        assert [line for line in example.splitlines() if len(line) > WIDTH] == []


def test_help_ends_with_the_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["leader", "stepdown", "--help"]) == 0
    _, _, end = capsys.readouterr().out.partition("\nExamples:\n")
    assert end == "  garlicfarm leader stepdown\n  garlicfarm leader stepdown --to 2\n"


def test_help_lists_the_commands_under_headings_each_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    out = capsys.readouterr().out
    places = [out.index(f"\n{title}:\n") for title in COMMANDS]
    assert places == sorted(places)
    for title, section in COMMANDS.items():
        listed = out.partition(f"\n{title}:\n")[2].partition("\n\n")[0].splitlines()
        assert [line.split()[0] for line in listed if line[2] != " "] == list(section)
    names = [name for section in COMMANDS.values() for name in section]
    assert sorted(names) == cli.list_commands(click.Context(cli))
