"""A click group that imports the module of a command only when that command is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

__all__ = ["CommandGroup"]


LONGEST_SENTENCE = 500


class CommandGroup(click.Group):
    """A group whose commands are named as ``{name: "module:attribute"}``. In lists, each has the first
    sentence of its help, whole: click alone would cut it."""

    def __init__(self, *args: Any, targets: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._targets = targets

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self._targets)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        target = self._targets.get(cmd_name)
        if target is None:
            return None
        module, _, attribute = target.partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        listed = [command, *(command.commands.values() if isinstance(command, click.Group) else ())]
        for each in listed:
            each.short_help = each.get_short_help_str(LONGEST_SENTENCE)
        return command
