"""The option that writes the golden transcripts anew."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite", action="store_true", help="write the transcripts of tests/raft/scripts anew"
    )
