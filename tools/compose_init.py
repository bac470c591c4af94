"""Creates a farm of compose.yaml, each node's files in its own volume; does nothing if it exists.

The nodes dial one another by the names of their services, over TLS with pinned certificates, and each has
a simulated router. With the argument ``dafka``, they also carry their log to a topic, and volumes of a tower,
a store and a consumer get what these need to take part: a key each, and the public ones of all. With ``i2p``
and the routers' network (such as 198.19.77), they dial one another's tunnels, and each has a real router,
which knows the others, in a volume of its own; the one that is named publishes a site.
"""

from __future__ import annotations

import secrets
import shutil
import sys
import tempfile
import time
from base64 import b64encode
from pathlib import Path
from typing import Any

import msgspec
import trio

from garlicfarm.config.model import PRESET_INTERVALS_MS, PRESET_LEASES_MS
from garlicfarm.credentials.certificates import pin_of_file
from garlicfarm.credentials.destination_keys import create_keys, write_bundle
from garlicfarm.credentials.users import UserStore
from garlicfarm.i2p.encoding import encode
from garlicfarm.i2p.keys import make_bundle
from garlicfarm.lab.destinations import simulated_destination
from garlicfarm.lab.i2pd import make_i2pd
from garlicfarm.lab.i2pd_files import CERTIFICATE, RouterPlan, leaf_of
from garlicfarm.lab.processes import FAST
from garlicfarm.setup.i2p_tunnel import Tunnel, b32_address
from garlicfarm.setup.provision import FarmPlan, MemberPlan, create_farm
from garlicfarm_plugin_dafka.keys import create_key

VOLUMES = {number: Path(f"/farm/node-{number}") for number in (1, 2, 3)}
ROUTERS = {number: Path(f"/farm/router-{number}") for number in VOLUMES}
SITES = {number: Path(f"/farm/site-{number}") for number in VOLUMES}
RANK = Path("/farm/rank")
TUNNEL = Tunnel("garlicfarm-farm", "127.0.0.1", 27150, 27150, "garlicfarm-farm.dat")
CONTROL_PASSWORD = "i2pcontrol.password"
SITE_BUNDLE = Path("data/secrets/site.bundle")
SITE_KEYS_S = 90 * 24 * 3600
SITE = "127.0.0.1:8080"
SITE_TUNNELS = {"hops": 0, "quantity": 2}
DAFKA_ROLES = ("tower", "store", "consumer")
DAFKA_KEY = Path("data/secrets/dafka.key")
DAFKA_PEERS = Path("data/secrets/dafka-peers.toml")


def make_over_tls(scratch: Path) -> None:
    make_farm(scratch, {number: member(f"node{number}", number) for number in VOLUMES}, raft=FAST)
    let_rank_read()


def member(service: str, number: int) -> MemberPlan:
    """The node-specific settings of a service."""
    return MemberPlan(
        endpoint=f"ssl://{service}:27150",
        listen="ssl://0.0.0.0:27150",
        router={"plugin": "simulated", "seed": number},
        leaves=(b64encode(simulated_destination(number), b"-~").decode(),),
        publishers=({"plugin": "simulated"},),
    )


def make_dafka(scratch: Path) -> None:
    services = {number: f"dafka{number}" for number in VOLUMES}
    make_farm(scratch, {number: producer(name, number) for number, name in services.items()}, raft=FAST)
    keys = {VOLUMES[number] / DAFKA_KEY: (name, "producer") for number, name in services.items()}
    keys |= {Path(f"/farm/{role}/{role}.key"): (role, role) for role in DAFKA_ROLES}
    peers = ""
    for path, (name, role) in keys.items():
        path.unlink(missing_ok=True)  # left by an interrupted init
        peers += f'[{name}]\nkey = "{create_key(path).public}"\nroles = ["{role}"]\n\n'
    for volume in VOLUMES.values():
        write(volume / DAFKA_PEERS, peers)
    for role in DAFKA_ROLES:
        write(Path(f"/farm/{role}/peers.toml"), peers)


def producer(service: str, number: int) -> MemberPlan:
    """The node-specific settings of a service that is also a node of Dafka."""
    feed = {
        "plugin": "dafka",
        "towers": ["tcp://tower:5556?peer=tower"],
        "listen": "tcp://0.0.0.0:5600",
        "advertise": f"tcp://{service}:5600",
        "key_file": str(DAFKA_KEY),
        "peers_file": str(DAFKA_PEERS),
    }
    return msgspec.structs.replace(member(service, number), feeds=(feed,))


def make_over_i2p(scratch: Path, network: str) -> None:
    addresses = [f"{network}.{10 + number}" for number in VOLUMES]
    plans = [RouterPlan(tunnels=(TUNNEL,), has_proxy=True, has_i2cp=True, log_level="warn")] * len(addresses)
    made = trio.run(make_i2pd, scratch, addresses, plans)
    routers = dict(zip(VOLUMES, made, strict=True))
    make_farm(scratch, {number: member_beside(router) for number, router in routers.items()}, preset="i2p")
    for number, router in routers.items():
        replace(ROUTERS[number] / "data", router)
        shutil.copy2(router / CONTROL_PASSWORD, VOLUMES[number] / "data" / "secrets")
    offer_site(scratch)


def offer_site(scratch: Path) -> None:
    """A page that says which node serves it, and for each node a bundle of the keys of the site's
    destination, whose long-term key is forgotten."""
    keys, now_s = create_keys(scratch / "site.key"), int(time.time())
    for number, volume in VOLUMES.items():
        bundle = make_bundle(
            keys,
            secrets.token_bytes(32),
            node=number,
            expires_s=now_s + SITE_KEYS_S,
            now_ms=1000 * now_s,
            **SITE_TUNNELS,
        )
        write_bundle(volume / SITE_BUNDLE, bundle)
        (SITES[number] / "index.html").write_text(f"node {number}\n", encoding="ascii")


def member_beside(router: Path) -> MemberPlan:
    """The node-specific settings of the node beside the router with this data directory."""
    pin = pin_of_file(router / CERTIFICATE)
    return MemberPlan(
        endpoint=f"i2p://{b32_address(router / TUNNEL.keys)}:{TUNNEL.inport}",
        router={"plugin": "i2pcontrol", "password_file": f"data/secrets/{CONTROL_PASSWORD}", "pin": pin},
        leaves=(b64encode(leaf_of(router), b"-~").decode(),),
        publishers=(
            {"plugin": "i2cp", "mode": "service", "target": SITE, "keys": str(SITE_BUNDLE), **SITE_TUNNELS},
        ),
    )


def let_rank_read() -> None:
    """Create the user ``rank`` on every node, and write the options of ``garlicfarm rank``."""
    password = secrets.token_urlsafe(32)
    options = ["--user rank --password-file password --trigger 1s"]
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


def make_farm(scratch: Path, members: dict[int, MemberPlan], **plan: Any) -> None:
    """Create the farm in ``scratch``, and fill the volumes except for the configurations."""
    key_file = scratch / "master.key"
    master = encode(create_keys(key_file).destination)
    preset = plan.get("preset", "clearnet")
    made_for = FarmPlan(
        master=master,
        master_key_file=key_file,
        interval_ms=PRESET_INTERVALS_MS[preset],
        lease_ms=PRESET_LEASES_MS[preset],
        **plan,
    )
    farm = create_farm(scratch / "farm", members, made_for)
    for number, volume in VOLUMES.items():
        replace(volume / "data", farm.directories[number] / "data")


def replace(directory: Path, source: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)  # left by an interrupted init
    shutil.copytree(source, directory)


def main() -> None:
    made = [(volume / "garlicfarm.toml").is_file() for volume in VOLUMES.values()]
    if all(made):
        return
    if any(made):
        sys.exit("some volumes hold a node and some do not; remove all: docker compose --profile '*' down -v")
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        match sys.argv[1:]:
            case ["dafka"]:
                make_dafka(scratch)
            case ["i2p", network]:
                make_over_i2p(scratch, network)
            case _:
                make_over_tls(scratch)
        # Last: a volume with a configuration has everything else.
        for number, volume in VOLUMES.items():
            shutil.copy2(scratch / "farm" / f"node-{number}" / "garlicfarm.toml", volume)


if __name__ == "__main__":
    main()
