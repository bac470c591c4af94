"""Publishes a service through a router's I2CP: its ordinary LeaseSet, and the streams of its clients.

I2CP carries packets and lets its client compose the LeaseSet. So this publisher keeps a session with tunnels
ready on each member, publishes leases that are short, and hands clients over to its successor; and it has
I2P's streaming protocol to itself. Each stream is joined to a connection of its own to the service.

Not run against Java I2P.
"""

from __future__ import annotations

import logging
import random
import resource
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import NoReturn, Self

import msgspec
import trio

from garlicfarm.credentials.router_login import read_login
from garlicfarm.errors import ConfigError
from garlicfarm.i2p.encoding import encode
from garlicfarm.i2p.lease_set import MAX_LEASES, ML_KEM_768, X25519
from garlicfarm.i2p.router_kind import RouterKind
from garlicfarm.i2p.session_configuration import decode_session_configuration
from garlicfarm.i2p.session_options import Purpose, session_options
from garlicfarm.logs import EventLogger
from garlicfarm.plugin_settings import collect_problems
from garlicfarm.publisher import (
    ClientRules,
    KeyReport,
    Published,
    Publisher,
    PublisherSite,
    PublisherStatus,
    PublishOrder,
)
from garlicfarm.router import Bandwidth, DestinationStatus, StreamFigures, Tunnels
from garlicfarm.service_keys import ServiceKeys, check_targets
from garlicfarm_plugin_i2cp.background import Background
from garlicfarm_plugin_i2cp.config import I2cpConfig
from garlicfarm_plugin_i2cp.connection import parse_address
from garlicfarm_plugin_i2cp.service_keeper import ServiceKeeper
from garlicfarm_plugin_i2cp.service_options import ServiceOptions
from garlicfarm_plugin_i2cp.service_session import DEFAULT, FAST
from garlicfarm_plugin_i2cp.streaming.limits import limits_for
from garlicfarm_plugin_i2cp.streaming.server import StreamServer

LOG_S = 60.0
BYTES_PER_KB = 1024


class ServicePublisher(Publisher):
    """See the module. The constructor raises `ConfigError`."""

    Config = I2cpConfig
    config: I2cpConfig

    def __init__(self, config: I2cpConfig, base_dir: Path, site: PublisherSite) -> None:
        super().__init__(config, base_dir, site)
        problems: list[str] = []
        try:
            login = read_login(config.user, config.password_file, base_dir)
            router = parse_address(config.address, login, config.kind)
        except ConfigError as error:
            problems += error.problems
        try:
            options = ServiceOptions(config, base_dir)
        except ConfigError as error:
            problems += error.problems
        with collect_problems(problems, "publisher i2cp"):
            self._keys = ServiceKeys(base_dir / config.keys, site)
            signed = decode_session_configuration(self._configuration("active", _now_ms(), "i2pd")).options
        if problems:
            raise ConfigError(problems)
        self._endpoints = options.endpoints
        self._tunnels = Tunnels(
            in_=int(signed.get("inbound.quantity", 0)), out=int(signed.get("outbound.quantity", 0))
        )
        self._server = StreamServer(
            self._keys.keys,
            options.targets,
            ports=options.ports,
            http=options.http,
            limits=msgspec.structs.replace(
                limits_for(_max_open_files()), connections_per_minute=config.max_connections_per_minute
            ),
            random=random.SystemRandom(),
            drain_s=config.drain_s,
        )
        self._keeper = ServiceKeeper(
            router,
            self._keys,
            FAST if config.leases == "fast" else DEFAULT,
            self._server,
            configuration=self._configuration,
            now_ms=_now_ms,
            encryption=(ML_KEM_768, X25519) if config.encryption == "ml-kem" else (X25519,),
        )
        self._background = Background()

    @property
    def destination(self) -> bytes:
        return self._keys.keys.destination

    @property
    def targets(self) -> tuple[str, ...]:
        return tuple(endpoint.authority for endpoint in self._endpoints)

    @property
    def key(self) -> KeyReport | None:
        return self._keys.report

    async def __aenter__(self) -> Self:
        await self._background.begin(
            partial(self._server.run, self._keeper),
            self._keeper.run,
            self._log_losses,
            partial(self._keys.watch, self._keeper.on_keys),
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Ends the session and all streams."""
        await self._background.end()

    async def standby(self) -> None:
        """See `Publisher.standby`: the session has tunnels, and the service listens. A retired session goes
        on."""
        await self._keeper.standby()
        await check_targets(self._endpoints)

    async def publish(self, order: PublishOrder) -> Published:
        """See `Publisher.publish`. "A router has taken it": it has read the LeaseSet, and has answered
        afterwards. It reports nothing of the floodfills. The LeaseSet is published again at each interval of
        its plan, whether or not another order comes, and in the next session if this one ends: until
        `standby` or `retire`. A `PublisherError` does not end that either."""
        return await self._keeper.publish(order)

    async def retire(self, successor: bytes | None) -> None:
        """See `Publisher.retire`. The session goes on to serve the clients that know it, and hands them
        ``successor``, until they have forgotten its leases. Streams that are open when it does so are reset
        after ``drain_s``, unless another order comes first; nothing waits for them."""
        await self._keeper.retire(successor)

    async def status(self) -> PublisherStatus:
        """The leaf's figures: see `_leaf`. A session on standby shows that the router has ended that of an
        earlier process."""
        keeper, now_s = self._keeper, trio.current_time()
        session = keeper.session
        is_publishing = session is not None and session.is_publishing(now_s)
        return PublisherStatus(
            is_publishing=is_publishing,
            is_ready=keeper.is_ready,
            is_withdrawn=session is not None and session.phase == "standby",
            since_ms=session.since_ms if session is not None and is_publishing else None,
            until_ms=session.until_ms if session is not None and is_publishing else None,
            published_ms=keeper.published_ms,
            leaf=self._leaf(now_s),
            router_date=keeper.router_date,
            router_kind=keeper.router_kind,
            refused=dict(self._refused),
            problems=tuple(filter(None, (keeper.problem, *self._server.problems, *self._keys.problems))),
        )

    def _leaf(self, now_s: float) -> DestinationStatus:
        """The figures of the session and its streams.

        I2CP says nothing of outbound tunnels, so none are reported. The inbound ones are those that the
        router has asked a LeaseSet for, the most within a minute: it replaces them one at a time, and each
        that is missing for a moment would cost the member more than the margin. The LeaseSet is renewed while
        they last, so their ends are reported, not those of the shortened leases. Limits of the bandwidth are
        reported where the router says its own.
        """
        keeper, server, session = self._keeper, self._server, self._keeper.session
        round_trip_s = server.round_trip_s
        leaf = DestinationStatus(
            destination=encode(self.destination),
            configured_tunnels=self._tunnels,
            current_bandwidth=Bandwidth(in_=keeper.received.per_s(now_s), out=keeper.sent.per_s(now_s)),
            configured_connections=server.max_streams,
            current_connections=server.open_streams,
            streams=StreamFigures(
                round_trip_ms=None if round_trip_s is None else round(round_trip_s * 1000),
                sent_packets=server.counts.sent,
                resent_packets=server.counts.resent,
                refused=self._refused.total(),
            ),
        )
        if session is None:
            return leaf
        ends, limits = session.lease_ends(now_s), session.limits
        if limits is not None and limits.router_in and limits.router_out:
            in_, out = limits.client_in * BYTES_PER_KB, limits.client_out * BYTES_PER_KB
            leaf = msgspec.structs.replace(leaf, configured_bandwidth=Bandwidth(in_=in_, out=out))
        if session.has_asked:
            leaf = msgspec.structs.replace(
                leaf,
                current_tunnels=Tunnels(in_=session.tunnels_lately(now_s)),
                lease_set_expires=max(ends, default=None),
                lease_ends=ends[-MAX_LEASES:],
            )
        return msgspec.structs.replace(leaf, uptime=round((now_s - session.began_s) * 1000))

    @property
    def _refused(self) -> Counter[str]:
        """Packets and streams, by cause."""
        return self._server.refused + self._keeper.dropped

    def restrict_clients(self, rules: ClientRules) -> bool:
        """See `Publisher.restrict_clients`. Streams of others are reset."""
        self._server.restrict(rules.admits)
        return True

    def has_met(self, client: bytes) -> bool | None:
        return self._server.has_met(client)

    async def wait_changed(self) -> None:
        await self._keeper.wait_changed()

    async def _log_losses(self) -> NoReturn:
        """Log once a minute which packets were refused and dropped since, by cause."""
        logger = logging.getLogger("garlicfarm.publisher.i2cp")
        log = EventLogger(logger, farm=self.site.farm, node=self.site.node_id)
        logged: Counter[str] = Counter()
        while True:
            await trio.sleep(LOG_S)
            counts = self._refused
            if new := counts - logged:
                causes = ", ".join(f"{cause}: {count}" for cause, count in new.most_common())
                log.info("packets-dropped", causes=causes)
            logged = counts

    def _configuration(self, purpose: Purpose, now_ms: int, kind: RouterKind) -> bytes:
        options = session_options(purpose, self.config.hops, self.config.quantity)
        return self._keys.keys.session_configuration(options, now_ms, purpose, kind)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _max_open_files() -> int:
    """Of this process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft
