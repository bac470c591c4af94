"""The golden scripts: `pytest tests/raft/test_raft_scripts.py --rewrite` writes the transcripts anew, to be
read as a diff before it is committed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.raft.scripted import play

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.txt"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_script_leads_to_its_transcript(script: Path, request: pytest.FixtureRequest) -> None:
    written = script.read_text(encoding="utf-8")
    played = play(written)
    if request.config.getoption("--rewrite", default=False):
        script.write_text(played, encoding="utf-8")
    else:
        assert played == written
