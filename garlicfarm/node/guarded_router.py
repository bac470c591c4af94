"""A router plugin behind a guard: its defects are told, and count as a router that does not answer.

Every method raises `RouterError` in place of what the plugin may not raise, and of answers of another type,
outside their ranges, or about another destination. `run` enters the plugin, and enters it again half a minute
after it has failed inside; meanwhile every query is a `RouterError`. A defect is logged as an error, once
until the same method answers again, or fails in another way.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import NoReturn, TypeVar

import trio

from garlicfarm.errors import NotSupported, RouterError, first_error
from garlicfarm.i2p.encoding import encode
from garlicfarm.logs import EventLogger, place_of
from garlicfarm.node.checked_answer import checked
from garlicfarm.router import DestinationStatus, OwnLookUp, RemoteStatus, Router, RouterStatus

T = TypeVar("T")
AGAIN_S = 30.0
HASH_BYTES = 32


class GuardedRouter(Router):
    """See the module. ``name``: the plugin's, for errors. ``is_tried``: set once it was entered, or has
    failed."""

    def __init__(self, plugin: Router, name: str, log: EventLogger) -> None:
        super().__init__(plugin.config, plugin.base_dir)
        self.is_tried = trio.Event()
        self._plugin = plugin
        self._name = name
        self._log = log
        self._defects: dict[str, str] = {}  # the last of each method, until it answers
        self._is_entered = False

    async def run(self) -> NoReturn:
        """Keep the plugin entered until cancelled."""
        while True:
            try:
                async with self._plugin:
                    self._is_entered = True
                    self.is_tried.set()
                    await trio.sleep_forever()
            except* Exception as group:  # noqa: BLE001 - a plugin's defect is not the node's
                self._on_defect("__aenter__", group)
            finally:
                self._is_entered = False
                self.is_tried.set()
            await trio.sleep(AGAIN_S)

    @property
    def control(self) -> bytes | None:  # type: ignore[override]
        """See `Router.control`; None where the plugin fails, too."""
        try:
            control = self._plugin.control
            if control is not None and not (isinstance(control, bytes) and len(control) == HASH_BYTES):
                raise TypeError("control is no hash of 32 bytes")
        except Exception as error:  # noqa: BLE001 - a plugin's defect is not the node's
            self._on_defect("control", error)
            return None
        return control

    @property
    def measures_served(self) -> bool:
        """See `Router.measures_served`; False where the plugin fails, too."""
        try:
            return self._plugin.measures_served is True
        except Exception as error:  # noqa: BLE001 - a plugin's defect is not the node's
            self._on_defect("measures_served", error)
            return False

    async def answer_tests(self) -> None:
        await self._ask("answer_tests", self._plugin.answer_tests, lambda _: None)

    async def look_up_own(self, leaf: bytes) -> OwnLookUp:
        def check(answer: object) -> OwnLookUp:
            found = checked(answer, OwnLookUp)
            _is_about(leaf, found.status.hash)
            return found

        return await self._ask("look_up_own", partial(self._plugin.look_up_own, leaf), check)

    async def get_local_router_status(self) -> RouterStatus:
        return await self._ask(
            "get_local_router_status",
            self._plugin.get_local_router_status,
            lambda answer: checked(answer, RouterStatus),
        )

    async def get_local_leaf_status(self, leaf: bytes) -> DestinationStatus:
        def check(answer: object) -> DestinationStatus:
            found = checked(answer, DestinationStatus)
            _is_about(leaf, found.destination)
            return found

        return await self._ask(
            "get_local_leaf_status", partial(self._plugin.get_local_leaf_status, leaf), check
        )

    async def get_remote_measured_status(self, master_or_leaf: bytes) -> RemoteStatus | None:
        def check(answer: object) -> RemoteStatus | None:
            if answer is None:
                return None
            found = checked(answer, RemoteStatus)
            _is_about(master_or_leaf, found.hash)
            return found

        return await self._ask(
            "get_remote_measured_status",
            partial(self._plugin.get_remote_measured_status, master_or_leaf),
            check,
        )

    async def _ask(
        self, method: str, ask: Callable[[], Awaitable[object]], check: Callable[[object], T]
    ) -> T:
        if not self._is_entered:
            raise RouterError(self._defects.get("__aenter__", f"the router plugin {self._name} has ended"))
        try:
            answer = check(await ask())
        except (RouterError, NotSupported, trio.TooSlowError):
            raise
        except Exception as error:  # noqa: BLE001 - a plugin's defect is not the node's
            raise RouterError(self._on_defect(method, error)) from None
        self._defects.pop(method, None)
        return answer

    def _on_defect(self, method: str, error: BaseException) -> str:
        """Tell a defect, once; the sentence."""
        found = first_error(error)
        defect = (
            f"the router plugin {self._name} has failed in {method}: {type(found).__name__}: {found} "
            f"({place_of(found)})"
        )
        if defect != self._defects.get(method):
            self._log.error("router-defect", cause=defect)
            self._defects[method] = defect
        return defect


def _is_about(asked: bytes, answered: str) -> None:
    if answered != encode(asked):
        raise ValueError("its answer is about another destination")
