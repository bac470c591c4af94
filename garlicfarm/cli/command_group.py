"""The one kind of command group: imports a command when it is asked for, and suggests what was meant."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click

__all__ = ["CommandGroup"]


LONGEST_SENTENCE = 500


class CommandGroup(click.Group):
    """A group whose commands are named as ``{name: "module:attribute"}``, or added by its decorator.

    In lists, each command has the whole first sentence of its help, which click alone would cut. A
    misspelt command is answered with those that are spelt alike; click does the same for options.
    """

    def __init__(self, *args: Any, targets: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._targets = targets or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self._targets, *self.commands})

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
