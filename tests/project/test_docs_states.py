"""The reference of a member's states is what the tables of the code say.

``python -m tests.project.test_docs_states`` writes the page anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from garlicfarm.publishing import doubt, ending, offer, own_clock, publisher_core, status_turns
from tests.project.pages import ROOT

PAGE = ROOT / "docs" / "reference" / "publishing-states.md"
BEGIN, END = "<!-- states: begin -->\n", "<!-- states: end -->\n"


def render() -> str:
    """The sections of the page, from the tables themselves."""
    rows = publisher_core.STATES
    return "\n".join(
        [
            "## Each publisher\n",
            _table(
                ["state", "call", "status", "ready", "exposed", "reports", "next"],
                (
                    [
                        state,
                        row.task or "",
                        row.shown,
                        *_marks(row.is_ready, row.is_exposed, row.reports),
                        _next(row.next),
                    ]
                    for state, row in rows.items()
                ),
            ),
            "## The doubt of a publisher\n",
            _table(
                ["state", "waited for", "own", "next"],
                (
                    [state, *_marks(each.is_waited_for, each.is_own), _next(each.next)]
                    for state, each in doubt.STATES.items()
                ),
            ),
            "## Its wall clock\n",
            _states(own_clock.STATES),
            "## Whether it offers itself\n",
            _states(offer.STATES),
            "## Its statuses\n",
            _states(status_turns.STATES),
            "## Letting go\n",
            _states(ending.STATES),
        ]
    )


def _states(states: Any) -> str:
    return _table(["state", "next"], ([state, _next(following)] for state, following in states.items()))


def _marks(*flags: bool) -> list[str]:
    return ["yes" if flag else "" for flag in flags]


def _next(following: Mapping[Any, str]) -> str:
    """The events that lead to one state together."""
    events: dict[str, list[str]] = {}
    for event, state in following.items():
        events.setdefault(state, []).append(event)
    return "; ".join(f"{', '.join(each)} → **{state}**" for state, each in events.items())


def _table(heads: list[str], rows: Iterable[list[str]]) -> str:
    lines = [heads, ["---" for _ in heads], *rows]
    return "".join("|" + "".join(f" {cell} |" if cell else " |" for cell in line) + "\n" for line in lines)


def test_reference_of_states_is_what_the_tables_say() -> None:
    shown = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    assert shown == render(), f"the tables changed: python -m {__name__} writes the page anew"


if __name__ == "__main__":
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(before + BEGIN + render() + END + rest.partition(END)[2], encoding="utf-8")
