"""The commands of the page about keys, run as they stand there."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.project.pages import blocks, environment

PAGE = "docs/howto/keys.md"


def test_commands_of_the_page_make_keys_and_bundles_and_show_what_it_shows(tmp_path: Path) -> None:
    script = "\n".join(["set -eu", *blocks(PAGE, "sh")])
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env=environment(tmp_path),
        check=True,
        capture_output=True,
        text=True,
    )
    made = {str(path.relative_to(tmp_path)) for path in tmp_path.glob("bundles*/*")}
    assert made == {
        f"{directory}/site-{node}.bundle" for directory in ("bundles", "bundles-2") for node in (1, 2, 3)
    }
    (shown,) = blocks(PAGE, "text")
    names = [line[:11].strip() for line in shown.splitlines()]
    lines = done.stdout.splitlines()
    at = lines.index("kind         bundle")
    assert [line[:11].strip() for line in lines[at : at + len(names)]] == names
    assert lines[at + 1] == shown.splitlines()[1]
    assert lines[at + 4].split() in (["days", "left", "89"], ["days", "left", "90"])
