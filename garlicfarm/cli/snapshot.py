"""`garlicfarm snapshot`: the state of a farm in one file, and a new farm from it."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from garlicfarm.cli.command_group import CommandGroup
from garlicfarm.cli.farm import MEMBERS, OUT, PRESET, made_rows, member_plans
from garlicfarm.cli.node_access import ask
from garlicfarm.cli.options import Options, print_object, print_rows, shared_options
from garlicfarm.cli.say import say
from garlicfarm.durations import date_text

if TYPE_CHECKING:
    from garlicfarm.application import StateMachine
    from garlicfarm.storage import Saved, Snapshot

FILE = click.argument("file", type=click.Path(dir_okay=False, path_type=Path))


@click.group(cls=CommandGroup)
def snapshot() -> None:
    """Save the state of a farm to a file, look into such a file, and make a new farm from it."""


@snapshot.command(
    examples=["garlicfarm snapshot save farm.snap", "garlicfarm snapshot save --linearizable farm.snap"]
)
@FILE
@click.option(
    "--linearizable",
    is_flag=True,
    help="With every entry that was acknowledged before; needs a majority.",
)
@shared_options()
def save(options: Options, file: Path, linearizable: bool) -> None:
    """Save the farm's state now, as the node that answers has it, to FILE, which must not exist. The user has
    to be an admin.

    FILE has the state after all entries up to one index, not the entries themselves (`log tail`), and none of
    the farm's secrets and keys.
    """
    from garlicfarm.durable_files import move_into_place
    from garlicfarm.errors import RemoteProtocolError, StorageError
    from garlicfarm.storage import read_saved
    from garlicfarm.storage.snapshots import MAX_SNAPSHOT_BYTES

    if file.exists():
        raise click.UsageError(f"{file} exists already; nothing was overwritten")
    part = file.with_name(f"{file.name}.part")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(part, flags, 0o600), "wb") as written:

            def write(data: bytes) -> None:
                if written.tell() + len(data) > MAX_SNAPSHOT_BYTES:
                    raise RemoteProtocolError(f"a snapshot of more than {MAX_SNAPSHOT_BYTES} bytes")
                written.write(data)

            ask(
                options,
                lambda client, farm: client.snapshot(farm, write, linearizable=linearizable),
                awaited="the snapshot",
                unmet="the snapshot is not complete, and nothing was saved",
            )
        read_saved(part, state=False)
        move_into_place(part, file)
    except TimeoutError:  # an OSError, too
        raise
    except OSError as error:
        raise StorageError(f"{file} cannot be written: {error.strerror}; nothing was saved") from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
    _show(options, file, *read_saved(file, state=False))


@snapshot.command(examples=["garlicfarm snapshot inspect farm.snap"])
@FILE
@shared_options("output")
def inspect(options: Options, file: Path) -> None:
    """Show what FILE is a snapshot of, once its checksum is found to be right."""
    from garlicfarm.storage import read_saved

    _show(options, file, *read_saved(file, state=False))


@snapshot.command(examples=["garlicfarm snapshot verify farm.snap"])
@FILE
@shared_options("output")
def verify(options: Options, file: Path) -> None:
    """Check that `snapshot restore` can use FILE: the checksum is right, and the farm's application takes its
    state."""
    found, saved, _ = _restorable(file)
    _show(options, file, found, saved)


@snapshot.command(
    examples=[
        "garlicfarm snapshot restore farm.snap --out myfarm \\\n"
        "    --member 1=ssl://a.example:27150 --member 2=ssl://b.example:27150",
    ]
)
@FILE
@MEMBERS
@click.option("--master", metavar="BASE64", default="", help="Master destination of the Meta LeaseSet.")
@PRESET
@OUT
@shared_options("output")
def restore(
    options: Options, file: Path, members: tuple[str, ...], master: str, preset: str, out: Path
) -> None:
    """Make a new farm with the state in FILE: one directory per node, as `farm create` does.

    The farm has the old one's name, level and state, but another id, another secret and these members, which
    may have the ids of old ones. Entries after the snapshot's index are lost. No member of the old farm may
    run, now or later: both farms would publish under the same master destination.
    """
    from garlicfarm.setup.provision import FarmPlan
    from garlicfarm.setup.restoring import restore_farm

    found, saved, application = _restorable(file)
    plan = FarmPlan(preset=preset, master=master)
    made = restore_farm(out, member_plans(members), plan, found, saved, application)
    print_rows(options.output, "garlicfarm.snapshot-restore/1", made_rows(made))
    say(
        f"farm {saved.farm} is now {made.farm_id.hex()}, and continues after index {found.index}; copy each "
        "directory to its machine and run: garlicfarm node start\nno member of the old farm "
        f"{found.farm_id.hex()} may run, now or later"
    )


def _restorable(file: Path) -> tuple[Snapshot, Saved, StateMachine]:
    """The saved snapshot in a file, and its application in its state."""
    from garlicfarm.cli.sign_of_life import run_blocking
    from garlicfarm.errors import ConfigError
    from garlicfarm.node import find_applications
    from garlicfarm.setup.restoring import check_state
    from garlicfarm.storage import read_saved

    found, saved = run_blocking(f"{file} to be read", partial(read_saved, file))
    applications = find_applications()
    if found.application not in applications:
        known = ", ".join(applications)
        raise ConfigError([f"{file} is of the application {found.application!r}, and there are: {known}"])
    application = applications[found.application](saved.farm)
    run_blocking("the state to be checked", partial(check_state, file, found, application))
    return found, saved, application


def _show(options: Options, file: Path, found: Snapshot, saved: Saved) -> None:
    members = [{"id": server.id, "endpoint": server.endpoint} for server in found.configuration.servers]
    body: dict[str, Any] = {
        "file": str(file),
        "size_bytes": file.stat().st_size,
        "farm": saved.farm,
        "farm_id": found.farm_id.hex(),
        "application": found.application,
        "level": found.configuration.level,
        "index": found.index,
        "term": found.term,
        "application_entries": found.application_entries,
        "epoch_length": saved.epoch_length,
        "date_ms": saved.date_ms,
        "node": saved.node,
        "program": saved.program,
        "members": members,
    }
    if options.output != "table":
        print_object(options.output, "garlicfarm.snapshot/1", body)
        return
    lines = {
        "farm": f"{saved.farm} ({found.farm_id.hex()})",
        "application": f"{found.application}, level {found.configuration.level}",
        "saved": f"{date_text(saved.date_ms)} by node {saved.node}, garlicfarm {saved.program}",
        "index": f"{found.index}, term {found.term}",
        "size": f"{body['size_bytes']} bytes",
        **{f"member {each['id']}": each["endpoint"] for each in members},
    }
    width = max(map(len, lines))
    print_object("table", "", body, lines=[f"{name:{width}}  {value}" for name, value in lines.items()])
