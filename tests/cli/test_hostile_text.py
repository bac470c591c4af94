"""What others wrote reaches a terminal as text: nothing that a terminal obeys, and no forged line."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from garlicfarm import cli
from garlicfarm.cli import run
from garlicfarm.cli.dafka_consume import record_line
from garlicfarm.cli.log_batch import Report
from garlicfarm.cli.say import put, say
from garlicfarm.errors import EntryRefused, ProposalDropped
from garlicfarm.printable import printable, printable_json
from garlicfarm.refusals import Refusal
from tests.cli.served import Served
from tests.publishing.dated_log import due_member_1

OBEYED = [
    *map(chr, (*range(32), 0x7F, *range(0x80, 0xA0))),
    *"\u061c\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069",
]
EVIL = f"a{''.join(OBEYED)}\nerror: forged\r\x1b]0;owned\x07z"

_PRINTS = re.compile(r"\b(s?echo|print|stdout\.write|stderr\.write|os\.write)$")

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def served(served: Served) -> Served:
    """It says `EVIL` wherever it says a text."""
    for name in ("status", "ranking", "policy", "members"):
        setattr(served.node.farm, name, _evil(getattr(served.node.farm, name)))
    return served


KEPT = {"because", "schema", "role", "endpoint", "hash", "mode", "state", "farm"}
PUBLISHERS = [{"plugin": "sam", "state": "not ready", "since_ms": None, "until_ms": None, "problems": ["p"]}]
FEEDS = [{"name": "n", "plugin": "p", "state": "failed", "index": 1, "lag": 0, "problem": "p"}]


def _evil(body_of: Any) -> Any:
    def body(**options: Any) -> Any:
        found = body_of(**options)
        if "ranking" in found["schema"]:
            log = due_member_1()
            log.override(2, "off")
            found = {"index": 1, **msgspec.to_builtins(log.farm.ranking(), str_keys=True)}
            found["publication"]["problems"] = ["p"]
            for row in found["members"]:
                row |= {"status": {"a": "b", "c": ["d"]}, "age_s": 1.5, "date": row["date"] or 1}
        if "status" in found["schema"]:
            found |= {"publishers": PUBLISHERS, "feeds": FEEDS, "problems": ["p"], "key_expiries": {}}
            for row in found["members"]:
                row |= {"error": "e", "version": "v", "endpoint": f"ssl://{EVIL}"}
        return poisoned(found)

    return body


def poisoned(value: Any, key: str = "") -> Any:
    """The same with `EVIL` in each text, and in the keys of documents."""
    if isinstance(value, dict):
        return {name: poisoned(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [poisoned(inner, key) for inner in value]
    return value + EVIL if isinstance(value, str) and key not in KEPT else value


def check(text: str) -> None:
    assert [character for character in OBEYED if character in text and character != "\n"] == []
    assert not any(line.startswith("error: forged") for line in text.split("\n"))
    assert "\\u202e" in text  # something hostile was there


@pytest.mark.parametrize(
    "command",
    [
        ["status"],
        ["status", "-o", "json"],
        ["status", "-o", "jsonl"],
        ["health"],
        ["health", "-o", "json"],
        ["health", "-o", "jsonl"],
        ["member", "list", "-o", "json"],
        ["farm", "show"],
        ["farm", "show", "-o", "json"],
        ["farm", "show", "-o", "jsonl"],
        ["publish", "show"],
        ["publish", "show", "-o", "json"],
        ["log", "tail"],
    ],
    ids=" ".join,
)
def test_no_command_passes_on_what_a_terminal_obeys(served, capsys, command):
    served.commit(EVIL.encode())
    assert run(command) in (0, 6)
    shown = capsys.readouterr()
    check(shown.out)
    assert shown.err.isascii()
    if command[:2] == ["log", "tail"]:
        assert json.loads(shown.out)["value"] == EVIL


@pytest.mark.parametrize(
    ("error", "command"),
    [
        (EntryRefused(f"$.{EVIL}", "absent", EVIL), ["log", "post", "entry"]),
        (ProposalDropped(Refusal.CANNOT_BE_DIALLED, EVIL), ["member", "add", "4", "ssl://127.0.0.1:1"]),
        (ProposalDropped(Refusal.CANNOT_BE_DIALLED, EVIL), ["farm", "set", "interval=30s"]),
    ],
)
def test_no_error_of_a_node_forges_a_line(served, tmp_path, capsys, error, command):
    (tmp_path / "entry").write_text("entry")
    served.node.farm.post_error = error
    assert run(command) != 0
    check(capsys.readouterr().err)


def test_what_every_command_prints_by_is_not_obeyed(capsys: Capture) -> None:
    put(EVIL)
    say(EVIL)
    out, err = capsys.readouterr()
    for each in out, err:
        assert [character for character in OBEYED if character in each and character not in "\n\t"] == []


def test_commands_print_by_no_other_way() -> None:
    """Beside it, each of these shows its own text through `printable`."""
    others = {"dafka_consume", "rank_screen", "sign_of_life", "status"}
    found = set()
    for file in Path(cli.__file__).parent.glob("*.py"):
        calls = (node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call))
        if any(_PRINTS.search(ast.unparse(call.func)) for call in calls):
            found.add(file.stem)
            assert "printable" in file.read_text(), file
    assert found == {"say", *others}


def test_records_of_dafka_are_json_that_no_terminal_obeys() -> None:
    class Record:
        topic, partition, sequence, content = EVIL, "p", 1, EVIL.encode()

    line = record_line(Record)
    check(line)
    assert json.loads(line)["value"] == EVIL


@pytest.mark.parametrize("output", ["table", "jsonl"])
def test_reasons_for_refused_lines_are_shown_as_text(capsys: Capture, output: str) -> None:
    from garlicfarm.cli.log_batch import Outcome

    Report(output).add([{"outcome": Outcome.REFUSED, "reason": EVIL}])
    check(capsys.readouterr().out)


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_shown_text_is_printable_and_shown_json_stays_the_same(text: str) -> None:
    assert printable(text).isprintable()
    document = json.dumps({"a": [text]}, indent=2, ensure_ascii=False)
    shown = printable_json(document)
    assert all(each.isprintable() for each in shown.split("\n"))
    assert json.loads(shown) == json.loads(document)
