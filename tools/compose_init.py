"""Makes the farm of compose.yaml, each node's files in its own volume; does nothing where it is made.

The nodes dial one another by the names of their services, over TLS with pinned certificates, and each
stands beside a simulated router.
"""

from __future__ import annotations

import secrets
import shutil
import sys
import tempfile
from base64 import b64encode
from pathlib import Path

from garlicfarm.certificates import pin_of_file
from garlicfarm.master_key import mint_master_key
from garlicfarm.provision import FarmPlan, MemberPlan, create_farm
from garlicfarm.testing.processes import FAST
from garlicfarm.testing.simulated_router import simulated_destination
from garlicfarm.users import UserStore

VOLUMES = {number: Path(f"/farm/node-{number}") for number in (1, 2, 3)}
RANK = Path("/farm/rank")


def member(number: int) -> MemberPlan:
    """What the node of service ``node<number>`` has of its own."""
    return MemberPlan(
        endpoint=f"ssl://node{number}:27150",
        listen="ssl://0.0.0.0:27150",
        router={"plugin": "simulated", "seed": number},
        leaves=(b64encode(simulated_destination(number), b"-~").decode(),),
    )


def let_rank_read() -> None:
    """Make the user ``rank`` of every node, and write what ``garlicfarm rank`` has to be told."""
    password = secrets.token_urlsafe(32)
    options = ["--user rank --password-file password"]
    for number, volume in VOLUMES.items():
        UserStore(volume / "data" / "users").add("rank", "reader", password)
        write(volume / "data" / "secrets" / "metrics.token", secrets.token_urlsafe(32))
        pin = pin_of_file(volume / "data" / "tls" / "node.crt")
        options.append(f"--node https://node{number}:27151?pin={pin}")
    write(RANK / "password", password)
    write(RANK / "options", " ".join(options))


def write(path: Path, text: str) -> None:
    path.touch(0o600)
    path.write_text(text + "\n", encoding="ascii")


def main() -> None:
    made = [(volume / "garlicfarm.toml").is_file() for volume in VOLUMES.values()]
    if all(made):
        return
    if any(made):
        sys.exit("some of the volumes hold a node and some do not; remove all: docker compose down -v")
    with tempfile.TemporaryDirectory() as directory:
        key_file = Path(directory) / "master.key"
        plan = FarmPlan(raft=FAST, master=mint_master_key(key_file), master_key_file=key_file)
        farm = create_farm(Path(directory) / "farm", {number: member(number) for number in VOLUMES}, plan)
        for number, volume in VOLUMES.items():
            shutil.rmtree(volume / "data", ignore_errors=True)  # of an init that was interrupted
            shutil.copytree(farm.directories[number] / "data", volume / "data")
        let_rank_read()
        # Last: a volume with a configuration has everything else.
        for number, volume in VOLUMES.items():
            shutil.copy2(farm.directories[number] / "garlicfarm.toml", volume)


if __name__ == "__main__":
    main()
