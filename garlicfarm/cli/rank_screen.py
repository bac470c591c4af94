"""What `rank` shows: a table per farm on a terminal, lines elsewhere."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from garlicfarm.cli.ranking_table import Trends, ranking_view
from garlicfarm.cli.say import put, say
from garlicfarm.printable import printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live


@contextmanager
def viewer(came: Callable[[], None], *, quiet: bool) -> Iterator[Lines | Screen]:
    """For standard output as it is. ``came`` is called at each ranking. ``quiet``: without notes."""
    if not sys.stdout.isatty():
        yield Lines(came, quiet)
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(highlight=False), auto_refresh=False) as live:
        yield Screen(live, came, quiet)


class Lines:
    """Off a terminal: rankings on stdout, all else on stderr."""

    def __init__(self, came: Callable[[], None], quiet: bool) -> None:
        self._came = came
        self._quiet = quiet
        self._skipped: dict[str, Mapping[str, int]] = {}

    async def ranking(self, farm: str, text: str, skipped: Mapping[str, int]) -> None:
        self._came()
        put(text)
        if skipped != self._skipped.get(farm, {}):
            self._skipped[farm] = skipped
            self.note(f"entries of {farm} skipped, as the nodes do: {_counts(skipped)}")

    def progress(self, farm: str, index: int | None, commit_index: int | None) -> None:
        pass

    def verified(self, count: int) -> None:
        pass

    def note(self, text: str) -> None:
        if not self._quiet:
            say(printable(text))


class _Shown:
    """One farm on the screen."""

    def __init__(self) -> None:
        self.body: dict[str, Any] | None = None
        self.index: int | None = None
        self.commit_index: int | None = None
        self.skipped: Mapping[str, int] = {}
        self.trends = Trends()

    def view(self, farm: str, verified: str, width: int) -> RenderableType:
        from rich.text import Text

        lag = "unknown"
        if self.index is not None and self.commit_index is not None:
            lag = f"{max(0, self.commit_index - self.index)} entries"
        title = f"farm {farm}: ranked up to index {self.index or 'none'}, lag {lag}{verified}"
        if self.skipped:
            title += f", skipped {_counts(self.skipped)}"
        return ranking_view(self.body, title, width, trends=self.trends) if self.body else Text(title)


class Screen:
    """On a terminal: one table per farm, kept up to date."""

    def __init__(self, live: Live, came: Callable[[], None], quiet: bool) -> None:
        self._live = live
        self._came = came
        self._quiet = quiet
        self._farms: dict[str, _Shown] = {}
        self._verified = ""

    async def ranking(self, farm: str, text: str, skipped: Mapping[str, int]) -> None:
        self._came()
        shown = self._farms.setdefault(farm, _Shown())
        shown.body = json.loads(text)
        shown.trends.add(shown.body)
        shown.skipped = skipped
        shown.index = shown.body["index"]
        self._show()

    def progress(self, farm: str, index: int | None, commit_index: int | None) -> None:
        shown = self._farms.setdefault(farm, _Shown())
        shown.index = max(index or 0, shown.index or 0) or None
        shown.commit_index = commit_index
        self._show()

    def verified(self, count: int) -> None:
        self._verified = f", verified {count} times"
        self._show()

    def note(self, text: str) -> None:
        if not self._quiet:
            self._live.console.print(printable(text), style="dim", markup=False)

    def _show(self) -> None:
        from rich.console import Group

        width = self._live.console.width
        views = [shown.view(farm, self._verified, width) for farm, shown in sorted(self._farms.items())]
        self._live.update(Group(*views), refresh=True)


def _counts(skipped: Mapping[str, int]) -> str:
    """How many entries were skipped in all, and why."""
    reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(skipped.items()))
    return f"{sum(skipped.values())} ({reasons})"
