"""`garlicfarm doctor`: what is wrong with the node of this machine and around it, and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from garlicfarm.cli.command_group import Command
from garlicfarm.cli.exits import Exit
from garlicfarm.cli.node_access import node_config
from garlicfarm.cli.options import Options, print_rows, shared_options
from garlicfarm.cli.say import put, say
from garlicfarm.printable import printable

if TYPE_CHECKING:
    from garlicfarm.cli.doctor_checks import Finding
    from garlicfarm.config import Config

_MARKS = {"ok": "ok", "note": "note", "problem": "PROBLEM"}


@click.command(
    cls=Command,
    examples=["garlicfarm doctor", "garlicfarm doctor --bundle report.tar.gz --log node.log"],
)
@click.option(
    "--bundle",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Also write what a bug report needs to this new .tar.gz, without secrets.",
)
@click.option(
    "--log",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A log of the node, of which the last 4 MiB go into the bundle.",
)
@shared_options("config", "output")
def doctor(options: Options, bundle: Path | None, log: Path | None) -> Exit:
    """Look for what is wrong with the node of this machine and around it, and say what to do (exit code 0: no
    problem; 6: some).

    It checks the configuration and the files that it names, owners and modes, the certificate, the disk and
    its room, whether the router and its doors answer, the running node with its farms, clocks, keys, versions
    and levels, and whether each member can be reached from here: run it on every machine. It changes nothing.
    A bundle says who your members, destinations and hosts are.
    """
    import trio

    if log is not None and bundle is None:
        raise click.UsageError("--log is for a --bundle")
    config = node_config(options)
    findings, parts = trio.run(_examine, config)
    if options.output == "table":
        _print(findings)
    else:
        print_rows(options.output, "garlicfarm.doctor/1", [each._asdict() for each in findings])
    if bundle is not None:
        _bundle(bundle, config, findings, parts, log)
    return Exit.DEGRADED if any(each.state == "problem" for each in findings) else Exit.OK


async def _examine(config: Config) -> tuple[list[Finding], dict[str, Any]]:
    import trio

    from garlicfarm.cli import doctor_checks as checks
    from garlicfarm.cli.config import problems_of, warnings_of

    findings = [checks.Finding("configuration", "problem", text) for text in problems_of(config)]
    findings = findings or [checks.Finding("configuration", "ok", f"{config.path} is valid")]
    findings += [checks.Finding("configuration", "note", text) for text in warnings_of(config)]
    for check in (checks.check_files, checks.check_certificate, checks.check_space):
        findings += check(config)
    findings += await trio.to_thread.run_sync(lambda: list(checks.check_disk(config)))
    findings += [each async for each in checks.check_doors(config)]
    findings += [each async for each in checks.check_routers(config)]
    statuses, metrics, told = await checks.ask_node(config)
    findings += told
    endpoints = checks.endpoints_of(config, statuses)
    findings += [each async for each in checks.check_members(config, endpoints)]
    parts: dict[str, Any] = {f"status-{name}.json": status for name, status in statuses.items()}
    return findings, parts | ({"metrics.txt": metrics} if metrics else {})


def _print(findings: list[Finding]) -> None:
    width = max(len(each.check) for each in findings)
    for each in findings:
        put(printable(f"{_MARKS[each.state]:<7}  {each.check:<{width}}  {each.text}"))
        if each.next and each.state != "ok":
            put(printable(f"{'':<{9 + width}}  → {each.next}"))
    problems = sum(each.state == "problem" for each in findings)
    say(f"{problems or 'no'} problem{'' if problems == 1 else 's'}")


def _bundle(
    path: Path, config: Config, findings: list[Finding], parts: dict[str, Any], log: Path | None
) -> None:
    from garlicfarm.cli.doctor_bundle import write_bundle
    from garlicfarm.errors import ConfigError

    rows = [each._asdict() for each in findings]
    try:
        files = write_bundle(path, config, {**parts, "doctor.json": rows}, log)
    except FileExistsError as error:
        raise ConfigError([f"{path} exists already; nothing was overwritten"]) from error
    except OSError as error:
        raise ConfigError([f"{error.filename or path}: {error.strerror}; there is no bundle"]) from error
    say(f"{path} has {', '.join(files)}; read it before you send it: it names members and destinations")
