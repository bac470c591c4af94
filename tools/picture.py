"""Makes the README's pictures in docs/images: what a terminal shows of one run of the lab.

::

    make .venv/base .venv/spark
    .venv/bin/python -m tools.picture lab      # garlicfarm lab --rank
    .venv/bin/python -m tools.picture site     # garlicfarm lab --site (needs i2pd)

It runs the lab in a pseudo-terminal, ends it at the frame to show, and turns that into an SVG. ``lab``:
Spark has ranked, and keeps up. ``site``: the router that served the site was killed, and another node serves
it. The lines below the tables, with the lab's temporary directory, are left out; other than that nothing is
edited. The pictures ask for no web font, so a page with them fetches nothing else.
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

IMAGES = Path(__file__).parents[1] / "docs" / "images"
LINES = 40
TIMEOUT_S = 300.0
STEADY_S = 10.0  # the first ranking comes with what waited for it; the first answer of the site is slow
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


class Lab:
    """``garlicfarm lab --rank``."""

    title = "make lab"
    options = ("--rank",)
    columns = 150

    def is_steady(self, frame: str) -> bool:
        """Whether Spark has ranked, and is at most one round of statuses behind."""
        found = re.search(r"ranked by Spark up to index \d+, lag (\d+)", frame)
        return found is not None and int(found[1]) <= 3 and "Ctrl-C ends the lab" in frame

    def is_taken(self, frame: str) -> bool:
        """Whether ``frame``, which is steady, is the picture."""
        return True


class Site:
    """``garlicfarm lab --site``; kills the router that serves."""

    title = "make lab-i2p"
    options = ("--site",)
    columns = 110
    killed = False

    def is_steady(self, frame: str) -> bool:
        """Whether the site is served, and the router may be killed."""
        return self.killed or re.search(r"served by node \d", frame) is not None

    def is_taken(self, frame: str) -> bool:
        """Kill the router, once; then, whether another node serves the site."""
        if not self.killed:
            node = re.search(r"served by node (\d)", frame)
            assert node is not None
            process = re.search(rf"router {node[1]}: kill -9 (\d+)", frame)
            assert process is not None
            os.kill(int(process[1]), signal.SIGKILL)
            self.killed = True
        return "after the last answer of" in frame


PICTURES: dict[str, Lab | Site] = {"lab": Lab(), "site": Site()}


def take(picture: Lab | Site) -> str:
    """Run the lab; one frame of it, with its colours. It has ended, and left nothing, on return."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, picture.columns, 0, 0))
    environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "NO_COLOR")}
    lab = subprocess.Popen(
        [sys.executable, "-m", "garlicfarm", "lab", *picture.options],
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
        if found is None and frames and picture.is_steady(frames[-1]):
            steady_at = steady_at or time.monotonic() + STEADY_S
            if time.monotonic() > steady_at and picture.is_taken(frames[-1]):
                found = frames[-1]
                lab.send_signal(signal.SIGINT)
    if lab.poll() is None and found is None:
        lab.send_signal(signal.SIGINT)
    lab.wait(TIMEOUT_S)
    os.close(ours)
    if found is None:
        sys.exit(f"no such frame within {TIMEOUT_S:.0f} s; the lab said: {text[-2000:]}")
    return found


def svg(frame: str, title: str, name: str) -> str:
    """The tables of a frame, as rich draws a terminal."""
    hints = re.search(r"node 1[^:\n]*: kill -9", frame)
    assert hints is not None
    text = Text.from_ansi(frame[: frame.rindex("\n", 0, hints.start())])
    width = max(len(line.rstrip()) for line in text.plain.split("\n"))
    console = Console(record=True, file=io.StringIO(), width=width)
    console.print(text, "", sep="\n", no_wrap=True, crop=True)  # rich cuts the last line's underscores
    drawn = console.export_svg(title=title, unique_id=name)
    drawn = re.sub(r"\s*@font-face \{.*?\}", "", drawn, flags=re.DOTALL)
    drawn = re.sub(r"font-family: [^;]+;", f"font-family: {FONTS};", drawn)
    return "\n".join(line.rstrip() for line in drawn.splitlines() if line.strip()) + "\n"


if __name__ == "__main__":
    for name in sys.argv[1:] or PICTURES:
        taken = PICTURES[name]
        file = IMAGES / f"{name}.svg"
        file.write_text(svg(take(taken), taken.title, name), encoding="utf-8")
