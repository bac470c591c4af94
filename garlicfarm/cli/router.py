"""`garlicfarm router`: the figures that the I2P router of this node reports."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import click

from garlicfarm.cli.command_group import CommandGroup
from garlicfarm.cli.node_access import deadline, node_config
from garlicfarm.cli.options import Options, print_rows, shared_options

if TYPE_CHECKING:
    from garlicfarm.config import Config, FarmSection
    from garlicfarm.router import Router

T = TypeVar("T")

LONGEST_VALUE = 24
UNITS = {
    "uptime": "ms",
    "jobLag": "ms",
    "leaseSetExpires": "ms since 1970",
    "leaseEnds": "ms since 1970",
    "roundTripMs": "ms",
    "configuredBandwidth": "bytes/s",
    "currentBandwidth": "bytes/s",
}


@click.group(cls=CommandGroup)
def router() -> None:
    """The I2P router of this node."""


@router.command(examples=["garlicfarm router show"])
@shared_options("config", "farm", "output", "timeout")
def show(options: Options) -> None:
    """Show what the node would post about the router of each farm, and the source of each figure.

    Asks the router as the node does, and posts nothing. The node need not run.
    """
    import trio

    from garlicfarm.cli.sign_of_life import sign_of_life
    from garlicfarm.errors import RouterError

    config = node_config(options)
    farms = _chosen(config, options.farm)
    routers = [_make(config, farm) for farm in farms]
    rows: list[dict[str, Any]] = []
    silences: list[str] = []

    async def ask() -> None:
        with deadline(options.timeout_s, "the router has not answered every question"):
            for farm, its_router in zip(farms, routers, strict=True):
                asked = _Asked(farm, its_router)
                async with sign_of_life(f"the router of farm {farm.name}"):
                    rows.extend(await asked.rows())
                silences.extend(f"farm {farm.name}: {cause}" for cause in asked.silences)

    trio.run(ask)
    if options.output == "table":
        rows = [row | {"value": _short(row["value"])} for row in rows]
    print_rows(options.output, "garlicfarm.router-show/1", rows)
    if silences:
        raise RouterError("; ".join(dict.fromkeys(silences)))


def _chosen(config: Config, name: str | None) -> list[FarmSection]:
    from garlicfarm.errors import ConfigError

    post = [farm for farm in config.farm if farm.application == "publisher"]
    chosen = [farm for farm in post if name in (None, farm.name)]
    if not chosen:
        names = ", ".join(farm.name for farm in post) or "none"
        told = "only farms of the application publisher post a router's figures; it has of these"
        raise ConfigError([f"{config.path}: {told}: {names}"])
    return chosen


def _make(config: Config, farm: FarmSection) -> Router | None:
    from garlicfarm.plugins import make_router

    table = dict(farm.router)
    return make_router(table.pop("plugin"), table, config.base_dir) if table else None


class _Asked:
    """The answers of one farm's router, as rows. ``silences``: why a question was not answered."""

    def __init__(self, farm: FarmSection, router: Router | None) -> None:
        self._farm = farm
        self._router = router
        self.silences: list[str] = []

    async def rows(self) -> list[dict[str, Any]]:
        from garlicfarm.router import RouterStatus, figures

        async with self._router or nullcontext():
            status = await self._answer(lambda router: router.get_local_router_status())
            rows = self._figures("router", figures(status or RouterStatus()))
            for i, leaf in enumerate(self._farm.leaf):
                rows += await self._leaf(f"destinations[{i}]", leaf.destination)
        return rows

    async def _leaf(self, prefix: str, destination: str) -> list[dict[str, Any]]:
        from garlicfarm.i2p.destination import decode_destination
        from garlicfarm.router import figures

        binary = decode_destination(destination)
        status = await self._answer(lambda router: router.get_local_leaf_status(binary))
        found = {} if status is None else figures(status)
        found.pop("destination", None)
        named = self._row(f"{prefix}.destination", destination, "[[farm.leaf]]")
        return [named, *self._figures(prefix, found)]

    def _figures(self, prefix: str, found: Mapping[str, Any]) -> list[dict[str, Any]]:
        rows = []
        for name, value in found.items():
            if self._router is None:
                origin = "no [farm.router]"
            elif value is None:
                origin = "not reported"
            else:
                plugin = f"plugin {self._farm.router['plugin']}"
                origin = type(self._router).origins.get(f"{prefix.partition('[')[0]}.{name}", plugin)
            rows.append(self._row(f"{prefix}.{name}", value, origin))
        return rows

    def _row(self, key: str, value: Any, origin: str) -> dict[str, Any]:
        unit = next((UNITS[part] for part in key.split(".") if part in UNITS), None)
        return {"farm": self._farm.name, "key": key, "value": value, "unit": unit, "origin": origin}

    async def _answer(self, question: Callable[[Router], Awaitable[T]]) -> T | None:
        """The answer to a question, asked as the node does, with the same deadline; None: no answer."""
        import trio

        from garlicfarm.errors import NotSupported, RouterError
        from garlicfarm.router import STATUS_TIMEOUT_S

        if self._router is None:
            return None
        try:
            with trio.fail_after(STATUS_TIMEOUT_S):
                return await question(self._router)
        except NotSupported:
            pass
        except RouterError as error:
            self.silences.append(str(error))
        except trio.TooSlowError:
            self.silences.append(f"the router did not answer within {STATUS_TIMEOUT_S:.0f} s")
        return None


def _short(value: Any) -> Any:
    is_long = isinstance(value, str) and len(value) > LONGEST_VALUE
    return f"{value[:LONGEST_VALUE]}…" if is_long else value
