"""The page on the clients names every method with its arguments, and tests that are there."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

import pytest

from garlicfarm import client, errors
from garlicfarm.client import AdminClient, FarmClient, from_config, open_farm_client
from tests.project.pages import ROOT

PAGE = (ROOT / "docs" / "reference" / "client.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def call(name: str, function: Callable[..., object]) -> str:
    """A call with the names of the arguments, and their defaults."""
    arguments = []
    for parameter in list(inspect.signature(function).parameters.values())[1:]:
        default = "" if parameter.default is parameter.empty else f"={parameter.default}"
        arguments.append(parameter.name + default)
    return f"{name}({', '.join(arguments)})"


@pytest.mark.parametrize("kind", [AdminClient, FarmClient])
def test_client_page_has_every_method_with_its_arguments(kind: type) -> None:
    methods = {
        call(name, function)
        for name, function in vars(kind).items()
        if not name.startswith("_") and callable(function)
    }
    shown = re.findall(r"^\| `(\w+\(.*?\))` \|", section(kind.__name__), re.MULTILINE)
    assert sorted(shown) == sorted(methods)


@pytest.mark.parametrize(
    ("title", "made_by"),
    [("AdminClient", AdminClient), ("FarmClient", open_farm_client), ("from_config", from_config)],
)
def test_client_page_has_every_argument_a_client_is_made_with(
    title: str, made_by: Callable[..., object]
) -> None:
    table = section(title).partition("| argument | |\n")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(inspect.signature(made_by).parameters)


def test_client_page_names_errors_that_there_are_and_whatever_is_exported() -> None:
    named = set(re.findall(r"`(\w+(?:Error|Quorum|Leader|Dropped|Unknown|Refused|Compacted))`", PAGE))
    assert len(named) >= 10
    assert named <= set(errors.__all__)
    assert all(f"`{name}" in PAGE for name in client.__all__)


def test_every_guarantee_names_tests_that_there_are() -> None:
    guarantees = re.findall(
        r"^\| .*? \| .*? \| (`tests/.*?) \|$", section("What is guaranteed"), re.MULTILINE
    )
    assert len(guarantees) == len(re.findall(r"^\| ", section("What is guaranteed"), re.MULTILINE)) - 1
    for test in re.findall(r"`(.*?)`", " ".join(guarantees)):
        file, _, name = test.partition("::")
        assert re.search(
            rf"^(async )?def {name}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE
        ), test
