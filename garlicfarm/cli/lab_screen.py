"""What the lab shows on a terminal: its farm, how to kill a node, and how to end the lab."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.text import Text

from garlicfarm.admin.health import publishing
from garlicfarm.cli.farm_screen import FarmScreen, Hint
from garlicfarm.printable import printable

if TYPE_CHECKING:
    from garlicfarm.cli.lab_rank import RankProcess
    from garlicfarm.cli.lab_site import SiteWatch
    from garlicfarm.lab.processes import NodeProcess, ProcessFarm


class LabScreen(FarmScreen):
    """The display of one lab; ``rank`` is its Spark process, and ``site`` its web site, if there is one."""

    def __init__(self, farm: ProcessFarm, rank: RankProcess | None, site: SiteWatch | None = None) -> None:
        super().__init__()
        self._farm = farm
        self._rank = rank
        self._site = site

    def more(self) -> Iterable[RenderableType]:
        return [Text(f"\n{self._site.text()}", style="bold")] if self._site else []

    def ranking(
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
        return [Text(), *notes, self.table(title, status, ranking, width)]

    def hints(self, status: dict[str, Any] | None) -> Iterator[Hint]:
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
