"""Rules of the product broken on purpose: mutants of its functions. The product has no switch for them.

``tests/ROOM/mutants.txt`` has those of a room, each with what it does wrong, its changes, and what finds it:
most often the test that fails with it. A line that goes on is indented twice. ``# RULE`` names the rule that
all below it break::

    votes twice in a term
        raft.votes.can_grant_vote: is_free or state.vote == request.source => True
        test_raft_paper_elections.py::test_5_2_server_votes_for_at_most_one_candidate

A change names a function or method of `garlicfarm` and what stands there exactly once, whatever its lines and
spaces: an expression and another one, or statements and others (``pass``: none). Or it names what follows an
event in a state of a table ``STATES``, or an attribute of that state (None: nothing follows)::

    publishing.publisher_core.STATES[starting][late]: "retiring" => "failed"
    publishing.publisher_core.STATES[failed].is_exposed: True => False

``python -m tests.mutants ROOM NAME`` runs the test of a mutant. Exit code 0: it failed, by what it asserts.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import msgspec
import pytest

_TESTS = Path(__file__).parent
SURVIVED, STUMBLED = 1, 2  # exit codes


class Mutant(NamedTuple):
    """``changes`` and ``found_by`` are lines of the file."""

    rule: str
    name: str
    changes: Sequence[str]
    found_by: str


def read_mutants(room: str) -> dict[str, Mutant]:
    """The mutants of a room, by name."""
    rule, found = "", {}
    text = (_TESTS / room / "mutants.txt").read_text(encoding="utf-8")
    for heading, block in re.findall(r"^(\S.*)\n((?: .*\n)*)", text, re.MULTILINE):
        if heading.startswith("# "):
            rule = heading[2:]
            continue
        *changes, found_by = re.split(r"\n {4}(?! )", f"\n{block.rstrip()}")[1:]
        assert heading not in found, f"there are two mutants {heading!r}"
        found[heading] = Mutant(rule, heading, changes, found_by)
    return found


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """Meanwhile the functions do what the mutant does.

    Raises: AssertionError where a change does not find its place, or what it changes there exactly once.
    """
    trees: dict[str, ast.Module] = {}
    functions: dict[str, FunctionType] = {}
    tables: list[tuple[dict[str, Any], dict[str, Any]]] = []  # and what they were
    for change in mutant.changes:
        place, _, edit = change.partition(":")
        if "[" in place:
            tables.append(_change_table(place, edit))
            continue
        function = _function(place)
        functions[place] = function
        if function.__module__ not in trees:
            trees[function.__module__] = ast.parse(inspect.getsource(sys.modules[function.__module__]))
        _apply(edit, _defined(trees[function.__module__], function), place)
    codes = [
        (function, function.__code__, _code(trees[function.__module__], function))
        for function in functions.values()
    ]
    for function, _, changed in codes:
        function.__code__ = changed
    try:
        yield
    finally:
        for function, original, _ in codes:
            function.__code__ = original
        for table, rows in reversed(tables):
            table.update(rows)


def _change_table(place: str, edit: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Carry a change of a table out. Returns the table, and the rows that it had."""
    found = re.fullmatch(r"(.+)\.(\w+)\[(.+?)\](?:\[(.+)\]|\.(\w+))", place)
    assert found, f"{place} is no place in a table"
    module, name, state, event, attribute = found.groups()
    table = getattr(importlib.import_module(f"garlicfarm.{module}"), name)
    old, new = map(ast.literal_eval, map(str.strip, edit.split("=>")))
    row, rows = table[state], dict(table)
    following = row if isinstance(row, dict) else row.next
    present = getattr(row, attribute) if attribute else following.get(event)
    assert present == old, f"{place} is {present!r}"
    if event:
        new = {each: then for each, then in {**following, event: new}.items() if then is not None}
    table[state] = new if row is following else msgspec.structs.replace(row, **{attribute or "next": new})
    return table, rows


def _function(place: str) -> FunctionType:
    names = ["garlicfarm", *place.split(".")]
    found: Any = None
    for number, name in enumerate(names):
        try:
            found = importlib.import_module(".".join(names[: number + 1]))
        except ModuleNotFoundError:
            found = inspect.getattr_static(found, name, None)
    found = getattr(found, "fget", None) or inspect.unwrap(getattr(found, "__func__", found))
    assert isinstance(found, FunctionType), f"{place} is no function"
    return found


def _defined(tree: ast.AST, function: FunctionType) -> ast.AST:
    for name in function.__qualname__.split("."):
        (tree,) = (node for node in ast.iter_child_nodes(tree) if getattr(node, "name", None) == name)
    return tree


def _code(tree: ast.Module, function: FunctionType) -> CodeType:
    code = compile(ast.fix_missing_locations(tree), function.__code__.co_filename, "exec")
    for name in function.__qualname__.split("."):
        (code,) = (one for one in code.co_consts if isinstance(one, CodeType) and one.co_name == name)
    return code


def _apply(edit: str, tree: ast.AST, place: str) -> None:
    """Carry a change out in what its place names."""
    old, _, new = edit.partition(" =>")
    wanted: Sequence[ast.AST]
    replacement: Sequence[ast.AST]
    try:
        wanted, replacement = ([ast.parse(f"({text})", mode="eval").body] for text in (old, new))
    except SyntaxError:
        wanted, replacement = (ast.parse(re.sub(r"\n {8}", "\n", text).strip()).body for text in (old, new))
    found = _replace(tree, list(map(_dump, wanted)), replacement)
    assert found == 1, f"{place}: {old!r} occurs {found} times"


def _replace(tree: ast.AST, wanted: Sequence[str], replacement: Sequence[ast.AST]) -> int:
    """Replace nodes that follow each other, wherever they are. Returns how often they were there."""
    found = 0
    for parent in list(ast.walk(tree)):
        for field, value in ast.iter_fields(parent):
            nodes = value if isinstance(value, list) else [value]
            for at in reversed(range(len(nodes))):
                if list(map(_dump, nodes[at : at + len(wanted)])) == wanted:
                    nodes[at : at + len(wanted)] = replacement
                    found += 1
            setattr(parent, field, value if isinstance(value, list) else nodes[0])
    return found


def _dump(node: object) -> str:
    return ast.dump(node) if isinstance(node, ast.AST) else repr(node)


class _Failures:
    """How tests failed, as a plugin of pytest."""

    def __init__(self) -> None:
        self.found: list[BaseException] = []

    def pytest_exception_interact(self, call: pytest.CallInfo[None]) -> None:
        assert call.excinfo is not None
        error = call.excinfo.value
        while isinstance(error, BaseExceptionGroup):  # of the nursery that an async test runs in
            error = error.exceptions[0]
        self.found.append(error)


def main(room: str, name: str) -> int:
    """Run the test of a mutant."""
    mutant, failures = read_mutants(room)[name], _Failures()
    arguments = ["-q", "-x", "-p", "no:cacheprovider", "--no-header", str(_TESTS / room / mutant.found_by)]
    with planted(mutant):
        pytest.main(arguments, plugins=[failures])
    # By what it asserts: a mutant that only stumbles would be killed by any test.
    if not failures.found:
        return SURVIVED
    return 0 if isinstance(failures.found[0], AssertionError | pytest.fail.Exception) else STUMBLED


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
