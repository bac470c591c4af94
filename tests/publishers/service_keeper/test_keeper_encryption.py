"""How clients of a service may encrypt."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from trio.testing import wait_all_tasks_blocked

from garlicfarm.i2p.lease_set import ML_KEM_768, X25519, decode_lease_set
from garlicfarm_plugin_i2cp.connection import may_have_ml_kem
from garlicfarm_plugin_i2cp.ml_kem import PROBE_S, carries_ml_kem
from garlicfarm_plugin_i2cp.service_keeper import FIRST_PROBE_PAUSE_S
from garlicfarm_plugin_i2cp.service_session import DEFAULT, DRAIN_S
from tests.publishers.i2cp_router import CREATE_LEASE_SET_2, DESTROY_SESSION, SEND_MESSAGE
from tests.publishers.service_keeper.keeper_bench import Bench, publishing

KEY_BYTES = 2 + 2 + 32


class Probe:
    """Answers when it is told to; ``asked``: how often it was asked."""

    def __init__(self, *answers: bool) -> None:
        self.answers = list(answers)
        self.asked = 0
        self.may_answer = trio.Event()

    async def __call__(self) -> bool:
        self.asked += 1
        await self.may_answer.wait()
        return self.answers.pop(0)


async def bench_with(
    bench: Bench, nursery: trio.Nursery, version: bytes, probe: Callable[[], Awaitable[bool]]
) -> Bench:
    """A keeper at a router of this version."""
    made = Bench(nursery, bench.keys, DEFAULT, carries_ml_kem=probe)
    made.router.version = version
    nursery.start_soon(made.run)
    return made


def types(body: bytes, count: int) -> list[int]:
    """Those that the LeaseSet of a CreateLeaseSet2 with so many keys offers, after its keys are compared with
    the private ones behind it."""
    lease_set = decode_lease_set(body[3 : -count * KEY_BYTES - 1])
    assert body[-count * KEY_BYTES - 1] == count == len(lease_set.encryption_keys)
    for i, public in enumerate(lease_set.encryption_keys):
        at = len(body) - (count - i) * KEY_BYTES
        private = X25519PrivateKey.from_private_bytes(body[at + 4 :][:32])
        assert body[at : at + 4] == public.type.to_bytes(2, "big") + b"\0\x20"
        assert private.public_key().public_bytes_raw() == public.key
    assert len({key.key for key in lease_set.encryption_keys}) == count
    return [key.type for key in lease_set.encryption_keys]


async def test_session_on_standby_is_followed_by_one_with_ml_kem_once_the_router_has_shown_it(
    bench, nursery, autojump_clock
):
    probe = Probe(True)
    made = await bench_with(bench, nursery, b"0.9.68", probe)
    await made.keeper.standby()
    assert made.keeper.session.encryption == (X25519,)
    probe.may_answer.set()
    await wait_all_tasks_blocked()
    assert made.keeper.is_ready  # while the next one builds tunnels, too
    await made.keeper.standby()
    await made.keeper.publish(made.order())
    bodies = made.router.bodies(CREATE_LEASE_SET_2)
    assert types(bodies[0], 1) == [X25519]
    assert types(bodies[-1], 2) == [ML_KEM_768, X25519]
    assert made.keeper.session.encryption == (ML_KEM_768, X25519)
    assert len(made.connected_at) == 2
    assert probe.asked == 1


@pytest.mark.parametrize("retires", [False, True])
async def test_session_that_clients_know_keeps_its_keys_and_the_next_one_has_ml_kem(
    bench, nursery, autojump_clock, retires
):
    """A key added to it would cut its clients off."""
    probe = Probe(True)
    made = await bench_with(bench, nursery, b"0.9.68", probe)
    await publishing(made)
    if retires:
        await made.keeper.retire(None)
    probe.may_answer.set()
    await trio.sleep(DEFAULT.republish_s + 1)
    await made.router.ask()
    await wait_all_tasks_blocked()
    assert {tuple(types(body, 1)) for body in made.router.bodies(CREATE_LEASE_SET_2)} == {(X25519,)}
    assert len(made.connected_at) == 1
    await made.keeper.retire(None)
    await trio.sleep(DEFAULT.lease_s + 2 * DRAIN_S)
    assert made.keeper.session.encryption == (ML_KEM_768, X25519)
    assert probe.asked == 1


async def test_router_that_has_died_has_to_show_it_again(bench, nursery, autojump_clock):
    probe = Probe(True, False)
    probe.may_answer.set()
    made = await bench_with(bench, nursery, b"0.9.68", probe)
    await made.keeper.standby()
    await trio.sleep(5)
    assert made.keeper.session.encryption == (ML_KEM_768, X25519)
    await made.router.kill()
    await trio.sleep(5)
    assert made.keeper.session.encryption == (X25519,)
    assert probe.asked == 2


async def test_router_that_has_not_shown_it_is_tried_again_later(bench, nursery, autojump_clock):
    probe = Probe(False, False, True)
    probe.may_answer.set()
    made = await bench_with(bench, nursery, b"0.9.68", probe)
    await made.keeper.standby()
    await trio.sleep(3 * FIRST_PROBE_PAUSE_S - 1)
    assert probe.asked == 2
    await trio.sleep(2)
    assert probe.asked == 3


async def test_router_too_old_for_ml_kem_is_not_tried(bench, nursery, autojump_clock):
    probe = Probe()
    made = await bench_with(bench, nursery, b"2.45.1", probe)
    await publishing(made)
    assert probe.asked == 0
    assert made.keeper.session.encryption == (X25519,)


async def test_probe_is_true_once_a_message_and_its_answer_came(bench, autojump_clock):
    bench.router.carries = True
    assert await carries_ml_kem(bench.address, 1, bench.now_ms)
    offered = [
        types(body, count)
        for count in (1, 2)
        for body in bench.router.bodies(CREATE_LEASE_SET_2)
        if body[-count * KEY_BYTES - 1] == count and body[-count * KEY_BYTES :][:2] == b"\0\6"
    ]
    assert offered[0] == [ML_KEM_768]  # of the callee: nothing else could have been used
    assert [ML_KEM_768, X25519] in offered
    assert len(bench.router.bodies(SEND_MESSAGE)) == 2
    assert len(bench.router.bodies(DESTROY_SESSION)) == 2


async def test_probe_is_false_where_nothing_comes(bench, autojump_clock):
    began_s = trio.current_time()
    assert not await carries_ml_kem(bench.address, 1, bench.now_ms)
    assert trio.current_time() - began_s == pytest.approx(PROBE_S)
    assert len(bench.router.bodies(SEND_MESSAGE)) > 10
    assert len(bench.router.bodies(DESTROY_SESSION)) == 2


async def test_probe_is_false_where_the_router_refuses_a_session(bench, autojump_clock):
    await bench.keeper.standby()
    bench.router.statuses = [3, 1]
    assert not await carries_ml_kem(bench.address, 1, bench.now_ms)


@pytest.mark.parametrize(
    ("version", "may"),
    [("0.9.67", True), ("0.10.0", True), ("0.9.66", False), ("2.45.1", False), ("", False), ("0.9.x", False)],
)
def test_versions_of_i2p_that_may_have_ml_kem_are_known(version: str, may: bool) -> None:
    assert may_have_ml_kem(version) is may
