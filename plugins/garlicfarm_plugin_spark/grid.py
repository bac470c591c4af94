"""The settings that `rank whatif` compares: every combination of the values that each ``--grid`` names.

A grid is ``NAME=VALUES``; values are numbers separated by commas, or ``FIRST:LAST:STEP``, which includes
``LAST`` if a step meets it. Names are ``margin``, ``R`` and ``weight.PART``, with the bounds of `farm set`.

Weights are percentages, and add up to 100. Where only some are named, the others share what is left, in
proportion to those in force at the log's end: rounded down, and then one more for each, from the largest
remainder on (the earlier part among equals), until they add up.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import product

import msgspec

from garlicfarm.errors import ConfigError
from garlicfarm.names import did_you_mean
from garlicfarm.publishing.administration import Margin, Percent
from garlicfarm.publishing.documents import Staleness
from garlicfarm.publishing.policy import Pinned, Policy
from garlicfarm.publishing.scoring import WEIGHTS

MAX_SETTINGS = 10_000

_KINDS: Mapping[str, object] = {
    "margin": Margin,
    "R": Staleness,
    **{f"weight.{part}": Percent for part in WEIGHTS},
}
_LIST = re.compile(r"\d{1,9}(?:,\d{1,9})*", re.ASCII)
_RANGE = re.compile(r"(\d{1,9}):(\d{1,9}):(\d{1,9})", re.ASCII)
_BOUNDS = {"margin": "0 to 1000000", "R": "3 to 1000"}


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters to replay a log with; None, or no weight: as the log sets it."""

    margin: int | None = None
    R: int | None = None
    weights: tuple[tuple[str, int], ...] = ()
    """part and percent"""

    def pinned(self, policy: Policy) -> Pinned:
        """The parameters for the replay of a log that ends with ``policy``.

        :raises ConfigError: the other weights are all 0, and cannot make up the rest.
        """
        return Pinned(margin=self.margin, R=self.R, weights=self._weights(policy.weights))

    def _weights(self, in_force: Mapping[str, int]) -> dict[str, int] | None:
        if not self.weights:
            return None
        named = dict(self.weights)
        others = {part: weight for part, weight in in_force.items() if part not in named}
        left, whole = 100 - sum(named.values()), sum(others.values())
        if left and not whole:
            raise ConfigError(
                [f"{_shown(self.weights)}: the other weights are 0, and {left} are missing: name all of them"]
            )
        shares = {part: divmod(left * weight, whole or 1) for part, weight in others.items()}
        missing = left - sum(share for share, _ in shares.values())
        first = sorted(shares, key=lambda part: -shares[part][1])[:missing]
        return {
            part: named[part] if part in named else shares[part][0] + (part in first) for part in in_force
        }


def parse_grid(text: str) -> tuple[str, tuple[int, ...]]:
    """Name and values of one grid, ascending.

    :raises ConfigError: it is malformed, or a value is out of bounds (the user's fault).
    """
    name, equals, values = text.partition("=")
    if not equals or name not in _KINDS:
        known = ", ".join(_KINDS)
        close = did_you_mean(name, _KINDS)
        raise ConfigError([f"--grid {text}: it must be NAME=VALUES, with a name out of {known}{close}"])
    if match := _RANGE.fullmatch(values):
        first, last, step = map(int, match.groups())
        if not step or first > last:
            raise ConfigError([f"--grid {text}: a range is FIRST:LAST:STEP, ascending, STEP 1 or more"])
        found: Sequence[int] = range(first, last + 1, step)[: MAX_SETTINGS + 1]
    elif _LIST.fullmatch(values):
        found = sorted({int(value) for value in values.split(",")})
    else:
        raise ConfigError(
            [f"--grid {text}: values are numbers such as 3,6,10, or a range such as 0:200000:25000"]
        )
    try:
        for value in found:
            msgspec.convert(value, _KINDS[name])
    except msgspec.ValidationError as error:
        raise ConfigError([f"--grid {text}: {name} must be {_BOUNDS.get(name, '0 to 100')}"]) from error
    return name, tuple(found)


def settings_of(grids: Sequence[tuple[str, tuple[int, ...]]]) -> list[Setting]:
    """All combinations.

    :raises ConfigError: a parameter is named twice, there are more than `MAX_SETTINGS`, or weights would add
        up to more than 100, or if all are named, to less.
    """
    names = [name for name, _ in grids]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError([f"--grid {name}=… is given twice: name all its values in one"])
    count = 1
    for _, values in grids:
        count *= len(values)
    if count > MAX_SETTINGS:
        raise ConfigError([f"these are {count} settings, more than {MAX_SETTINGS}: take larger steps"])
    settings = []
    for values in product(*(values for _, values in grids)):
        chosen = dict(zip(names, values, strict=True))
        weights = tuple((part, chosen[f"weight.{part}"]) for part in WEIGHTS if f"weight.{part}" in chosen)
        total = sum(weight for _, weight in weights)
        if total > 100 or (len(weights) == len(WEIGHTS) and total != 100):
            raise ConfigError([f"{_shown(weights)}: weights must add up to 100, and these add up to {total}"])
        settings.append(Setting(margin=chosen.get("margin"), R=chosen.get("R"), weights=weights))
    return settings


def _shown(weights: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"weight.{part}={weight}" for part, weight in weights)
