"""The published JSON Schema of entries accepts what servers accept, as far as a schema can say it.

`python -m tests.publishing.test_json_schema` writes the file anew.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from garlicfarm.errors import EntryRefused
from garlicfarm.i2p.encoding import encode
from garlicfarm.levels import HIGHEST
from garlicfarm.publishing import json_schema, validation
from garlicfarm.publishing.administration import ACTIONS
from garlicfarm.publishing.entries import parse_entry
from garlicfarm.publishing.json_schema import entry_schema
from garlicfarm.publishing.scoring import WEIGHTS
from tests.publishing.scripted_log import FILE as SCRIPTED_LOG
from tests.publishing.scripted_log import destination
from tests.publishing.test_entry_validity import INVALID, LYING, NOTE, ORDER, STATUS, valid

FILE = Path(__file__).parents[2] / "docs" / "reference" / "status.schema.json"
BEYOND_A_SCHEMA = {
    "another cluster",
    "named twice",
    "do not add up to 100",
    "not a member",
    "duplicate key",
    "too large",
    "nested too deep",
}
"""and a destination of a length that its certificate does not say, and 1.0"""

VALIDATOR = Draft202012Validator(entry_schema())

I2P_BASE64 = st.binary(max_size=8).map(encode)
DESTINATIONS = st.integers(0, 3).map(destination)
HASHES = st.binary(min_size=32, max_size=32).map(encode)
TEXT = st.text(st.characters(codec="utf-8"), max_size=3) | I2P_BASE64 | DESTINATIONS | HASHES
INTEGERS = st.sampled_from([-1, 0, 1, 2, 3, 999, 1000, 3_600_000, 2**31 - 1, 2**31, 2**63 - 1, 2**63])
SCALARS = st.none() | st.booleans() | INTEGERS | TEXT | st.just(0.5)
JUNK = SCALARS | st.lists(SCALARS, max_size=2) | st.dictionaries(TEXT, SCALARS, max_size=2)


def test_schema_file_is_what_the_code_makes() -> None:
    assert FILE.read_text() == written()


def test_schema_is_one() -> None:
    Draft202012Validator.check_schema(entry_schema())


def refused(entry: bytes) -> str | None:
    """Why a server of the farm refuses an entry."""
    try:
        parse_entry(entry, "farm", HIGHEST)
    except EntryRefused as error:
        return error.reason
    return None


@pytest.mark.parametrize("entry", [STATUS, NOTE, ORDER])
def test_schema_takes_an_entry_of_every_kind(entry: bytes) -> None:
    assert VALIDATOR.is_valid(json.loads(entry))


def test_schema_takes_the_scripted_log() -> None:
    for line in SCRIPTED_LOG.read_text().splitlines():
        VALIDATOR.validate(json.loads(json.loads(line)["entry"]))


@pytest.mark.parametrize(("changes", "field", "reason"), INVALID)
def test_schema_refuses_what_servers_refuse_unless_it_is_beyond_a_schema(changes, field, reason):
    document = valid(**changes)
    beyond = reason in BEYOND_A_SCHEMA or document["date"] == 1.0 or LYING in json.dumps(document)
    assert VALIDATOR.is_valid(document) is beyond


@st.composite
def shaped(draw: st.DrawFn, schema: dict[str, Any]) -> object:
    """Mostly what a part of the schema asks for, and now and then anything."""
    if draw(st.integers(0, 40)) == 0:
        return draw(JUNK)
    if "$ref" in schema:
        schema = VALIDATOR.schema["$defs"][schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema and "properties" not in schema:
        return draw(shaped(draw(st.sampled_from(schema["anyOf"]))))
    match schema:
        case {"const": value}:
            return value
        case {"enum": values}:
            return draw(st.sampled_from(values) | TEXT)
        case {"type": "integer"}:
            return draw(st.integers(schema["minimum"], schema["maximum"]) | INTEGERS)
        case {"type": "string"}:
            return draw(
                {
                    _HASH: HASHES,
                    _DESTINATION: DESTINATIONS,
                    _BASE64: I2P_BASE64,
                    _TRANSIENT: st.binary(min_size=8, max_size=8).map(bytes.hex),
                }.get(schema.get("pattern"), TEXT)
            )
        case {"type": "array", "prefixItems": items}:
            return [draw(shaped(item)) for item in items]
        case {"type": "array"}:
            return draw(st.lists(shaped(schema["items"]), max_size=2))
        case {"type": "object"}:
            required = {*schema.get("required", ())}
            return {
                name: draw(shaped(part))
                for name, part in schema.get("properties", {}).items()
                if name in required or draw(st.booleans())
            }
    return None


def _pattern(struct: str, key: str) -> str:
    found: dict[str, Any] = VALIDATOR.schema["$defs"][struct]["properties"][key]
    return str(found.get("pattern") or found["anyOf"][0]["pattern"])


_HASH = _pattern("RemoteStatus", "hash")
_DESTINATION = _pattern("DestinationStatus", "destination")
_BASE64 = _pattern("RouterStatus", "lastPublishedRI")
_TRANSIENT = json_schema.TRANSIENT_PATTERN


@given(shaped(entry_schema()), st.dictionaries(TEXT, JUNK, max_size=1))
def test_schema_and_servers_agree_on_whatever_is_made(document: Any, unknown: dict[str, Any]) -> None:
    if not isinstance(document, dict):
        document = {}
    document = unknown | document
    if isinstance(document.get("cluster"), str):
        document["cluster"] = "farm"
    entry = json.dumps(document).encode()
    refusal = refused(entry)
    if refusal is None:
        VALIDATOR.validate(document)
    elif refusal not in BEYOND_A_SCHEMA:
        assert not VALIDATOR.is_valid(document), refusal


VALID_ARGS = {
    "interval": {"ms": 1000},
    "staleness": {"R": 3},
    "override": {"member": 1},
    "exclude": {"hash": encode(bytes(32))},
    "include": {"hash": encode(bytes(32))},
    "weights": dict(WEIGHTS),
    "publisher": {"margin": 0},
    "publish": {},
    "lease": {"ms": 1_000},
    "lost": {"member": 1, "index": 1, "term": 1},
    "settled": {"index": 1, "term": 1},
    "timeouts": {"election_ms": 20_000, "lease_ms": 60_000, "term": 1},
    "ban": {"hash": encode(bytes(32)), "until_ms": 1},
    "forget": {"after_ms": 3_600_000, "min_members": 3},
    "forget without a time": {"after_ms": None, "min_members": 3},
}


@pytest.mark.parametrize("action", ACTIONS)
def test_schema_takes_every_action_with_its_arguments_only(action: str) -> None:
    for args in VALID_ARGS.values():
        document = valid(config={"admin": {"action": action, "by": "alice", "args": args}})
        assert VALIDATOR.is_valid(document) is (refused(json.dumps(document).encode()) is None)


PAGE = FILE.with_name("status.md")


def test_page_shows_a_status_that_servers_take() -> None:
    example = PAGE.read_text().partition("```json\n")[2].partition("```")[0]
    assert refused(example.replace("…", destination(1)).encode()) is None
    VALIDATOR.validate(json.loads(example.replace("…", destination(1))))


def test_page_names_every_reason() -> None:
    sources = "".join(file.read_text() for file in Path(validation.__file__).parent.glob("*.py"))
    reasons = {*re.findall(r'EntryRefused\([^()]*, "([^"]+)"\)', sources)}
    reasons |= {*re.findall(r'raise ValueError\("([^"]+)"\)', sources)}
    reasons -= {"not a status"}  # of a snapshot
    assert len(reasons) > 20
    assert [reason for reason in sorted(reasons) if f"`{reason}`" not in PAGE.read_text()] == []


def written() -> str:
    return json.dumps(entry_schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(written())
