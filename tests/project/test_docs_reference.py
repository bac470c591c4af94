"""Metrics, errors, endpoints, messages and kits: the reference names what the code has, and no more."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
import trio
from prometheus_client.metrics import MetricWrapperBase
from starlette.routing import Route

from garlicfarm import errors
from garlicfarm.admin import app, live_events, watch
from garlicfarm.admin.server import SEND_S
from garlicfarm.feed import events
from garlicfarm.metrics import NodeMetrics
from garlicfarm.refusals import Refusal
from garlicfarm.wire import MessageType, ValueType
from garlicfarm_plugin_spark.rank_metrics import RankMetrics
from tests.project.pages import ROOT

REFERENCE = ROOT / "docs" / "reference"


def rows(page: str, columns: int) -> list[tuple[str, ...]]:
    """The table rows of a page that begin with a name in backticks and have so many columns."""
    text = (REFERENCE / page).read_text(encoding="utf-8")
    cells = [
        tuple(c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1])
        for line in re.findall(r"^\| `.*\|$", text, re.M)
    ]
    return [row for row in cells if len(row) == columns]


def test_metrics_page_has_every_metric_with_type_and_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[MetricWrapperBase, Sequence[str]] = {}
    make = MetricWrapperBase.__init__

    def kept(
        metric: MetricWrapperBase, name: str, documentation: str, labelnames: Sequence[str] = (), **more: Any
    ) -> None:
        make(metric, name, documentation, labelnames, **more)
        made[metric] = labelnames

    monkeypatch.setattr(MetricWrapperBase, "__init__", kept)
    NodeMetrics()
    RankMetrics()
    expected = {}
    for metric, labels in made.items():
        (family,) = metric.describe()
        total = "_total" if family.type == "counter" else ""
        expected[family.name.removeprefix("garlicfarm_") + total] = (family.type, ", ".join(labels))
    shown = {name.strip("`"): (kind, labels) for name, kind, labels, _ in rows("metrics.md", 4)}
    assert shown == expected


def test_log_words_on_the_metrics_page_are_those_of_the_code() -> None:
    text = (REFERENCE / "metrics.md").read_text(encoding="utf-8").partition("Words:")[2]
    said = set(re.findall(r"`([a-z-]+)`", text))
    logged = set()
    for path in (path for room in ("garlicfarm", "plugins") for path in (ROOT / room).rglob("*.py")):
        logged |= set(
            re.findall(
                r'(?:log\.(?:info|warning|error|log)|self\._(?:note|warn)|Note)\((?:level, )?\s*"([a-z-]+)"',
                path.read_text(encoding="utf-8"),
            )
        )
    computed = {
        "drained",
        "undrained",
        "publication-lost",
        "standby-lost",
        "became-follower",
        "became-candidate",
        "became-leader",
        "farm-failed",
        *("disk-fills", "disk-nearly-full", "disk-full", "disk-has-room"),
        "lines-dropped",
        "message-does-not-fit",
        "removed",
    }
    assert said == logged | computed


def test_errors_page_has_every_error_with_its_parent() -> None:
    shown = {name.strip("`"): base.strip("`") for name, base, *_ in rows("errors.md", 4)}
    assert shown == {
        name: "" if (base := getattr(errors, name).__base__) is errors.GarlicFarmError else base.__name__
        for name in errors.__all__
        if name != "GarlicFarmError" and isinstance(getattr(errors, name), type)
    }


def test_errors_page_has_every_reason_with_its_number() -> None:
    shown = {word.strip("`"): number for word, number, _ in rows("errors.md", 3)}
    assert shown == {reason.value: str(reason.number or "") for reason in Refusal}


def test_protocol_page_has_every_number_of_a_reason() -> None:
    text = (REFERENCE / "protocol.md").read_text(encoding="utf-8")
    table = text.partition("| reason | meaning |")[2].partition("\n\n")[0]
    numbers = [int(number) for number in re.findall(r"^\| (\d+) \|", table, re.M)]
    assert numbers == sorted({reason.number for reason in Refusal} - {0})


class _Node:
    """As much of a node as an application needs to be made."""

    metrics = NodeMetrics()
    farms: ClassVar[dict[str, Any]] = {}

    class users:
        @staticmethod
        def lookup(name: str) -> dict[str, list[str]]:
            return {}


async def test_admin_page_has_every_endpoint() -> None:
    application = app.create_app(_Node(), shutdown=trio.Event())  # type: ignore[arg-type]
    served = {
        f"{method} {route.path}"
        for route in application.routes
        if isinstance(route, Route)
        for method in (route.methods or ())
        if method != "HEAD"
    }
    shown = {name.strip("`").partition("?")[0] for name, *_ in rows("admin-api.md", 3) if " /" in name}
    assert shown == served


def test_admin_page_has_the_limits_of_a_page_of_the_log() -> None:
    shown = {name.strip("`"): (default, allowed) for name, default, allowed, _ in rows("admin-api.md", 4)}
    assert shown["limit"] == (f"{app.DEFAULT_LIMIT}", f"1 to {app.MAX_LIMIT}")
    assert shown["wait_s"] == ("0", f"0 to {app.MAX_WAIT_S:.0f}")


def test_admin_page_has_every_kind_of_event_and_the_limits_of_watchers() -> None:
    text = (REFERENCE / "admin-api.md").read_text(encoding="utf-8")
    section = text.partition("## Live events")[2].partition("\n## ")[0]
    kinds = re.findall(r"^\| `(\w+)` \|", section.partition("| kind |")[2], re.M)
    assert sorted(kinds) == sorted(events.KINDS)
    for fact in (
        f"{live_events.QUIET_S:.0f} s without another event",
        f"pauses for {live_events.REST_PER_MESSAGE_S * 1000:.0f} ms",
        f"at {live_events.BYTES_PER_S / 1e6:.0f} MB/s",
        f"newest {live_events.HELD_BYTES >> 20} MiB",
        f"{SEND_S:.0f} s is disconnected",
        f"Watchers of live events: {watch.MAX_WATCHERS}, and {watch.MAX_WATCHERS_OF_USER} of each user",
    ):
        assert fact in " ".join(text.split()), fact


def test_admin_page_has_every_kind_of_problem() -> None:
    kinds = set()
    for path in (ROOT / "garlicfarm" / "admin").glob("*.py"):
        source = path.read_text(encoding="utf-8")
        kinds |= set(re.findall(r'Problem\(\s*(?:\d+|error\.status_code),\s*"([a-z-]+)"', source))
    text = (
        (REFERENCE / "admin-api.md").read_text(encoding="utf-8").partition("## Errors")[2].partition("## ")[0]
    )
    shown = {
        word for row in re.findall(r"^\| \d+ \| (.*?) \|", text, re.M) for word in re.findall("`(.*?)`", row)
    }
    assert len(kinds) > 10
    assert shown == kinds


def test_protocol_page_has_every_decision_once() -> None:
    text = (REFERENCE / "protocol.md").read_text(encoding="utf-8")
    defined = re.findall(r'<a id="d(\d+)"></a>', text)
    assert sorted(map(int, defined)) == [*range(1, 29)]
    cited = set()
    for path in [*(ROOT / "garlicfarm").rglob("*.py"), *(ROOT / "transports").rglob("*.py")]:
        cited |= set(re.findall(r"\bD(\d{1,2})\b", path.read_text(encoding="utf-8")))
    assert cited <= set(defined)


@pytest.mark.parametrize(("kind", "title"), [(MessageType, "messages"), (ValueType, "values")])
def test_protocol_page_numbers_are_those_of_the_wire(kind: type[MessageType | ValueType], title: str) -> None:
    text = (REFERENCE / "protocol.md").read_text(encoding="utf-8")
    table = text.partition(f"<!-- {title} -->")[2].partition("\n\n")[0]
    shown = {}
    for name, numbers in re.findall(r"^\| (\w+(?: / Response)?) \| ([\d /]+) \|", table, re.M):
        request, _, response = name.partition(" / ")
        first, *second = numbers.split(" / ")
        shown[request] = int(first)
        if response:
            shown[request.removesuffix("Request") + response] = int(second[0])
    names = {re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper(): number for name, number in shown.items()}
    assert names == {member.name: member.value for member in kind}


def test_testing_page_names_what_is_there() -> None:
    for name, *_ in rows("testing-kits.md", 2):
        module, dot, attribute = name.strip("`").rpartition(".")
        if dot:
            assert hasattr(importlib.import_module(module), attribute), name
