"""What programs say of themselves when they log in, and who can follow a level (D26)."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from garlicfarm.levels import (
    BRINGS,
    HIGHEST,
    LOWEST,
    SAYS_NOTHING,
    THIS,
    Program,
    algorithm_of,
    beyond,
    cannot_follow,
    level_of,
    parse_program,
    unknown_algorithm,
)

WORDS = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters=","), max_size=64)
LEVELS = st.lists(st.integers(0, 999_999_999), min_size=2, max_size=2).map(sorted)
GOOD = "version=0.3.0, revision=, application=log, levels=0-3, level=1"


@given(WORDS, WORDS, WORDS, LEVELS, st.integers(0, 999_999_999))
def test_header_written_and_read_is_the_same(version, revision, application, levels, level):
    lowest, highest = levels
    program = Program(
        version=version,
        revision=revision,
        application=application,
        lowest=lowest,
        highest=highest,
        level=min(level, highest),
    )
    assert parse_program(program.header()) == program


@given(st.text())
def test_name_that_no_header_takes_is_written_as_one_that_it_takes(name: str) -> None:
    header = msgspec.structs.replace(THIS, application=name, revision=name).header()
    assert header.isascii()
    assert header.isprintable()
    program = parse_program(header)
    assert cannot_follow(2, program, LOWEST, name) == ""


def test_no_header_is_a_program_of_the_lowest_level() -> None:
    assert parse_program(None) == SAYS_NOTHING == Program()
    assert (SAYS_NOTHING.lowest, SAYS_NOTHING.highest) == (0, 0)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "0.3.0",
        GOOD + ", more=1",
        GOOD.replace("levels=0-3", "levels=2"),
        GOOD.replace("levels=0-3", "levels=-1-2"),
        GOOD.replace("level=1", "level=one"),
        GOOD.replace("level=1", "level=01"),
        GOOD.replace("level=1", "level=١"),
        GOOD.replace("level=1", "level=" + "9" * 1000),
        GOOD.replace("version=0.3.0", "version=" + "9" * 65),
        GOOD.replace("version=0.3.0", "version=0.3.0\x1b[2J"),
        GOOD.replace("log", "a,b"),
    ],
)
def test_malformed_header_is_refused(header: str) -> None:
    parse_program(GOOD)
    with pytest.raises(ValueError, match="malformed"):
        parse_program(header)


@pytest.mark.parametrize("wrong", [("levels=0-3", "levels=4-3"), ("level=1", "level=4")])
def test_header_that_contradicts_itself_is_refused(wrong: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="contradicts itself"):
        parse_program(GOOD.replace(*wrong))


def test_every_level_above_the_lowest_brings_something_and_has_an_algorithm() -> None:
    assert [*BRINGS] == [*range(LOWEST + 1, HIGHEST + 1)]
    assert [level_of(algorithm_of(level)) for level in BRINGS] == [*BRINGS]
    assert not any(unknown_algorithm(algorithm_of(level)) for level in range(LOWEST, HIGHEST + 1))
    assert "this program has 2 to" in unknown_algorithm(algorithm_of(HIGHEST + 1))
    assert "version 1 of" in unknown_algorithm(algorithm_of(LOWEST - 1))


def test_level_beyond_this_program_is_told_with_what_to_do() -> None:
    assert beyond(HIGHEST) == beyond(LOWEST) == ""
    assert f"the farm is at level {HIGHEST + 1}" in beyond(HIGHEST + 1)
    assert "install the program of the other members" in beyond(HIGHEST + 1)


@pytest.mark.parametrize(
    ("program", "told"),
    [
        (THIS, ""),
        (SAYS_NOTHING, "a program that names no levels (garlicfarm 0.2, or JRaft), which can level 0"),
        (
            Program(version="0.9.0", revision="abc", lowest=2, highest=3),
            "0.9.0 (abc), which can levels 2 to 3",
        ),
        (msgspec.structs.replace(THIS, application="tally"), "the application tally, and the farm's is log"),
    ],
)
def test_member_can_follow_what_its_program_can(program: Program, told: str) -> None:
    found = cannot_follow(3, program, 1, "log")
    assert told in found
    assert bool(told) is bool(found)
