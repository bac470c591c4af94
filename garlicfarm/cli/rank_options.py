"""The options that `rank` and its commands share, and the types of `rank`'s own."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import click

from garlicfarm.durations import DURATION_RULE, format_ms, parse_ms
from garlicfarm.names import FARM_NAME_RULE, is_farm_name

LONGEST_TRIGGER_MS = 3_600_000


def parse_sink(value: str) -> str:
    """``console``, ``memory``, ``garlicfarm``, or ``parquet:DIRECTORY``."""
    kind, _, where = value.partition(":")
    if kind not in ("console", "memory", "garlicfarm", "parquet") or (kind == "parquet") != bool(where):
        raise click.BadParameter(f"{value!r} is none of console, memory, garlicfarm, parquet:DIRECTORY")
    return value


def parse_trigger(value: str) -> int:
    """``5s``, ``500ms``, ``1m``: milliseconds."""
    trigger_ms = parse_ms(value)
    if trigger_ms is None or trigger_ms > LONGEST_TRIGGER_MS:
        raise click.BadParameter(f"{value!r} must be {DURATION_RULE}, up to {format_ms(LONGEST_TRIGGER_MS)}")
    return trigger_ms


def parse_farms(value: str) -> tuple[str, ...]:
    """A name, several with commas, or ``*``: none for that."""
    if value == "*":
        return ()
    names = tuple(dict.fromkeys(value.split(",")))
    for name in names:
        if not is_farm_name(name):
            raise click.BadParameter(f"{name!r} is not a farm's name, which has {FARM_NAME_RULE}")
    return names


def parse_address(value: str) -> tuple[str, int]:
    """``HOST:PORT``, an IPv6 address in brackets."""
    found = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^:\[\]]+)):([0-9]{1,5})", value)
    if found is None or not 0 < int(found[3]) < 65536:
        raise click.BadParameter(f"{value!r} is no HOST:PORT, as 127.0.0.1:9110 or [::1]:9110")
    return found[1] or found[2], int(found[3])


def parse_setting(value: str) -> tuple[str, str]:
    """``KEY=VALUE``."""
    key, equals, text = value.partition("=")
    if not key.startswith("spark.") or not equals:
        raise click.BadParameter(f"{value!r} must be a setting of Spark, as spark.driver.memory=2g")
    return key, text


def conf_option() -> Callable[[Any], Any]:
    """``--conf`` of a command that starts Spark."""
    return click.option(
        "--conf",
        type=parse_setting,
        multiple=True,
        metavar="KEY=VALUE",
        help="A setting of Spark; repeatable.",
    )


def master_option(default: str) -> Callable[[Any], Any]:
    """``--master`` of a command that starts Spark."""
    return click.option("--master", default=default, show_default=True, help="Where Spark runs.")
