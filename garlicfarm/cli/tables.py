"""Tables for a terminal, as wide as it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from rich.console import Group
from rich.table import Table
from rich.text import Text

from garlicfarm.printable import printable

WIDE = 150
"""A terminal of so many columns is shown everything."""


class Column(NamedTuple):
    """``least``: how wide a terminal must be for it to be shown. ``most``: how wide it may get itself.
    ``wraps``: a cell takes as many lines as it needs. Others are one line, cut where there is no place."""

    name: str
    least: int = 0
    most: int | None = None
    wraps: bool = False


def make_table(
    title: str,
    columns: Iterable[Column],
    rows: Iterable[tuple[str, Mapping[str, object]]],
    width: int,
    *,
    yielding: Sequence[str],
) -> Group:
    """A table for a terminal of ``width`` columns, whose rows have a style and cells by column.

    ``title``: the line above; "": none. ``yielding``: where a row is too long, the first of these columns
    that is shown gets narrower.
    """
    table = Table(box=None, pad_edge=False)
    shown = [column for column in columns if width >= column.least]
    names = [column.name for column in shown]
    narrower = next(name for name in yielding if name in names)
    for column in shown:
        table.add_column(column.name.upper(), no_wrap=column.name != narrower, max_width=column.most)
    for style, row in rows:
        cells = (_cell(row[column.name], wraps=column.wraps) for column in shown)
        table.add_row(*cells, style=style)
    # Not the table's own title, which is no wider than the table.
    return Group(*([Text(printable(title), style="italic")] if title else []), table)


def _cell(value: object, *, wraps: bool) -> Text:
    # Text, not markup: what other members say of themselves is shown as it is.
    text = printable("-" if value is None else str(value))
    return Text(text, no_wrap=not wraps, overflow="fold" if wraps else "ellipsis")


_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Iterable[int | None], low: int, high: int) -> str:
    """A bar for each value between ``low`` and ``high``, a dot for None."""
    span = max(1, high - low)
    return "".join(
        "·" if value is None else _BARS[min(max((value - low) * len(_BARS) // span, 0), len(_BARS) - 1)]
        for value in values
    )
