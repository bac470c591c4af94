"""The tables of states: nothing in them is out of reach, without a way out, or a slip of the pen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import pytest

from garlicfarm.publishing import doubt, ending, offer, own_clock, publisher_core, status_turns

Table = Mapping[Any, Mapping[Any, str]]
PUBLISHER: Table = {state: row.next for state, row in publisher_core.STATES.items()}
DOUBT: Table = {state: row.next for state, row in doubt.STATES.items()}
TABLES: dict[Any, tuple[Table, str]] = {
    publisher_core: (PUBLISHER, ""),
    doubt: (DOUBT, ""),
    own_clock: (own_clock.STATES, ""),
    offer: (offer.STATES, ""),
    status_turns: (status_turns.STATES, ""),
    ending: (ending.STATES, "over"),
}


@pytest.mark.parametrize("module", TABLES, ids=lambda module: module.__name__)
def test_each_state_is_reached_and_left_by_known_events(module: Any) -> None:
    table, last = TABLES[module]
    assert tuple(table) == get_args(module.State)
    assert {event for row in table.values() for event in row} == set(get_args(module.Event))
    assert {state for row in table.values() for state in row.values()} <= set(table)
    reached: set[str] = set()
    left = {next(iter(table))}
    while left - reached:
        reached |= left
        left = {state for each in left for state in table[each].values()}
    assert reached == set(table)
    assert [state for state, row in table.items() if not set(row.values()) - {state}] == (
        [last] if last else []
    )


def test_what_a_router_may_publish_ends_with_a_defect_the_lease_or_the_node() -> None:
    for state, row in publisher_core.STATES.items():
        assert row.is_exposed or not row.reports, state
        if row.is_exposed:
            assert (row.next["defect"], row.next["lease over"]) == ("leaving", "leaving"), state
            assert publisher_core.STATES[row.next["node ends"]].task == "retire", state
        elif row.task != "leave" and state != "outside":
            assert (row.next["defect"], row.next["node ends"]) == ("leaving", "leaving"), state


def test_word_in_the_farms_status_is_what_it_does() -> None:
    states = publisher_core.STATES
    published = {row.next["done"] for row in states.values() if row.task == "publish"}
    renewed = {row.next["renew"] for row in states.values() if "renew" in row.next}
    for state, row in states.items():
        if not (row.is_ready or row.is_exposed):
            word = "not ready"
        elif not row.is_exposed:
            word = "standby"
        elif row.task == "retire":
            word = "retiring"
        else:
            word = "publishing" if state in published | renewed else "starting"
        assert row.shown == word, state


def test_what_a_router_may_publish_is_not_forgotten() -> None:
    """An exposed state is followed by another one, unless the plugin has confirmed that it stopped, or is
    left, which is doubt."""
    for state, row in publisher_core.STATES.items():
        for event, following in row.next.items() if row.is_exposed else ():
            is_confirmed = (row.task, event) == ("retire", "done")
            assert publisher_core.STATES[following].is_exposed or is_confirmed or following == "leaving", (
                state
            )


def test_doubt_ends_only_when_the_plugin_has_confirmed() -> None:
    """Time lets others go on; it does not make certain that nothing is published, nor whose that was."""
    for state, row in doubt.STATES.items():
        leads_to_none = {event for event, following in row.next.items() if following == "none"}
        assert leads_to_none == (set() if state == "none" else {"confirmed"}), state
        if row.is_waited_for:
            over = doubt.STATES[row.next["over"]]
            assert (over.is_waited_for, over.is_own) == (False, row.is_own), state


def test_each_call_has_an_end() -> None:
    ends = {"enter": {"entered", "entered in doubt", "late"}, "leave": {"left"}}
    for state, row in publisher_core.STATES.items():
        if row.task is not None:
            assert ends.get(row.task, {"done", "refused", "late"}) <= set(row.next), state
        else:
            assert not {"done", "refused", "late"} & set(row.next), state


def test_an_announcement_is_followed_by_standby() -> None:
    following = publisher_core.STATES["announcing"].next
    tasks = {event: publisher_core.STATES[following[event]].task for event in ("done", "refused", "late")}
    assert set(tasks.values()) == {"standby"}
