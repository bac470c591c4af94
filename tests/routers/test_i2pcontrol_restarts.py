"""What a restart of the router, or another router in its place, means for the plugin."""

from __future__ import annotations

import pytest

from garlicfarm.errors import NotSupported, RouterError

ASKED = ["RouterInfo", "NetworkSetting", "GetRate"]


async def assert_silent(router) -> None:
    for _ in range(2):
        with pytest.raises(RouterError, match="cannot be reached") as caught:
            await router.get_local_router_status()
        assert not isinstance(caught.value, NotSupported)


async def test_router_down_raises_each_time_and_recovers_by_itself(control_server, make) -> None:
    async with make(url=control_server.url, pin=control_server.pin) as router:
        before = await router.get_local_router_status()
        await control_server.stop()
        await assert_silent(router)
        await control_server.start()
        control_server.requests.clear()
        assert await router.get_local_router_status() == before
    assert control_server.methods == ["Authenticate", *ASKED]


async def test_router_down_when_entered_is_read_once_it_is_up(control_server, make) -> None:
    await control_server.stop()
    async with make(url=control_server.url) as router:
        await assert_silent(router)
        await control_server.start()
        assert (await router.get_local_router_status()).uptime is not None


async def test_certificate_made_anew_with_pin_raises_until_the_pin_is_right(control_server, make) -> None:
    old_pin = control_server.pin
    async with make(url=control_server.url, pin=old_pin) as router:
        await router.get_local_router_status()
        control_server.renew_certificate()
        control_server.requests.clear()
        for _ in range(2):
            with pytest.raises(
                RouterError, match=f"{control_server.pin}, which does not match the pin; .* change pin"
            ):
                await router.get_local_router_status()
        assert control_server.requests == []  # neither password nor token went to it
    async with make(url=control_server.url, pin=control_server.pin) as router:
        await router.get_local_router_status()


async def test_certificate_made_anew_on_loopback_without_pin_goes_on(control_server, make) -> None:
    async with make(url=control_server.url) as router:
        before = await router.get_local_router_status()
        control_server.renew_certificate()
        assert await router.get_local_router_status() == before


async def test_restart_between_two_questions_authenticates_again(java_server, make) -> None:
    async with make(url=java_server.url) as router:
        before = await router.get_local_router_status()
        java_server.answer.restart()
        java_server.requests.clear()
        assert await router.get_local_router_status() == before
    assert java_server.methods == ["RouterInfo", "Authenticate", *ASKED]


async def test_token_expired_authenticates_again(java_server, make) -> None:
    async with make(url=java_server.url) as router:
        before = await router.get_local_router_status()
        java_server.answer.expired |= java_server.answer.tokens
        assert await router.get_local_router_status() == before
        assert await router.get_local_router_status() == before
    assert java_server.methods.count("Authenticate") == 2


async def test_password_changed_at_a_restart_raises_router_error(java_server, make) -> None:
    async with make(url=java_server.url) as router:
        await router.get_local_router_status()
        java_server.answer = lambda request: (
            '{"error":{"code":' + ("-32001" if request["method"] == "Authenticate" else "-32003") + "}}"
        )
        for _ in range(2):
            with pytest.raises(RouterError, match="refused the password"):
                await router.get_local_router_status()


async def test_java_in_place_of_i2pd_has_its_job_lag_read(control_server, java_server, make) -> None:
    async with make(url=control_server.url) as router:
        assert (await router.get_local_router_status()).job_lag is None
        await control_server.stop()
        await assert_silent(router)
        control_server.answer = java_server.answer
        await control_server.start()
        assert (await router.get_local_router_status()).job_lag == 2


async def test_i2pd_in_place_of_java_has_no_job_lag(control_server, java_server, make) -> None:
    i2pd, control_server.answer = control_server.answer, java_server.answer
    async with make(url=control_server.url) as router:
        assert (await router.get_local_router_status()).job_lag == 2
        control_server.answer = i2pd
        assert (await router.get_local_router_status()).job_lag is None
