"""`garlicfarm farm exclude|include|override|set`: administration through the log (D16).

Each action is one committed entry, which every member obeys alike. All actions are checked before the
first is sent; the node checks the user's role.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from garlicfarm.cli.command_group import Command
from garlicfarm.cli.node_access import ask
from garlicfarm.cli.options import MEMBER_ID, Options, print_rows, shared_options
from garlicfarm.cli.say import say
from garlicfarm.durations import DURATION_RULE, format_ms, parse_ms

if TYPE_CHECKING:
    from garlicfarm.client.admin import AdminClient

_HASH = "HASH must be 44 characters of I2P base64, or 52 of base32 and .b32.i2p"
_ALLOWED = {
    "staleness.R": "R must be 3 to 1000",
    "publisher.margin": "margin must be 0 to 1000000",
    "publisher.lifetime_ms": "lifetime must be 10m to 18h",
    "forget.after_ms": "forget_after must be 1h to 365d, or off",
    "forget.min_members": "min_members must be 3 to 1000: two members can lose no more than three can",
    "ban.until_ms": "TIME must end before the year 2106; --forever has no end",
}
"""What `garlicfarm.publishing.administration` allows, in the words of the command line."""

_PARAMETERS = {
    "interval": ("interval", "ms"),
    "lease": ("lease", "ms"),
    "control": ("control", "ms"),
    "R": ("staleness", "R"),
    "margin": ("publisher", "margin"),
    "lifetime": ("publisher", "lifetime_ms"),
    "forget_after": ("forget", "after_ms"),
    "min_members": ("forget", "min_members"),
}
"""What `farm set` sets, and the action with its argument that does."""

_DURATIONS = ("interval", "lease", "control", "lifetime", "forget_after")
_Action = tuple[str, dict[str, Any]]


@click.command(
    cls=Command,
    examples=["garlicfarm farm exclude n5EWH0NDPkmm3m22gNefYBWfLkrJFyYhoShGQoFYRAs="],
)
@click.argument("hash_", metavar="HASH")
@shared_options()
def exclude(options: Options, hash_: str) -> None:
    """Keep the leaf HASH out of the Meta LeaseSet, whichever member reports it.

    HASH is the hash of a destination: ….b32.i2p, or I2P base64 (after -- if it begins with a hyphen).
    """
    administer(options, [("exclude", {"hash": _base64(hash_)})])


@click.command(
    cls=Command,
    examples=["garlicfarm farm include n5EWH0NDPkmm3m22gNefYBWfLkrJFyYhoShGQoFYRAs="],
)
@click.argument("hash_", metavar="HASH")
@shared_options()
def include(options: Options, hash_: str) -> None:
    """List the leaf HASH again, after `farm exclude`."""
    administer(options, [("include", {"hash": _base64(hash_)})])


@click.command(cls=Command, examples=["garlicfarm farm override 2 off", "garlicfarm farm override 2 none"])
@click.argument("id", type=MEMBER_ID)
@click.argument("mode", type=click.Choice(["on", "off", "auto", "none"]))
@shared_options()
def override(options: Options, id: int, mode: str) -> None:
    """Override meta.publish of member ID: on (preferred to every member that is auto), off (never named),
    or auto. none removes the override."""
    administer(options, [("override", {"member": id, "mode": None if mode == "none" else mode})])


@click.command(
    "set",
    cls=Command,
    examples=[
        "garlicfarm farm set interval=10s R=6",
        "garlicfarm farm set weight.job_lag=20 weight.bandwidth_headroom=20",
    ],
)
@click.argument("settings", nargs=-1, required=True, metavar="NAME=VALUE…")
@shared_options()
def set_(options: Options, settings: tuple[str, ...]) -> None:
    """Set parameters of the common algorithm.

    interval=10s: time between two statuses of a member. R=3: statuses of the others after which a silent
    member counts as gone. lease=6s, since level 2: time after which a dead publisher may be replaced; below
    that level interval and R set it. control=60s, since level 3: time for which a destination that was
    reached shows that a member's own router works. margin=50000: lead that a challenger needs. lifetime=1h:
    time for which a leaf is listed. weight.NAME=20: weight of a part of the score, in percent; all weights
    together are 100. forget_after=7d, since level 4: the farm removes a member that has been silent for that
    long, while it has more than min_members=3; forget_after=off: it removes none.
    `garlicfarm farm show` shows the values in force.
    """
    seen: set[str] = set()
    actions: dict[str, dict[str, Any]] = {}
    weights: dict[str, int] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or name in seen:
            raise click.UsageError(f"{setting}: it must be NAME=VALUE, each name once, as R=3")
        seen.add(name)
        if setting == "forget_after=off":
            actions.setdefault("forget", {})["after_ms"] = None
            continue
        value = (_milliseconds if name in _DURATIONS else _int)(setting, text)
        if name.startswith("weight."):
            weights[name.removeprefix("weight.")] = value
        elif name in _PARAMETERS:
            action, key = _PARAMETERS[name]
            actions.setdefault(action, {})[key] = value
        else:
            known = "interval, R, lease, control, margin, lifetime, forget_after, min_members and weight.…"
            raise click.UsageError(f"{name}: there is no such parameter; the parameters are {known}")
    forget = actions.get("forget", {})
    if "min_members" in forget and forget.get("after_ms") is None:
        raise click.UsageError("min_members needs a time beside it, as forget_after=7d min_members=3")
    if not weights:
        administer(options, [*actions.items()])
        return
    from garlicfarm.publishing.scoring import WEIGHTS

    for name in weights:
        if name not in WEIGHTS:
            raise click.UsageError(
                f"weight.{name}: there is no such part; the parts are {', '.join(WEIGHTS)}"
            )

    def with_weights(policy: Mapping[str, Any]) -> list[_Action]:
        merged = {**policy.get("weights", {}), **weights}
        if sum(merged.values()) != 100:
            shown = ", ".join(f"weight.{name}={value}" for name, value in merged.items())
            raise click.UsageError(f"the weights would add up to {sum(merged.values())}, not to 100: {shown}")
        return [*actions.items(), ("weights", merged)]

    administer(options, [*actions.items()], complete=with_weights)


def administer(
    options: Options,
    actions: Sequence[_Action],
    advise: Callable[[Mapping[str, Any]], str] | None = None,
    *,
    complete: Callable[[Mapping[str, Any]], list[_Action]] | None = None,
) -> None:
    """Have the actions committed, one after the other. ``advise`` makes a sentence of the policy in force
    afterwards, or "". ``complete`` makes the actions out of the policy before."""
    from garlicfarm.publishing.administration import SINCE

    _check(actions)

    async def commit(client: AdminClient, farm: str) -> tuple[list[dict[str, Any]], list[str]]:
        wanted = actions if complete is None else complete(await client.policy(farm))
        _check(wanted)
        status: Mapping[str, Any] = {"members": ()}
        if any(action in SINCE for action, _ in wanted):
            status = await client.status(farm)
            _check_level(status.get("level"), wanted)
        rows = []
        for action, args in wanted:
            index, term = await client.administer(farm, action, args)
            rows.append({"action": action, "index": index, "term": term})
        names = {action for action, _ in wanted}
        advisers = [advise or _advice] if advise or names & {"interval", "staleness", "lease"} else []
        if "forget" in names:
            advisers.append(partial(_advice_on_removals, len(status["members"])))
        policy = await client.policy(farm) if advisers else {}
        return rows, [advice for each in advisers if (advice := each(policy))]

    unmet = "the change is not known to be committed; `garlicfarm farm show` shows what is in force"
    done, advices = ask(options, commit, awaited="the committed order", unmet=unmet)
    print_rows(options.output, "garlicfarm.farm-policy/1", done)
    for advice in advices:
        say(advice)


def _advice(policy: Mapping[str, Any]) -> str:
    """What to do about a lease that is too short, in a sentence; "" if it is long enough."""
    if "lease_ms" in policy:
        lasts_ms, least_ms = policy.get("lease_ordered_ms", policy["lease_ms"]), policy["least_lease_ms"]
        cause, enough = f"a lease of {format_ms(lasts_ms)}", f"lease={format_ms(least_ms)}"
        is_enough = lasts_ms >= least_ms
    else:
        cause = f"an interval of {format_ms(policy['interval_ms'])} and R={policy['R']}"
        enough, is_enough = f"R={policy['least_R']}", policy["R"] >= policy["least_R"]
    if is_enough:
        return ""
    return (
        f"warning: with {cause} a slow change of the leader ends a healthy publisher: "
        f"`garlicfarm farm set {enough}` or more outlasts it"
    )


def _advice_on_removals(members: int, policy: Mapping[str, Any]) -> str:
    """That none of so many members will be removed, in a sentence; "" if one may be."""
    least = policy.get("forget", {}).get("min_members", 0)
    if members > least:
        return ""
    return f"warning: none of the {members} members is removed: that needs more than min_members={least}"


def _check_level(levels: Mapping[str, Any] | None, actions: Sequence[_Action]) -> None:
    """``levels``: the farm's, according to a node; None: its program knows none. Raises `LocalProtocolError`:
    they have not reached that of an action."""
    from garlicfarm.errors import LocalProtocolError
    from garlicfarm.levels import LOWEST
    from garlicfarm.publishing.administration import SINCE

    now = LOWEST if levels is None else levels["in_force"]
    for action, _ in actions:
        if now < (since := SINCE.get(action, LOWEST)):
            raise LocalProtocolError(
                f"nothing was changed: {action} can be set from level {since} on, and the farm is at level "
                f"{now}: `garlicfarm farm level raise` raises it, once the programs of all members can that"
            )


def _check(actions: Sequence[_Action]) -> None:
    """All are checked before the first one is sent: none is in force because the next one is wrong."""
    from garlicfarm.errors import EntryRefused
    from garlicfarm.levels import HIGHEST
    from garlicfarm.publishing.administration import (
        MAX_CONTROL_MS,
        MAX_LEASE_MS,
        MIN_CONTROL_MS,
        MIN_LEASE_MS,
        parse_admin,
    )
    from garlicfarm.publishing.documents import MAX_INTERVAL_MS, MIN_INTERVAL_MS

    bounds = {
        "interval": (MIN_INTERVAL_MS, MAX_INTERVAL_MS),
        "lease": (MIN_LEASE_MS, MAX_LEASE_MS),
        "control": (MIN_CONTROL_MS, MAX_CONTROL_MS),
    }
    for action, args in actions:
        try:
            parse_admin({"action": action, "by": "-", "args": args}, HIGHEST)
        except EntryRefused as error:
            field = error.field.removeprefix("args.")
            if action == "weights":
                raise click.UsageError(f"weight.{field} must be 0 to 100") from error
            if action in bounds:
                least, most = map(format_ms, bounds[action])
                raise click.UsageError(f"{action} must be {least} to {most}") from error
            raise click.UsageError(_ALLOWED[f"{action}.{field}"]) from error


def _milliseconds(setting: str, text: str) -> int:
    ms = parse_ms(text)
    if ms is None:
        raise click.UsageError(f"{setting}: it must be {DURATION_RULE}")
    return ms


def _int(setting: str, text: str) -> int:
    if re.fullmatch(r"[0-9]{1,9}", text) is None:
        raise click.UsageError(f"{setting}: it must be a whole number")
    return int(text)


def _base64(text: str) -> str:
    """I2P base64 of the hash of a destination."""
    from garlicfarm.publishing.clients import hash_text

    try:
        return hash_text(text)
    except ValueError as error:
        raise click.UsageError(_HASH) from error
