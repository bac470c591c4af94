"""What the lab shows on a terminal: the farm, its ranking, what happened, and how to kill a node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.text import Text

from garlicfarm.cli.ranking_table import Trends, ranking_view
from garlicfarm.cli.status_table import EVENTS, events_text, status_view
from garlicfarm.cli.tables import printable

if TYPE_CHECKING:
    from garlicfarm.cli.lab_rank import RankProcess
    from garlicfarm.cli.lab_site import SiteWatch
    from garlicfarm.lab.processes import NodeProcess, ProcessFarm

__all__ = ["LabScreen"]


ADVICE = (
    "Files of the nodes: {files}/",
    "Kill the leader or the publisher in another terminal.",
    "Ctrl-C ends the lab and leaves nothing behind.",
)


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
        view = status_view(status, width) if status else Text("no node answers", style="red")
        site = [Text(f"\n{self._site.text()}", style="bold")] if self._site else []
        top = Group(view, *site, *self._ranking(status, ranking, width))
        console = Console(width=width)
        taken = len(console.render_lines(top))
        for hints in self._hints(ADVICE), self._hints(ADVICE[-1:]):
            free = height - taken - len(console.render_lines(hints))
            if free >= 0:
                break
        # Below a line for their title and an empty one; what does not fit would push out the hints.
        told = events_text(status["events"], min(EVENTS, free - 3)) if status else ""
        return Group(top, *([Text(f"\n{told}")] if told else []), hints)

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
        return [Text(), view, *notes]

    def _hints(self, advice: Sequence[str]) -> Text:
        lines: list[str] = []
        for node in self._farm.nodes.values():
            pid = node.pid
            lines += _how_to_start(node) if pid is None else [f"node {node.id}: kill -9 {pid}"]
        if self._site is not None:
            lines += [f"router {router.id}: kill -9 {router.pid}" for router in self._site.routers()]
        files = next(iter(self._farm.nodes.values())).directory.parent
        lines += [line.format(files=files) for line in advice]
        return Text("\n" + "\n".join(lines), style="dim", overflow="fold")


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
