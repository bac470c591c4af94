"""What the lab shows on a terminal: the farm, its ranking, what happened, and how to kill a node.

Theory of operation. A terminal may have fewer lines than all of that takes. Each part gets its lines in the
order of `LabScreen.drawn`; a table that gets too few is cut below. So a reader always sees how to kill the
leader and the publisher, the newest event, and how to end the lab.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console, Group, RenderableType
from rich.segment import Segment, Segments
from rich.text import Text

from garlicfarm.admin.health import publishing
from garlicfarm.cli.ranking_table import Trends, ranking_view
from garlicfarm.cli.status_table import EVENTS, event_lines, status_view
from garlicfarm.printable import printable

if TYPE_CHECKING:
    from garlicfarm.cli.lab_rank import RankProcess
    from garlicfarm.cli.lab_site import SiteWatch
    from garlicfarm.lab.processes import NodeProcess, ProcessFarm

LEAST_TABLE = 4
"""A title, a header, a row, and the line above them."""


class Hint(NamedTuple):
    """``rank``: 0 is always shown, the others as far as there is room."""

    rank: int
    text: str


class LabScreen:
    """The display of one lab; ``rank`` is its Spark process, and ``site`` its web site, if there is one."""

    def __init__(self, farm: ProcessFarm, rank: RankProcess | None, site: SiteWatch | None = None) -> None:
        self._farm = farm
        self._rank = rank
        self._site = site
        self._trends = Trends()

    def drawn(
        self, status: dict[str, Any] | None, ranking: dict[str, Any] | None, width: int, height: int
    ) -> RenderableType:
        """For a terminal of ``width`` and ``height``.

        :param status: the body of a node's ``GET …/status``; None: no node answers.
        :param ranking: the body of its ``GET …/ranking``, shown until Spark ranks.
        """
        page = _Page(width, height)
        hints = [*self._hints(status)]
        chosen = {hint for hint in hints if hint.rank == 0}
        page.take(_hints_text(chosen))
        told = event_lines(status, EVENTS) if status else []
        page.take(_events_text(told[-1:]))

        view = status_view(status, width) if status else Text("no node answers", style="red")
        site = [Text(f"\n{self._site.text()}", style="bold")] if self._site else []
        top = page.cut(Group(view, *site))
        chosen |= {hint for hint in hints if hint.rank == 1 and page.take(_text(hint.text))}
        below = self._ranking(status, ranking, width)
        ranked = page.cut(Group(*below)) if below and page.free >= LEAST_TABLE else Segments(())
        for rank in 2, 3:
            chosen |= {hint for hint in hints if hint.rank == rank and page.take(_text(hint.text))}
        shown = 1
        while shown < len(told) and page.take(_text(told[-shown - 1])):
            shown += 1
        return Group(
            top, ranked, _events_text(told[-shown:]), _hints_text(hint for hint in hints if hint in chosen)
        )

    def _ranking(
        self, status: dict[str, Any] | None, ranking: dict[str, Any] | None, width: int
    ) -> list[RenderableType]:
        notes = []
        if self._rank is not None and self._rank.newest is not None:
            ranking = self._rank.newest
            index = ranking["index"]
            lag = "unknown" if status is None else max(0, status["commit"] - index)
            title = f"ranked by Spark up to index {index}, lag {lag}"
        else:
            if self._rank is not None:
                preparation = self._rank.preparation
                starting = "Spark is starting; its ranking comes in half a minute"
                notes.append(Text(preparation.text() if preparation else starting, style="dim"))
            if ranking is None:
                return [Text(), *notes] if notes else []
            title = f"ranked by the nodes up to index {ranking['index']}"
        self._trends.add(ranking)
        view = ranking_view(ranking, title, width, status=status, trends=self._trends)
        return [Text(), *notes, view]

    def _hints(self, status: dict[str, Any] | None) -> Iterator[Hint]:
        leader, publisher = (status["leader"], publishing(status)) if status else (None, None)
        for node in self._farm.nodes.values():
            if node.pid is None:
                yield Hint(1, "\n".join(_how_to_start(node)))
                continue
            parts = {"leader": leader, "publisher": publisher}
            said = ", ".join(part for part, member in parts.items() if member == node.id)
            name = f"node {node.id}, {said}" if said else f"node {node.id}"
            yield Hint(0 if said else 2, f"{name}: kill -9 {node.pid}")
        if self._site is not None:
            for router in self._site.routers():
                yield Hint(0 if router.id == publisher else 2, f"router {router.id}: kill -9 {router.pid}")
        files = next(iter(self._farm.nodes.values())).directory.parent
        yield Hint(3, f"Files of the nodes: {files}/")
        yield Hint(3, "Kill the leader or the publisher in another terminal.")
        yield Hint(0, "Ctrl-C ends the lab and leaves nothing behind.")


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


def _how_to_start(node: NodeProcess) -> list[str]:
    """What ended a node, and the command that starts it again, on lines that 60 columns show whole."""
    code = None if node.process is None else node.process.returncode
    how = "" if code is None else " (killed)" if code == -9 else f" (exit code {code})"
    lines = node.log_lines() if code is not None and code > 0 else []
    said = f": {printable(lines[-1])}" if lines else ""
    return [
        f"node {node.id} is down{how}{said}; start it again:",
        f"  .venv/bin/garlicfarm node start --config \\\n  {node.directory}/garlicfarm.toml",
    ]
