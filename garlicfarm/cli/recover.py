"""`garlicfarm recover`: one survivor of a farm that lost its majority continues as a new farm."""

from __future__ import annotations

from functools import partial

import click

from garlicfarm.cli.command_group import Command
from garlicfarm.cli.node_access import farm_section, node_config
from garlicfarm.cli.options import Options, print_json, print_rows, shared_options
from garlicfarm.cli.say import say


@click.command(cls=Command, examples=["garlicfarm recover", "garlicfarm recover --yes-i-understand"])
@click.option("--yes-i-understand", "agreed", is_flag=True, help="Do it. Without this, only show the effect.")
@shared_options("config", "farm", "output")
def recover(options: Options, agreed: bool) -> None:
    """Make the stopped node of this machine a farm of its own, after most members were lost permanently.

    Its store becomes that of a new farm, with a new id and this node as its only member. Entries that only
    the lost members held are lost. Without --yes-i-understand nothing is changed.
    """
    from garlicfarm.cli.sign_of_life import run_blocking
    from garlicfarm.node import check_applications, find_applications
    from garlicfarm.setup.recovery import finish_recovery, read_survivor, recover_store
    from garlicfarm.storage import DataDirectory

    config = node_config(options)
    section = farm_section(config, options)
    applications = find_applications()
    check_applications([section], applications)
    with DataDirectory.open(config.node.data_dir) as data:
        directory = data.farm_directory(section.name)
        if agreed and finish_recovery(directory):
            say("an interrupted recovery is finished now; nothing else was done")
            return
        application = applications[section.application](section.name)
        read = partial(read_survivor, directory, section.name, application)
        survivor = run_blocking(f"the log in {directory} to be read", read)
        members = [
            {
                "id": server.id,
                "endpoint": server.endpoint,
                "fate": "stays" if server.id == data.node_id else "removed",
            }
            for server in survivor.configuration.servers
        ]
        log = {
            "last_term": survivor.last_term,
            "last_index": survivor.last_index,
            "commit": survivor.commit,
            "term": survivor.term,
            "first_index": survivor.first_index,
            "farm_id": survivor.farm_id.hex(),
        }
        farm_id, kept = None, None
        if agreed:
            write = partial(recover_store, directory, data.node_id, survivor)
            farm_id, kept = run_blocking("the new farm's store to be written", write, abandon=False)
    if options.output == "json":
        new_id = farm_id.hex() if farm_id is not None else None
        print_json("garlicfarm.recover/1", {**log, "members": members, "new_farm_id": new_id})
    else:
        print_rows(options.output, "", [log])
        print_rows(options.output, "", members)
    if farm_id is not None:
        say(
            f"done: farm {section.name} is now {farm_id.hex()}, with node {data.node_id} alone; run it with: "
            f"garlicfarm node start\nthe old store is kept in {kept}; never start that",
        )
        return
    say(
        f"nothing was changed. With --yes-i-understand node {data.node_id} would be the only member of a new "
        f"farm, under a new farm id:\n"
        f"* entries up to {survivor.commit} are known to be committed; those from there to "
        f"{survivor.last_index} would count as committed, too, though they may never have been acknowledged\n"
        "* entries that only lost members held are lost, also where they were acknowledged: compare LAST "
        "TERM, then LAST INDEX on all survivors, and recover the one where they are highest\n"
        "* removed members come back under new ids only. None of them may run, now or later: an old "
        "majority would publish beside the new farm",
    )
