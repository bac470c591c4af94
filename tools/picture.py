"""Makes docs/images/lab.svg, the README's picture: what a terminal shows of one ``garlicfarm lab --rank``.

::

    make .venv/base .venv/spark
    .venv/bin/python -m tools.picture

It runs the lab in a pseudo-terminal, waits until Spark has ranked and keeps up, ends the lab, and turns
that frame into an SVG. The lines below the tables, with the lab's temporary directory, are left out; other
than that nothing is edited. The picture asks for no web font, so a page with it fetches nothing else.
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.text import Text

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "lab.svg"
COLUMNS, LINES = 150, 40
TIMEOUT_S = 300.0
STEADY_S = 10.0  # after the first ranking, which comes with what waited for it
FONTS = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
_ERASED = re.compile(r"\r\x1b\[2K(?:\x1b\[1A\x1b\[2K)*")  # what rich writes before each frame


def terminal_output(fd: int, deadline: float) -> Iterator[str]:
    """What the program at the other end has written so far, each time it has written more."""
    data = b""
    while select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
        try:
            data += os.read(fd, 65536)
        except OSError:  # nobody is at the other end any more
            return
        yield data.decode(errors="replace").replace("\r\n", "\n")


def keeps_up(frame: str) -> bool:
    """Whether Spark has ranked, and is at most one round of statuses behind."""
    found = re.search(r"ranked by Spark up to index \d+, lag (\d+)", frame)
    return found is not None and int(found[1]) <= 3 and "Ctrl-C ends the lab" in frame


def take() -> str:
    """Run the lab; one frame of it, with its colours. It has ended, and left nothing, on return."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "NO_COLOR")}
    lab = subprocess.Popen(
        [sys.executable, "-m", "garlicfarm", "lab", "--rank"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**environment, "TERM": "xterm-256color"},
        start_new_session=True,
    )
    os.close(theirs)
    found, steady_at, text = None, None, ""
    for text in terminal_output(ours, time.monotonic() + TIMEOUT_S):
        frames = _ERASED.split(text)[:-1]  # the last may still be growing
        if found is None and frames and keeps_up(frames[-1]):
            steady_at = steady_at or time.monotonic() + STEADY_S
            if time.monotonic() > steady_at:
                found = frames[-1]
                lab.send_signal(signal.SIGINT)
    if lab.poll() is None and found is None:
        lab.send_signal(signal.SIGINT)
    lab.wait(TIMEOUT_S)
    os.close(ours)
    if found is None:
        sys.exit(f"no ranking within {TIMEOUT_S:.0f} s; the lab said: {text[-2000:]}")
    return found


def svg(frame: str) -> str:
    """The tables of a frame, as rich draws a terminal."""
    text = Text.from_ansi(frame[: frame.rindex("\n", 0, frame.index("node 1: kill -9"))])
    width = max(len(line.rstrip()) for line in text.plain.split("\n"))
    console = Console(record=True, file=io.StringIO(), width=width)
    console.print(text, "", sep="\n", no_wrap=True, crop=True)  # rich cuts the last line's underscores
    drawn = console.export_svg(title="make lab", unique_id="lab")
    drawn = re.sub(r"\s*@font-face \{.*?\}", "", drawn, flags=re.DOTALL)
    drawn = re.sub(r"font-family: [^;]+;", f"font-family: {FONTS};", drawn)
    return "\n".join(line.rstrip() for line in drawn.splitlines() if line.strip()) + "\n"


if __name__ == "__main__":
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(svg(take()), encoding="utf-8")
