"""Figures on the pages of docs that follow from the rules, or are judged."""

from __future__ import annotations

import re

from benchmarks.goals import Goal, read_goals
from garlicfarm.config.model import (
    PRESET_INTERVALS_MS,
    PRESET_LEASES_MS,
    PRESET_LEAST_ELECTION_TIMEOUTS_S,
    PRESET_RETIRE_TIMEOUTS_S,
    PRESETS,
)
from garlicfarm.publishing.granting import LEAST_BOUND_MS
from garlicfarm.publishing.lease import lease_ms, least_R
from garlicfarm_plugin_i2cp.service_session import DEFAULT, FAST
from tests.project.pages import page, table

PRESET_ROW = (
    r"^\| `(\w+)` \| (\d+) s \| (\d+) \| ([\d.]+) s "
    r"\| (\d+) \+ 2 × ([\d.]+) \+ (\d+) \+ ([\d.]+) = ([\d.]+) s \| (\d+) to (\d+) s \|$"
)
LEASE_ROW = r"^\| `(\w+)` \| (\d+) s \| 2 × ([\d.]+) \+ 3 × ([\d.]+) \+ ([\d.]+) = ([\d.]+) s \|$"
ROW = r"^\| (\d+) s \| ([\d.]+) s \|$"

I2PD_ASKS_S = 51
"""Its clients ask for a LeaseSet with no lease that lasts longer."""


def test_what_a_lease_outlasts_is_the_lease_less_the_time_to_stop() -> None:
    text = page("docs/explanation/publisher.md")
    rows = re.findall(ROW, text, re.MULTILINE)
    assert len(rows) == 7
    for lease_s, outlasts_s in rows:
        preset = "clearnet" if int(lease_s) < 60 else "i2p"
        assert outlasts_s == f"{int(lease_s) - PRESET_RETIRE_TIMEOUTS_S[preset]:.1f}"
    needed = {
        preset: 2 * timings["election_timeout_max_s"] + 3 * timings["heartbeat_s"]
        for preset, timings in PRESETS.items()
    }
    should = f"with `clearnet` it should be {needed['clearnet']:g} s or more, with `i2p` {needed['i2p']:g} s:"
    assert should in " ".join(text.split())


def test_leases_of_a_service_are_those_that_its_publisher_composes() -> None:
    rows = {row[0]: row[1:] for row in table(page("docs/howto/publish.md"), r"\| `default` \| `fast`")}
    assert rows["a lease lasts at most"] == [f"{plan.lease_s} s" for plan in (DEFAULT, FAST)]
    assert rows["it is published again after"] == [f"{plan.republish_s} s" for plan in (DEFAULT, FAST)]
    late_s, _ = rows["after a death, clients of i2pd ask again"]
    assert late_s == f"up to {DEFAULT.lease_s - I2PD_ASKS_S} s after the next member has published"
    assert FAST.lease_s < I2PD_ASKS_S < DEFAULT.lease_s - DEFAULT.republish_s


def test_presets_of_the_page_have_leases_on_heartbeats_that_suffice() -> None:
    rows = re.findall(LEASE_ROW, page("docs/explanation/publisher.md"), re.MULTILINE)
    assert [row[0] for row in rows] == [*PRESETS]
    for preset, *figures in rows:
        lease_s, election_s, heartbeat_s, stop_s, needed_s = map(float, figures)
        assert 1000 * lease_s == PRESET_LEASES_MS[preset]
        timings = PRESETS[preset]
        assert (election_s, heartbeat_s) == (timings["election_timeout_max_s"], timings["heartbeat_s"])
        assert stop_s == PRESET_RETIRE_TIMEOUTS_S[preset] <= lease_s / 4
        assert needed_s == round(2 * election_s + 3 * heartbeat_s + stop_s, 3) <= lease_s


def test_lease_of_the_page_with_quick_round_trips_is_what_leaders_tell() -> None:
    i2p, stop_s = PRESETS["i2p"], PRESET_RETIRE_TIMEOUTS_S["i2p"]
    election_s, heartbeat_s = PRESET_LEAST_ELECTION_TIMEOUTS_S["i2p"], i2p["heartbeat_s"]
    least_s = election_s * i2p["election_timeout_min_s"] / i2p["election_timeout_max_s"]
    needed_s = 2 * election_s + 3 * heartbeat_s + stop_s
    shown = (
        f"is 3 s or less, the members wait for {least_s:g} to {election_s:g} s before an election, and a "
        f"lease lasts 2 × {election_s:g} + 3 × {heartbeat_s:g} + {stop_s:g} = {needed_s:g} s."
    )
    assert shown in " ".join(page("docs/explanation/publisher.md").split())
    assert 1000 * needed_s == LEAST_BOUND_MS


def test_presets_of_the_page_are_those_of_new_farms_and_their_leases_suffice() -> None:
    rows = re.findall(PRESET_ROW, page("docs/explanation/publisher.md"), re.MULTILINE)
    assert [row[0] for row in rows] == [*PRESETS]
    for preset, *figures in rows:
        interval_s, R, lease_s, _, election_s, rpc_s, retire_s, needed_s, earliest_s, latest_s = map(
            float, figures
        )
        timings = PRESETS[preset]
        assert 1000 * interval_s == PRESET_INTERVALS_MS[preset] == 1000 * float(figures[3])
        assert (election_s, rpc_s) == (timings["election_timeout_max_s"], timings["rpc_timeout_s"])
        assert retire_s == PRESET_RETIRE_TIMEOUTS_S[preset] <= lease_s / 4
        found = least_R(
            PRESET_INTERVALS_MS[preset],
            election_timeout_max_s=election_s,
            rpc_timeout_s=rpc_s,
            retire_timeout_s=retire_s,
        )
        assert found == R
        assert lease_s == lease_ms(PRESET_INTERVALS_MS[preset], found) / 1000
        assert lease_s >= needed_s == interval_s + 2 * election_s + rpc_s + retire_s
        assert (earliest_s, latest_s) == ((R - 1) * interval_s, R * interval_s)


def test_page_lists_every_goal_as_it_is_judged() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| ([≤≥]) ([\d.,]+) \|.*\| (judged|shown) \|$",
        page("docs/explanation/performance.md"),
        re.MULTILINE,
    )
    listed = {}
    for figure, sign, number, use in rows:
        value = float(number.replace(",", ""))
        listed[figure] = (Goal(at_most=value) if sign == "≤" else Goal(at_least=value), use)
    goals = read_goals()
    assert listed == {
        **{figure: (goal, "judged") for figure, goal in goals.judged.items()},
        **{figure: (goal, "shown") for figure, goal in goals.shown.items()},
    }
