"""The checks that every router plugin has to pass.

For the author of a plugin::

    from garlicfarm.testing import RouterSuite

    class TestMyRouter(RouterSuite):
        @pytest.fixture
        def router(self, tmp_path):
            return MyRouter(MyRouter.Config(url="…"), tmp_path)

The suite enters the router itself. Override `unreachable_router` and `leaf` too, where you can. Needs
pytest-trio with ``trio_mode = true``.
"""

from __future__ import annotations

import hashlib
import inspect
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar, get_args

import msgspec
import pytest
import trio

from garlicfarm.errors import NotSupported, RouterError
from garlicfarm.router import (
    MEASUREMENT_TIMEOUT_S,
    Bandwidth,
    DestinationStatus,
    RemoteStatus,
    Router,
    RouterStatus,
    Tunnels,
    figures,
)

T = TypeVar("T")

ANSWER_TIMEOUT_S = 15.0
"""No question to a router, working or not, may take longer, except a measurement."""

MASTER_HASH = hashlib.sha256(b"master").digest()


class RouterSuite:
    """Subclass it and define the fixture `router`."""

    @pytest.fixture
    def router(self) -> Router:
        """A router in working order, made and not entered."""
        raise NotImplementedError("define the fixture `router`")

    @pytest.fixture
    def unreachable_router(self) -> Router:
        """A router of the same class at an address that does not answer; without it that check is
        skipped."""
        pytest.skip("no fixture unreachable_router")

    @pytest.fixture
    def leaf(self) -> bytes:
        """A binary destination; one that the router serves, if it serves any."""
        return bytes(384) + bytes.fromhex("05000400070000")

    async def test_class_declares_api_version_and_config(self, router: Router) -> None:
        assert type(router).api_version == Router.api_version
        assert issubclass(type(router).Config, msgspec.Struct)
        assert isinstance(router.config, type(router).Config)

    @pytest.mark.parametrize("name", sorted(Router.__abstractmethods__))
    async def test_signature_is_that_of_the_contract(self, router: Router, name: str) -> None:
        ours, theirs = getattr(Router, name), getattr(type(router), name)
        assert inspect.iscoroutinefunction(theirs)
        assert list(inspect.signature(theirs).parameters) == list(inspect.signature(ours).parameters)

    async def test_router_status_has_the_documents_types_and_ranges(self, router: Router) -> None:
        async with router:
            status = await _answer(router.get_local_router_status)
        _check_document(status, RouterStatus)

    async def test_origins_if_given_name_every_figure_reported(self, router: Router, leaf: bytes) -> None:
        origins = type(router).origins
        assert origins.keys() <= set(_figure_keys())
        for origin in origins.values():
            assert origin
            assert origin.isprintable()
        async with router:
            status = await _answer(router.get_local_router_status)
            found = {f"router.{key}": value for key, value in figures(status).items()}
            if (of_leaf := await _supported(router.get_local_leaf_status, leaf)) is not None:
                found |= {f"destinations.{key}": value for key, value in figures(of_leaf).items()}
        reported = {key for key, value in found.items() if value is not None} - {"destinations.destination"}
        assert not origins or reported <= origins.keys()

    async def test_router_uptime_asked_twice_does_not_fall(self, router: Router) -> None:
        async with router:
            first = await _answer(router.get_local_router_status)
            second = await _answer(router.get_local_router_status)
        assert (first.uptime is None) == (second.uptime is None)
        if first.uptime is not None and second.uptime is not None:
            assert second.uptime >= first.uptime

    async def test_leaf_status_is_of_the_leaf_asked_for(self, router: Router, leaf: bytes) -> None:
        async with router:
            status = await _supported(router.get_local_leaf_status, leaf)
        if status is not None:
            _check_document(status, DestinationStatus)
            assert b64decode(status.destination, altchars=b"-~", validate=True) == leaf

    async def test_remote_status_is_of_the_hash_asked_for(self, router: Router) -> None:
        async with router:
            status = await _supported(
                router.get_remote_measured_status, MASTER_HASH, timeout_s=MEASUREMENT_TIMEOUT_S
            )
        if status is not None:
            _check_document(status, RemoteStatus)
            assert status.hash == b64encode(MASTER_HASH, altchars=b"-~").decode()

    async def test_questions_from_several_tasks_are_all_answered(self, router: Router) -> None:
        answers: list[RouterStatus] = []

        async def ask() -> None:
            answers.append(await _answer(router.get_local_router_status))

        async with router, trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask)
        assert len(answers) == 3

    @pytest.mark.parametrize("after_s", [0.0, 0.0005, 0.005])
    async def test_cancelled_question_leaves_the_router_usable(self, router: Router, after_s: float) -> None:
        async with router:
            with trio.move_on_after(after_s):
                await router.get_local_router_status()
            _check_document(await _answer(router.get_local_router_status), RouterStatus)

    async def test_router_left_and_entered_again_answers(self, router: Router) -> None:
        for _ in range(2):
            async with router as entered:
                assert entered is router
                _check_document(await _answer(router.get_local_router_status), RouterStatus)

    async def test_unreachable_router_is_entered_and_raises_router_error(
        self, unreachable_router: Router
    ) -> None:
        async with unreachable_router:  # the farm starts and continues without its router
            with pytest.raises(RouterError) as caught:
                await _answer(unreachable_router.get_local_router_status)
        assert not isinstance(caught.value, NotSupported)
        assert str(caught.value)


async def _answer(
    method: Callable[..., Awaitable[T]], *arguments: object, timeout_s: float = ANSWER_TIMEOUT_S
) -> T:
    with trio.fail_after(timeout_s):
        return await method(*arguments)


async def _supported(
    method: Callable[..., Awaitable[T]], *arguments: object, timeout_s: float = ANSWER_TIMEOUT_S
) -> T | None:
    try:
        return await _answer(method, *arguments, timeout_s=timeout_s)
    except NotSupported:
        return None


def _check_document(status: Any, document: type[msgspec.Struct]) -> None:
    """Constructing a Struct checks nothing; decoding does: types, 0 … 2**63-1, nothing unknown."""
    assert type(status) is document
    assert msgspec.json.decode(msgspec.json.encode(status), type=document) == status


def _figure_keys() -> Iterator[str]:
    """Every key that `Router.origins` can have."""
    for room, document in (("router", RouterStatus), ("destinations", DestinationStatus)):
        for field in msgspec.structs.fields(document):
            goes_two_ways = {Bandwidth, Tunnels} & set(get_args(field.type))
            for way in (".in", ".out") if goes_two_ways else ("",):
                yield f"{room}.{field.encode_name}{way}"
