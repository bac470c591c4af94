"""A stream, packet by packet."""

from __future__ import annotations

import pytest

from garlicfarm_plugin_i2cp.streaming.stream import Stream
from tests.publishers.streaming.play import Play


@pytest.fixture
def play() -> Play:
    return Play()


@pytest.fixture
def stream(play: Play) -> Stream:
    return play.open()
