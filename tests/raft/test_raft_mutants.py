"""Every rule of the core is tested: a core that breaks it fails the test that is named for it."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.mutants import Mutant, planted, read_mutants


def run(function: Callable[..., None]) -> None:
    """Run a test with all its parameters."""
    for arguments in arguments_of(function):
        function(**arguments)


def arguments_of(function: Callable[..., None]) -> Iterator[dict[str, Any]]:
    """All that its ``parametrize`` marks come to."""
    choices = []
    for mark in getattr(function, "pytestmark", ()):
        if mark.name != "parametrize":
            continue
        names, values = mark.args
        names = names.split(",") if isinstance(names, str) else names
        choices.append(
            [dict(zip(names, value if len(names) > 1 else (value,), strict=True)) for value in values]
        )
    for combination in itertools.product(*choices):
        yield {name: value for chosen in combination for name, value in chosen.items()}


@pytest.mark.slow
@pytest.mark.parametrize("mutant", read_mutants("raft").values(), ids=lambda mutant: mutant.name)
def test_mutant_is_killed_by_its_test(mutant: Mutant) -> None:
    file, _, name = mutant.found_by.partition(".py::")
    function = getattr(importlib.import_module(f"tests.raft.{file}"), name)
    # By what it asserts: a mutant that only stumbles would be killed by any test.
    with planted(mutant), pytest.raises((AssertionError, pytest.fail.Exception)):
        run(function)
