"""A command that waits says so on stderr, after 2 s and then ever more rarely."""

from __future__ import annotations

import threading

import pytest
import trio
import trio.testing

from garlicfarm.cli.sign_of_life import run_blocking, sign_of_life


@pytest.fixture(autouse=True)
def two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the program has it; other tests see no sign of life (`tests/conftest.py`)."""
    monkeypatch.setattr("garlicfarm.cli.sign_of_life.FIRST_S", 2.0)


async def test_nothing_is_said_before_two_seconds(autojump_clock, capsys):
    async with sign_of_life("a leader"):
        await trio.sleep(1.9)
    await trio.sleep(100)
    assert capsys.readouterr() == ("", "")


async def test_lines_come_at_growing_intervals_on_stderr(autojump_clock, capsys):
    entries = 0

    def what() -> str:
        return f"{entries} entries"

    async with sign_of_life(what):
        await trio.sleep(7)
        entries = 5
        await trio.sleep(33)
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.splitlines() == [
        "2 s: waiting for 0 entries",
        "6 s: waiting for 0 entries",
        "14 s: waiting for 5 entries",
        "30 s: waiting for 5 entries",
    ]


async def test_what_has_come_is_no_longer_waited_for(autojump_clock, capsys):
    async with sign_of_life("an entry") as came:
        await trio.sleep(3)
        came()
        await trio.sleep(100)
    assert capsys.readouterr().err == "2 s: waiting for an entry\n"


async def test_quiet_says_nothing(autojump_clock, capsys):
    async with sign_of_life("a leader", quiet=True):
        await trio.sleep(100)
    assert capsys.readouterr().err == ""


async def test_foreign_text_commands_no_terminal(autojump_clock, capsys):
    async with sign_of_life("x\x1b[2J"):
        await trio.sleep(3)
    assert capsys.readouterr().err == "2 s: waiting for x\\u001b[2J\n"


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
async def test_errors_leave_it_as_they_are(error: BaseException) -> None:
    cause = OSError("why")
    with pytest.raises(type(error)) as caught:
        async with sign_of_life("a leader"):
            raise error from cause
    assert caught.value is error
    assert error.__cause__ is cause


async def test_deadline_around_it_is_kept(autojump_clock: trio.testing.MockClock) -> None:
    with trio.move_on_after(10) as scope:
        async with sign_of_life("a leader"):
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert trio.current_time() == pytest.approx(10)


def test_what_blocks_is_run_in_a_thread_and_its_result_and_errors_come_back() -> None:
    assert run_blocking("a number", threading.current_thread) is not threading.current_thread()

    def fail() -> None:
        raise LookupError("none")

    with pytest.raises(LookupError, match="none"):
        run_blocking("a number", fail)
