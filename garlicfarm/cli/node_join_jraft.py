"""`garlicfarm node join-jraft`: make a node, and have a cluster that JRaft leads take it in."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from garlicfarm.cli.command_group import Command
from garlicfarm.cli.options import (
    ADMIN_URL,
    DIRECTORY,
    MEMBER_ID,
    Options,
    application_option,
    shared_options,
)
from garlicfarm.cli.say import say

if TYPE_CHECKING:
    from garlicfarm.config import Config
    from garlicfarm.credentials.join_token import JoinToken

SCHEME = "jraft"
TIMES = {"election_timeout_min_s": 3.0, "election_timeout_max_s": 5.0, "heartbeat_s": 1.5}
"""Those of JRaft's own program, for ``[farm.raft]``: its leader's heartbeats are too rare for the preset."""
NEVER_S = 2**62


@click.command(
    "join-jraft",
    cls=Command,
    examples=[
        "garlicfarm node join-jraft --id 4 --endpoint tcp://127.0.0.1:9004 \\\n"
        "    --server 1=tcp://127.0.0.1:9001 --server 2=tcp://127.0.0.1:9002"
    ],
)
@DIRECTORY
@click.option("--id", "node_id", type=MEMBER_ID, required=True, help="Id of the new member.")
@click.option(
    "--endpoint",
    metavar="URL",
    required=True,
    help="The endpoint that the servers dial, such as tcp://127.0.0.1:9004.",
)
@click.option(
    "--server",
    "servers",
    metavar="ID=URL",
    multiple=True,
    required=True,
    help="A member, such as 1=tcp://127.0.0.1:9001. Give all of them: JRaft names its leader by id only.",
)
@ADMIN_URL
@application_option(default="log")
@shared_options("farm", "timeout", "verbosity")
def join_jraft(
    options: Options,
    directory: Path,
    node_id: int,
    endpoint: str,
    servers: tuple[str, ...],
    admin_url: str,
    application: str,
) -> None:
    """Make a new node in DIRECTORY (default: here), and make it a member of a cluster of JRaft
    servers that runs on loopback.

    The node asks the leader with an AddServerRequest, then runs until the leader has brought it up to date
    and made it a member. After an interruption, the same command continues where it stopped. After a refusal
    it leaves nothing behind.
    """
    import secrets

    from garlicfarm.cli.node_join import enrol, undo_node
    from garlicfarm.config import load
    from garlicfarm.credentials.join_token import JoinToken
    from garlicfarm.levels import FIRST_ALGORITHM
    from garlicfarm.setup.provision import CONFIG_NAME, MemberPlan, create_joining_node

    file, new, own = directory / CONFIG_NAME, not directory.exists(), _loopback("--endpoint", endpoint)
    # What a token would say. A JRaft cluster has neither farm id nor secret: they are this node's own.
    token = JoinToken(
        farm=options.farm or "farm",
        farm_id=secrets.token_bytes(16),
        farm_secret=secrets.token_bytes(32),
        application=application,
        algorithm=FIRST_ALGORITHM,
        id=node_id,
        endpoints=_table(servers),
        expires_s=NEVER_S,
        raft=TIMES,
    )
    resumed = file.exists()
    if not resumed:
        create_joining_node(directory, MemberPlan(endpoint=own, admin_url=admin_url), token)
    config = load(file, os.environ)
    if resumed:
        token = _resumed(config, token, own)
    enrol(options, config, token, None if resumed else lambda: undo_node(directory, new))
    say(f"node {node_id} is a member; run it with: garlicfarm node start --config {file}")


def _table(servers: Sequence[str]) -> dict[int, str]:
    table: dict[int, str] = {}
    for text in servers:
        member, _, url = text.partition("=")
        if not (member.isascii() and member.isdecimal() and 1 <= int(member) < 2**31) or int(member) in table:
            raise click.UsageError(f"--server {text}: it must be ID=URL, each id once")
        table[int(member)] = _loopback("--server", url)
    return table


def _loopback(option: str, text: str) -> str:
    """The URL with the name of the transport, which reads no other."""
    from garlicfarm.errors import ConfigError
    from garlicfarm.transport import Endpoint

    try:
        endpoint = Endpoint.parse(text, SCHEME)
    except ConfigError:
        endpoint = None
    if endpoint is None or endpoint.scheme != SCHEME or not endpoint.is_loopback:
        raise click.UsageError(
            f"{option} {text}: it must be tcp://HOST:PORT on loopback, since there is no handshake; put a "
            "tunnel before a server on another machine"
        )
    return str(endpoint)


def _resumed(config: Config, token: JoinToken, endpoint: str) -> JoinToken:
    """The token with the farm id and secret that an interrupted run has left on the node's disk."""
    from msgspec.structs import replace

    from garlicfarm.credentials.member_credentials import read_secret_file
    from garlicfarm.errors import ConfigError
    from garlicfarm.storage import read_genesis

    section = next((each for each in config.farm if each.name == token.farm), None)
    if section is None or (config.node.id, section.endpoint) != (token.id, endpoint):
        wrong = f"{config.path} belongs to another node: nothing was overwritten; name a new directory"
        raise ConfigError([wrong])
    genesis = read_genesis(config.node.data_dir / "farms" / token.farm)
    return replace(token, farm_id=genesis.farm_id, farm_secret=read_secret_file(section.secret_file)[0])
