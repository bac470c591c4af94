"""The one kind of command, whose help ends with examples, and of command group: imports a command when it is
asked for, and suggests what was meant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click

LONGEST_SENTENCE = 500


class Command(click.Command):
    """A command with ``examples``: whole command lines, a long one broken as a shell takes it."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.option_name in ("--json", "--jsonl") and any("-o" in each.opts for each in self.params):
                meant = f"-o {error.option_name[2:]}"
                raise click.NoSuchOption(error.option_name, possibilities=[meant], ctx=ctx) from None
            raise

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.examples:
            with formatter.section("Examples"):
                for line in "\n".join(self.examples).splitlines():
                    formatter.write(f"{'':>{formatter.current_indent}}{line}\n")


class CommandGroup(Command, click.Group):
    """A group whose commands are named as ``{name: "module:attribute"}``, or added by its decorator.

    In lists, each command has the whole first sentence of its help, which click alone would cut. A
    misspelt command is answered with those that are spelt alike; click does the same for options.

    :param sections: the same under headings, for a list that is too long for one.
    """

    command_class = Command

    def __init__(
        self,
        *args: Any,
        targets: Mapping[str, str] | None = None,
        sections: Mapping[str, Mapping[str, str]] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._sections = sections or {"Commands": targets or {}}
        self._targets = {
            name: target for section in self._sections.values() for name, target in section.items()
        }

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self._targets, *self.commands})

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        names = self.list_commands(ctx)
        width = max(map(len, names))
        for title, section in self._sections.items():
            with formatter.section(title):
                listed = section if len(self._sections) > 1 else names
                commands = [(name, self.get_command(ctx, name)) for name in listed]
                formatter.write_dl(
                    [(name.ljust(width), each.short_help or "") for name, each in commands if each]
                )

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        target = self._targets.get(cmd_name)
        if target is None:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = target.partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        listed = [command, *(command.commands.values() if isinstance(command, click.Group) else ())]
        for each in listed:
            each.short_help = each.get_short_help_str(LONGEST_SENTENCE)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        close = get_close_matches(name, self.list_commands(ctx))
        if close and self.get_command(ctx, name) is None and not ctx.resilient_parsing:
            ctx.fail(f"No such command {name!r}. Did you mean {' or '.join(map(repr, close))}?")
        return super().resolve_command(ctx, args)
