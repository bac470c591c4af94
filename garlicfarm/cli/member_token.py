"""`garlicfarm member token`: the token with which one new node joins."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from garlicfarm.cli.command_group import Command
from garlicfarm.cli.node_access import ask, node_config
from garlicfarm.cli.options import MEMBER_ID, Options, Seconds, shared_options
from garlicfarm.cli.say import put, say

if TYPE_CHECKING:
    from garlicfarm.config import Config
    from garlicfarm.credentials.join_token import JoinToken


@click.command(
    cls=Command,
    examples=[
        "garlicfarm member token --out token",
        "garlicfarm member token --id 4 --expires 2d --out token",
    ],
)
@click.option(
    "--id",
    "new_id",
    type=MEMBER_ID,
    help="Id of the new member, never used before. Default: the highest used one + 1.",
)
@click.option(
    "--expires",
    "lifetime_s",
    default="1h",
    show_default=True,
    metavar="TIME",
    type=Seconds(least_ms=1000),
    help="Time for which it can be used, such as 90m, 1h or 2d.",
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
    required=True,
    help="New file (mode 0600) to write it to; - is stdout.",
)
@shared_options("config", "farm", "timeout")
def token(options: Options, new_id: int | None, lifetime_s: float, out: Path) -> None:
    """Make a token with which one new node joins: `garlicfarm node join --token-file FILE`.

    Run it on the machine of a member, whose files hold the farm's secret. The token holds it too: anyone who
    has the token can pose as any member, even after it has expired. Only a new farm secret revokes it.
    """
    import time

    from garlicfarm.credentials.join_token import encode_token
    from garlicfarm.credentials.private_files import write_private_file

    config = node_config(options)
    body = ask(options, lambda client, farm: client.members(farm))
    made = _make(config, body, new_id, int(time.time()) + int(lifetime_s))
    if str(out) == "-":
        put(encode_token(made))
    else:
        write_private_file(out, f"{encode_token(made)}\n".encode())
    file = "FILE" if str(out) == "-" else out
    say(
        f"this token is a secret: anyone who reads it can pose as any member of the farm {made.farm}; delete "
        f"it after use. On the machine of the new member {made.id}:\n"
        f"garlicfarm node join --token-file {file} --endpoint ssl://HOST:27150",
    )


def _make(config: Config, body: Mapping[str, Any], new_id: int | None, expires_s: int) -> JoinToken:
    """The token, from this node's own files and the members that it knows."""
    from garlicfarm.credentials.join_token import JoinToken
    from garlicfarm.credentials.member_credentials import read_secret_file
    from garlicfarm.errors import ConfigError
    from garlicfarm.levels import algorithm_of
    from garlicfarm.storage import read_genesis

    number, section = next((n, s) for n, s in enumerate(config.farm) if s.name == body["farm"])
    farm_secrets = read_secret_file(section.secret_file)
    if len(farm_secrets) > 1:
        raise ConfigError(
            [
                f"{section.secret_file} has two lines: finish the rotation of the farm's secret first, "
                "on all members"
            ]
        )
    used = body["used_ids"]
    if new_id in used:
        raise ConfigError([f"the id {new_id} is a member's or was one's; ids are used once"])
    genesis = read_genesis(config.node.data_dir / "farms" / section.name)

    def own(table: str) -> dict[str, Any]:
        """The keys of this table that the configuration sets itself."""
        prefix = f"farm[{number}].{table}."
        return {
            origin.key.removeprefix(prefix): origin.value
            for origin in config.origins
            if origin.key.startswith(prefix) and origin.source.startswith(("file", "environment"))
        }

    raft = own("raft")
    raft.pop("priority", None)  # that is a member's own
    return JoinToken(
        farm=section.name,
        farm_id=genesis.farm_id,
        farm_secret=farm_secrets[0],
        application=section.application,
        algorithm=algorithm_of(body["level"]),
        id=new_id or max(used, default=0) + 1,
        endpoints={row["id"]: row["endpoint"] for row in body["members"]},
        expires_s=expires_s,
        preset=config.node.preset,
        raft=raft,
        retention=own("retention"),
        algorithms=section.algorithms,
        master=section.meta.destination,
        epoch_length=genesis.epoch_length,
    )
