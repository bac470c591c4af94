"""A farm on a terminal: its members, its ranking, what happened, and hints.

Theory of operation. A terminal may have fewer lines than all of that takes. Each part gets its lines in the
order of `FarmScreen.drawn`; a table that gets too few is cut below. So a reader always sees the hints of rank
0 and the newest event.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from rich.console import Console, Group, RenderableType
from rich.segment import Segment, Segments
from rich.text import Text

from garlicfarm.cli.ranking_table import Trends, ranking_view
from garlicfarm.cli.status_table import EVENTS, event_lines, status_view

LEAST_TABLE = 4
"""A title, a header, a row, and the line above them."""


class Hint(NamedTuple):
    """``rank``: 0 is always shown, the others as far as there is room."""

    rank: int
    text: str


class FarmScreen:
    """The display of one farm."""

    def __init__(self) -> None:
        self._trends = Trends()

    def drawn(
        self, status: dict[str, Any] | None, ranking: dict[str, Any] | None, width: int, height: int
    ) -> RenderableType:
        """For a terminal of ``width`` and ``height``.

        :param status: the body of a node's ``GET …/status``; None: no node answers.
        :param ranking: the body of its ``GET …/ranking``, None: it has none, or no node answers.
        """
        page = _Page(width, height)
        hints = [*self.hints(status)]
        chosen = {hint for hint in hints if hint.rank == 0}
        page.take(_hints_text(chosen))
        told = event_lines(status, EVENTS) if status else []
        page.take(_events_text(told[-1:]))

        view = status_view(status, width) if status else Text("no node answers", style="red")
        top = page.cut(Group(view, *self.more()))
        chosen |= {hint for hint in hints if hint.rank == 1 and page.take(_text(hint.text))}
        below = self.ranking(status, ranking, width)
        ranked = page.cut(Group(*below)) if below and page.free >= LEAST_TABLE else Segments(())
        for rank in 2, 3:
            chosen |= {hint for hint in hints if hint.rank == rank and page.take(_text(hint.text))}
        shown = 1
        while shown < len(told) and page.take(_text(told[-shown - 1])):
            shown += 1
        return Group(
            top, ranked, _events_text(told[-shown:]), _hints_text(hint for hint in hints if hint in chosen)
        )

    def hints(self, status: dict[str, Any] | None) -> Iterator[Hint]:
        """What a reader can do."""
        yield Hint(0, "Ctrl-C ends this, and changes nothing.")

    def more(self) -> Iterable[RenderableType]:
        """What stands below the members."""
        return ()

    def ranking(
        self, status: dict[str, Any] | None, ranking: dict[str, Any] | None, width: int
    ) -> list[RenderableType]:
        """The ranking of the farm, below the members; [] if there is none."""
        if ranking is None:
            return []
        return [Text(), self.table(f"ranked up to index {ranking['index']}", status, ranking, width)]

    def table(
        self, title: str, status: dict[str, Any] | None, ranking: dict[str, Any], width: int
    ) -> RenderableType:
        """A ranking, with the trends since the last one."""
        self._trends.add(ranking)
        return ranking_view(ranking, title, width, status=status, trends=self._trends)


class _Page:
    """The lines of a terminal that are still free."""

    def __init__(self, width: int, height: int) -> None:
        self._console = Console(width=width)
        self.free = height

    def _lines(self, part: RenderableType) -> list[list[Segment]]:
        return self._console.render_lines(part, pad=False)

    def take(self, part: Text) -> bool:
        """Whether the whole of it has a place, which it then takes."""
        taken = len(self._lines(part)) if part else 0
        if taken > self.free:
            return False
        self.free -= taken
        return True

    def cut(self, part: RenderableType) -> Segments:
        """As much of it as has a place."""
        lines = self._lines(part)[: self.free]
        self.free -= len(lines)
        return Segments([segment for line in lines for segment in (*line, Segment.line())])


def _text(text: str) -> Text:
    return Text(text, style="dim", overflow="fold")


def _hints_text(hints: Iterable[Hint]) -> Text:
    return _text("\n" + "\n".join(hint.text for hint in hints))


def _events_text(lines: list[str]) -> Text:
    return Text(
        "\n" + "\n".join(["EVENTS (UTC)", *lines]) if lines else "",
        overflow="fold",
        end="\n" if lines else "",
    )
