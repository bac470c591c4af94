"""Options of the source, as Spark passes them: names in lower case, values as text. Needs no Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from garlicfarm.client.trust import NodeAccess
from garlicfarm.errors import ConfigError
from garlicfarm_plugin_spark.options import SourceOptions, read_options

PIN = "sha256-" + "A" * 43
GIVEN = {"url": "https://a:1 https://b:2", "farm": "barn", "user": "rita", "passwordFile": "/p"}


def read(**changes: str) -> SourceOptions:
    return read_options({name.lower(): value for name, value in (GIVEN | changes).items()})


def problems(options: dict[str, str]) -> list[str]:
    with pytest.raises(ConfigError) as error:
        read_options(options)
    return list(error.value.problems)


def test_options_without_more_have_the_defaults() -> None:
    found = read()
    (farms,) = found.sources
    assert farms.nodes == NodeAccess(("https://a:1", "https://b:2"), "rita", Path("/p"))
    assert farms.farms == ("barn",)
    assert (found.start, found.end, found.strict, found.pushdown) == ("earliest", None, True, False)
    assert (found.max_entries, found.max_bytes, found.min_partitions) == (20_000, 64 << 20, 1)


@pytest.mark.parametrize("text", ["a,b", "a b", " a, b,a ", "a ,b"])
def test_options_of_several_farms_name_each_once(text: str) -> None:
    assert read(farm=text).sources[0].farms == ("a", "b")


def test_options_of_all_farms_name_none() -> None:
    (every,) = read(farm="*").sources
    assert (every.farms, every.application) == (None, None)
    assert read(farm="*", application="publisher").sources[0].application == "publisher"


def test_options_of_nodes_by_farm_make_a_source_for_each() -> None:
    """Spark passes the farm in the option's name in lower case."""
    found = read(farm="a, Barn, c", **{"url.Barn": f"https://n:5?pin={PIN}"})
    common, own = found.sources
    assert (common.farms, common.nodes.urls) == (("a", "c"), ("https://a:1", "https://b:2"))
    assert (own.farms, own.nodes.urls) == (("Barn",), (f"https://n:5?pin={PIN}",))


def test_options_of_nodes_for_every_farm_need_no_common_url() -> None:
    given = {"farm": "a b", "user": "u", "passwordfile": "/p", "url.a": "https://a:1", "url.b": "https://b:1"}
    assert [one.farms for one in read_options(given).sources] == [("a",), ("b",)]


@pytest.mark.parametrize(
    ("text", "start"),
    [("latest", "latest"), ("state", "state"), ("1", 1), ("-100", -100), (str(2**63 - 1), 2**63 - 1)],
)
def test_options_of_a_start_are_words_and_indexes(text: str, start: str | int) -> None:
    assert read(startingIndex=text).start == start


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("65536k", 64 << 20), ("2M", 2 << 20), ("1gb", 1 << 30)]
)
def test_options_of_bytes_have_units(text: str, size: int) -> None:
    assert read(maxBytesPerTrigger=text).max_bytes == size


def test_options_that_are_missing_are_all_named() -> None:
    assert problems({}) == [
        f"the option {name} is missing" for name in ("farm", "url", "user", "passwordFile")
    ]


def test_options_that_are_unknown_are_named_with_one_that_is_like_them() -> None:
    found = problems({**GIVEN, "maxentriespertriger": "1", "path": "/x", "startingindex": "0"})
    assert found[0] == "the option maxentriespertriger is unknown; did you mean 'maxEntriesPerTrigger'?"
    assert found[1].startswith("the option path is unknown")
    assert found[2].startswith("startingIndex is '0', not earliest, latest, state, an index from 1, or -N")
    assert len(found) == 3


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"farm": "a/b"}, "farm names 'a/b', and a farm's name has 1 to 64 of"),
        ({"farm": "*, a"}, "farm names '*', and a farm's name has"),
        ({"farm": " , "}, "the option farm is missing"),
        ({"url": "http://a:1"}, "'http://a:1' is not https://host:port"),
        ({"url.barn": "a:1"}, "'a:1' is not https://host:port"),
        ({"url.stable": "https://a:1"}, "url.stable is for a farm that the option farm does not name"),
        ({"pin": "sha256-short"}, "the pin 'sha256-short' is neither sha256:HEX nor sha256-BASE64URL"),
        ({"startingIndex": "-0"}, "startingIndex is '-0', not"),
        ({"startingIndex": str(2**63)}, f"startingIndex is '{2**63}', not"),
        ({"startingIndex": "7", "farm": "a b"}, "startingIndex is an index of one farm, and the option farm"),
        ({"endingIndex": "7", "farm": "*"}, "endingIndex is an index of one farm, and the option farm"),
        ({"endingIndex": "-1"}, "endingIndex is '-1', not latest or an index from 1"),
        ({"maxEntriesPerTrigger": "many"}, "maxEntriesPerTrigger is 'many', not a number from 1"),
        ({"minPartitions": "0"}, "minPartitions is '0', not a number from 1"),
        ({"maxBytesPerTrigger": "1t"}, "maxBytesPerTrigger is '1t', not a number of bytes from 1"),
        ({"maxBytesPerTrigger": "0k"}, "maxBytesPerTrigger is '0k', not a number of bytes from 1"),
        (
            {"farm": "Barn barn", "url.barn": "https://b.example:1"},
            "url.Barn is for each farm of that name in any case",
        ),
        ({"query": "a/b"}, "query is 'a/b', not 1 to 64 of A-Z a-z 0-9 . _ -"),
        ({"failOnDataLoss": "perhaps"}, "failOnDataLoss is 'perhaps', not true or false"),
        ({"application": "log"}, "application selects farms, and the option farm names them: leave it out"),
    ],
)
def test_options_that_are_wrong_are_refused_with_a_sentence(changes: dict[str, str], problem: str) -> None:
    assert problem in "; ".join(problems(GIVEN | changes))


@pytest.mark.parametrize(
    ("stream", "changes", "words"),
    [
        (True, {"endingIndex": "9"}, ["endingIndex is for spark.read, not spark.readStream: leave it out"]),
        (True, {"pushdown": "true"}, ["pushdown is for spark.read, not spark.readStream: leave it out"]),
        (
            False,
            {"maxEntriesPerTrigger": "9", "maxBytesPerTrigger": "1m"},
            [
                "maxEntriesPerTrigger is for spark.readStream, not spark.read: leave it out",
                "maxBytesPerTrigger is for spark.readStream, not spark.read: leave it out",
            ],
        ),
        (False, {"startingIndex": "latest"}, ["startingIndex is latest, and spark.read would read nothing"]),
        (False, {"startingIndex": "state", "pushdown": "true"}, ["startingIndex is state"]),
        (False, {"startingIndex": "9", "endingIndex": "8"}, ["endingIndex 8 is before startingIndex 9"]),
    ],
)
def test_options_of_the_other_kind_of_query_are_refused(
    stream: bool, changes: dict[str, Any], words: list[str]
) -> None:
    found = read(**changes)
    with pytest.raises(ConfigError) as error:
        found.check_use(stream=stream)
    assert len(error.value.problems) == len(words)
    assert all(each in problem for each, problem in zip(words, error.value.problems, strict=True))
