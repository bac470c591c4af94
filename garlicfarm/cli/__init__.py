"""The command line: a module, or several, for each noun. This one imports click and nothing heavier.

Every command imports what it needs inside its own function, so that ``--version``, ``--help`` and
completion stay fast. Errors become exit codes here and nowhere else (`garlicfarm.cli.exits`). Data
goes to stdout, everything else to stderr.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from garlicfarm import __version__, revision
from garlicfarm.cli.command_group import CommandGroup
from garlicfarm.cli.exits import explain
from garlicfarm.cli.say import put, say

COMMANDS = {
    "Start": {
        "lab": "garlicfarm.cli.lab:lab",
        "farm": "garlicfarm.cli.farm:farm",
        "node": "garlicfarm.cli.node:node",
        "config": "garlicfarm.cli.config:config",
        "plugins": "garlicfarm.cli.plugins:plugins",
        "i2p": "garlicfarm.cli.i2p:i2p",
        "router": "garlicfarm.cli.router:router",
        "keys": "garlicfarm.cli.keys:keys",
        "systemd": "garlicfarm.cli.systemd:systemd",
    },
    "Operate": {
        "status": "garlicfarm.cli.status:status",
        "top": "garlicfarm.cli.top:top",
        "health": "garlicfarm.cli.health:health",
        "doctor": "garlicfarm.cli.doctor:doctor",
        "wait": "garlicfarm.cli.wait:wait",
        "member": "garlicfarm.cli.member:member",
        "leader": "garlicfarm.cli.leader:leader",
        "publish": "garlicfarm.cli.publish:publish",
        "metrics": "garlicfarm.cli.metrics:metrics",
        "user": "garlicfarm.cli.user:user",
        "snapshot": "garlicfarm.cli.snapshot:snapshot",
        "recover": "garlicfarm.cli.recover:recover",
    },
    "Read and write the log": {"log": "garlicfarm.cli.log:log"},
    "Rank in Spark": {"rank": "garlicfarm.cli.rank:rank"},
    "Pass the log on with Dafka": {"dafka": "garlicfarm.cli.dafka:dafka"},
}


def _print_version(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not context.resilient_parsing:
        commit = revision()
        put(f"garlicfarm {__version__}" + (f" ({commit})" if commit else ""))
        context.exit()


@click.group(
    cls=CommandGroup,
    sections=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Show the version and the commit that it was made from, and exit.",
)
def cli() -> None:
    """A cluster node for the Garlic Farm protocol: members agree by Raft on a Meta LeaseSet's publisher.

    Start with `garlicfarm lab`, which runs a farm of three nodes on this machine.
    """


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code (`garlicfarm.cli.exits.Exit`).

    ``arguments`` are without the program's name; None: those of this process. Messages go to
    stderr. An error that is none of ours is a defect and is raised, traceback and all.
    """
    for name, mode in ("stdin", "r"), ("stdout", "w"), ("stderr", "w"):
        if getattr(sys, name) is None:  # closed by the parent process
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - as long as we live
    try:
        result = cli.main(args=arguments, prog_name="garlicfarm", standalone_mode=False)
        sys.stdout.flush()
    except BaseException as error:
        explained = explain(error)
        if explained is None:
            raise
        if isinstance(error, OSError) and error.errno is not None:
            # The output cannot be written; Python would complain again when it flushes it at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code, lines = explained
        for line in lines:
            say(line)
        return code
    return result if isinstance(result, int) else 0


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The entry point of the console script: `run`, then exit with its code."""
    sys.exit(run(arguments))
