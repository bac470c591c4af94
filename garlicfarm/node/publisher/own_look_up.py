"""A publisher looks what it publishes up as a stranger would: through its router, from a destination made for
that, once a minute. Operators read what came of it; the role is moved by the others' tests alone (D25).

Where the plugin knows its clients it also knows whether the stranger has come to it. One that was answered,
and has not, has found another server of the destination.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import msgspec
import trio

from garlicfarm.application import ApplicationContext
from garlicfarm.errors import NotSupported, RouterError
from garlicfarm.node.publisher.hosted_publisher import HostedPublisher
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.publishing.publisher_core import PublisherCore
from garlicfarm.router import MEASUREMENT_TIMEOUT_S, RemoteStatus, Router

PERIOD_S = 60.0
GRACE_S = 100.0
"""Since it was seen to publish. Until then a stranger may find its predecessor's LeaseSet, or none."""
BAD_IN_A_ROW = 2
"""look-ups, for a problem: I2P loses streams"""

_REMEDY = (
    "does the router reach I2P? its log may say; `garlicfarm node drain` has another member publish meanwhile"
)
_NOT_FOUND = f"a stranger at this router finds no LeaseSet of it: {_REMEDY}"
_SILENT = f"a stranger at this router finds its LeaseSet, and gets no answer: {_REMEDY}"
_ELSEWHERE = (
    "a stranger at this router reaches another server of this destination: end what else has its keys "
    "(or wait, if a former publisher's LeaseSet lasts longer than usual)"
)


class _View(msgspec.Struct, kw_only=True):
    """Of one turn. ``text``: what the last look-up found, "": nothing yet; ``bad``: how many in a row found
    what is bad."""

    turn: int | None
    began_s: float
    text: str = ""
    bad: int = 0


class OwnLookUps:
    """``publishers``: of this node. ``master``: the binary master destination, to which no client connects;
    None: this node does not publish it."""

    def __init__(
        self,
        context: ApplicationContext,
        fold: PublisherFold,
        publishers: Sequence[HostedPublisher],
        master: bytes | None,
    ) -> None:
        self._context = context
        self._fold = fold
        self._publishers = [one for one in publishers if one.own.traits.destination not in (None, master)]
        self._views: dict[PublisherCore, _View] = {}
        self._answered: set[PublisherCore] = set()  # whose services have answered a stranger, ever

    def seen(self, publisher: PublisherCore) -> str:
        """What was found of what it publishes now, as a sentence; "" where nothing is known."""
        view = self._view(publisher)
        return "" if view is None else view.text

    def problem(self, publisher: PublisherCore) -> str:
        """The same if it is bad, else ""."""
        view = self._view(publisher)
        return "" if view is None or view.bad < BAD_IN_A_ROW else view.text

    async def run(self) -> None:
        """Look up until cancelled; return if the router never can."""
        router = self._context.router
        while router is not None:
            begun_s = trio.current_time()
            for publisher in self._publishers:
                if not self._is_open(publisher.own):
                    continue
                if self._view(publisher.own) is None:
                    self._views[publisher.own] = _View(turn=self._fold.due_since, began_s=begun_s)
                try:
                    await self._look_up(router, publisher)
                except NotSupported:
                    return
            await trio.sleep_until(begun_s + PERIOD_S)

    async def _look_up(self, router: Router, publisher: HostedPublisher) -> None:
        context, own, begun_s = self._context, publisher.own, trio.current_time()
        view, outcome = self._views[own], "ok"
        assert own.traits.destination is not None
        try:
            with trio.fail_after(MEASUREMENT_TIMEOUT_S):
                found = await router.look_up_own(sha256(own.traits.destination).digest())
        except NotSupported:
            outcome = "not-supported"
            raise
        except (RouterError, trio.TooSlowError) as error:
            outcome, view.text, view.bad = "error", "", 0
            context.log.warning("not-looked-up", cause=str(error) or "no answer in time")
        else:
            view.text, is_bad = self._judge(own, found.status, publisher.has_met(found.client))
            view.bad = view.bad + 1 if is_bad and begun_s >= view.began_s + GRACE_S else 0
        finally:
            context.metrics.count_router_request(str(context.section.router.get("plugin", "")), outcome)

    def _judge(self, own: PublisherCore, found: RemoteStatus, has_met: bool | None) -> tuple[str, bool]:
        """What was found, and whether it is bad."""
        test = found.connect_test
        if test is not None and test.ok:
            self._answered.add(own)
            if has_met is False:
                return _ELSEWHERE, True
            return f"a stranger at this router reached it in {test.ms} ms", False
        if has_met:
            return "a stranger at this router reached it, and its service answered nothing", False
        if found.fetch_time_ms is None:
            return _NOT_FOUND, True
        # What cannot say who has come may have a service that answers no HTTP.
        return _SILENT, has_met is False or own in self._answered

    def _view(self, publisher: PublisherCore) -> _View | None:
        view = self._views.get(publisher)
        is_of_now = view is not None and view.turn == self._fold.due_since
        return view if is_of_now and self._is_open(publisher) else None

    def _is_open(self, publisher: PublisherCore) -> bool:
        """It publishes, and for strangers: those who look up are on no access list."""
        return publisher.state in ("publishing", "renewing") and not self._fold.clients.allowed
