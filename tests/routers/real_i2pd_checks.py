"""What the plugin reads of running i2pd routers, named by $I2PD_ROUTERS. Run by test_real_i2pd.py, in
this order: the last check ends the last router."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import msgspec
import pytest
import trio
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from garlicfarm.errors import RouterError
from garlicfarm.i2p.encoding import encode
from garlicfarm.lab.i2pd import I2pdRouter, i2pd_restarted, in_private_network
from garlicfarm.router import Bandwidth, Router, RouterStatus
from garlicfarm.testing.router_suite import RouterSuite
from garlicfarm_plugin_i2pcontrol import I2PControlConfig, I2PControlRouter

ROUTERS = json.loads(os.environ["I2PD_ROUTERS"])
TUNNELS_TIMEOUT_S = 40
RESTART_TIMEOUT_S = 240


def plugin(router: dict[str, str], **keys: str) -> I2PControlRouter:
    keys = {name: router[name] for name in ("url", "password_file", "pin")} | keys
    return I2PControlRouter(msgspec.convert(keys, I2PControlConfig), Path())


class TestRealI2pd(RouterSuite):
    @pytest.fixture
    def router(self) -> Router:
        return plugin(ROUTERS[0])

    @pytest.fixture
    def unreachable_router(self) -> Router:
        return plugin(ROUTERS[0], url="https://198.18.0.11:7651")


def test_network_is_private() -> None:
    assert in_private_network()


@pytest.mark.parametrize("router", ROUTERS, ids=lambda router: router["address"])
def test_router_had_to_make_no_rsa_key(router: dict[str, str]) -> None:
    key = load_pem_private_key(Path(router["data_dir"], "i2pcontrol.key.pem").read_bytes(), None)
    assert isinstance(key, EllipticCurvePrivateKey)


@pytest.mark.parametrize("router", ROUTERS, ids=lambda router: router["address"])
async def test_configured_bandwidth_is_that_of_the_configuration_file(router: dict[str, str]) -> None:
    lines = Path(router["data_dir"], "i2pd.conf").read_text().splitlines()  # noqa: ASYNC240
    (limit_kb,) = [int(line.split("=")[1]) for line in lines if line.startswith("bandwidth")]
    for _ in range(3):  # asking has not changed it
        status = await plugin(router).get_local_router_status()
        assert status.configured_bandwidth == Bandwidth(in_=limit_kb * 1024, out=limit_kb * 1024)


async def test_uptime_rises_with_time() -> None:
    router = plugin(ROUTERS[0])
    first = await router.get_local_router_status()
    await trio.sleep(2.5)  # i2pd counts in seconds
    second = await router.get_local_router_status()
    assert 1000 <= second.uptime - first.uptime <= 10_000


async def test_tunnels_and_rates_become_those_of_routers_at_work() -> None:
    statuses: list[RouterStatus] = []
    with trio.fail_after(TUNNELS_TIMEOUT_S):
        while not statuses or not all(each.current_bandwidth.in_ > 0 for each in statuses):
            await trio.sleep(0.5)
            statuses = [await plugin(router).get_local_router_status() for router in ROUTERS]
    assert all(each.current_bandwidth.out > 0 for each in statuses)
    assert sum(each.participating_tunnels for each in statuses) > 0
    for status in statuses:
        assert status == RouterStatus(
            uptime=status.uptime,
            participating_tunnels=status.participating_tunnels,
            configured_bandwidth=status.configured_bandwidth,
            current_bandwidth=status.current_bandwidth,
        )
        print(status)


async def test_router_info_is_the_one_that_the_router_wrote() -> None:
    file = Path(ROUTERS[0]["data_dir"], "router.info")
    status = await plugin(ROUTERS[0], router_info=str(file)).get_local_router_status()
    assert status.last_published_ri == encode(file.read_bytes())  # noqa: ASYNC240


async def test_wrong_password_is_refused_as_such(tmp_path: Path) -> None:
    password_file = tmp_path / "password"
    password_file.touch(mode=0o600)
    password_file.write_text("itoopie\n")
    with pytest.raises(RouterError, match="password"):
        await plugin(ROUTERS[0], password_file=str(password_file)).get_local_router_status()


async def test_certificate_of_another_router_is_refused() -> None:
    with pytest.raises(RouterError, match="pin"):
        await plugin(ROUTERS[0], pin=ROUTERS[1]["pin"]).get_local_router_status()


async def test_router_killed_and_restarted_is_read_again() -> None:
    killed = I2pdRouter(**ROUTERS[-1] | {"data_dir": Path(ROUTERS[-1]["data_dir"])})
    pinned = plugin(ROUTERS[-1])
    before = await pinned.get_local_router_status()
    os.kill(killed.pid, signal.SIGKILL)
    await assert_refused(pinned)

    async with i2pd_restarted(killed):
        after = await answer_of(pinned)
        assert after.uptime < before.uptime
        assert after.configured_bandwidth == before.configured_bandwidth
    await assert_refused(pinned)

    # Pins are for addresses beyond loopback, so the router moves there to be known by none.
    at_loopback = "--i2pcontrol.address=127.0.0.1"
    pinned, unpinned = (plugin(ROUTERS[-1], url="https://127.0.0.1:7650", **pin) for pin in ({}, {"pin": ""}))
    async with i2pd_restarted(killed, at_loopback):
        await answer_of(pinned)
        await answer_of(unpinned)
    for name in ("i2pcontrol.crt.pem", "i2pcontrol.key.pem"):
        killed.data_dir.joinpath(name).unlink()
    async with i2pd_restarted(killed, at_loopback):
        assert (await answer_of(unpinned)).configured_bandwidth == before.configured_bandwidth
        with pytest.raises(RouterError, match=r"which does not match the pin; .* change pin"):
            await pinned.get_local_router_status()
    await assert_refused(unpinned)


async def assert_refused(router: Router) -> None:
    for _ in range(2):
        with pytest.raises(RouterError, match="cannot be reached"):
            await router.get_local_router_status()


async def answer_of(router: Router) -> RouterStatus:
    """The first answer of a router that is starting."""
    with trio.fail_after(RESTART_TIMEOUT_S):
        while True:
            try:
                return await router.get_local_router_status()
            except RouterError:
                await trio.sleep(0.1)
