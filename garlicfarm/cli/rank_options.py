"""The options that `rank` and its commands share, and the types of `rank`'s own."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import click

from garlicfarm.cli.durations import DURATION_RULE, format_ms, parse_ms
from garlicfarm.names import FARM_NAME_RULE, is_farm_name

__all__ = ["Address", "Farms", "Setting", "Sink", "Trigger", "conf_option", "master_option"]

LONGEST_TRIGGER_MS = 3_600_000


class Sink(click.ParamType[str]):
    """``console``, ``memory``, ``garlicfarm``, or ``parquet:DIRECTORY``."""

    name = "sink"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        kind, _, where = str(value).partition(":")
        if kind not in ("console", "memory", "garlicfarm", "parquet") or (kind == "parquet") != bool(where):
            self.fail(f"{value!r} is none of console, memory, garlicfarm, parquet:DIRECTORY", param, ctx)
        return str(value)


class Trigger(click.ParamType[int]):
    """``5s``, ``500ms``, ``1m``: milliseconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        trigger_ms = parse_ms(str(value))
        if trigger_ms is None or trigger_ms > LONGEST_TRIGGER_MS:
            self.fail(f"{value!r} must be {DURATION_RULE}, up to {format_ms(LONGEST_TRIGGER_MS)}", param, ctx)
        return trigger_ms


class Farms(click.ParamType[tuple[str, ...]]):
    """A name, several with commas, or ``*``: none for that."""

    name = "farms"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        if value == "*":
            return ()
        names = tuple(dict.fromkeys(str(value).split(",")))
        for name in names:
            if not is_farm_name(name):
                self.fail(f"{name!r} is no farm's name, which has {FARM_NAME_RULE}", param, ctx)
        return names


class Address(click.ParamType[tuple[str, int]]):
    """``HOST:PORT``, an IPv6 address in brackets."""

    name = "address"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        found = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^:\[\]]+)):([0-9]{1,5})", str(value))
        if found is None or not 0 < int(found[3]) < 65536:
            self.fail(f"{value!r} is no HOST:PORT, as 127.0.0.1:9110 or [::1]:9110", param, ctx)
        return found[1] or found[2], int(found[3])


class Setting(click.ParamType[tuple[str, str]]):
    """``KEY=VALUE``."""

    name = "key=value"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        key, equals, text = str(value).partition("=")
        if not key.startswith("spark.") or not equals:
            self.fail(f"{value!r} must be a setting of Spark, as spark.driver.memory=2g", param, ctx)
        return key, text


def conf_option() -> Callable[[Any], Any]:
    """``--conf`` of a command that starts Spark."""
    return click.option(
        "--conf", type=Setting(), multiple=True, metavar="KEY=VALUE", help="A setting of Spark; repeatable."
    )


def master_option(default: str) -> Callable[[Any], Any]:
    """``--master`` of a command that starts Spark."""
    return click.option("--master", default=default, show_default=True, help="Where Spark runs.")
