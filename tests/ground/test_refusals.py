"""The reasons to refuse: their words, which programs see, and their numbers, which the wire carries."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import garlicfarm
from garlicfarm.refusals import Refusal

PACKAGE = Path(garlicfarm.__file__).parent

OTHER_MEANINGS = {
    ("admin/problems.py", "not-leader"),  # a problem's type
    ("admin/problems.py", "disk-hangs"),
    ("admin/problems.py", "entry-refused"),
    ("admin/health.py", "refused"),  # what a publisher refused
    ("cli/health.py", "refused"),
    ("cli/log_batch.py", "refused"),  # what became of a line
    ("node/replica.py", "disk-hangs"),  # an event of the log
    ("admin/problems.py", "disk-full"),  # a kind of problem
    ("node/space_watch.py", "disk-full"),  # an event of the log
    ("node/incoming_requests.py", "refused"),  # a label of a metric
    ("node/publisher/application.py", "refused"),  # what a publisher refused
    ("node/publisher/member_task.py", "refused"),
    ("publishing/member_core.py", "refused"),  # an event of a state machine
    ("publishing/publisher_core.py", "refused"),
    ("publishing/status_turns.py", "refused"),
}


@pytest.mark.parametrize("reason", Refusal)
def test_reason_is_one_word(reason: Refusal) -> None:
    assert re.fullmatch("[a-z]+(-[a-z]+)*", reason)


@pytest.mark.parametrize(
    ("number", "of_client_request", "of_change"),
    [
        (0, "refused", "refused"),
        (1, "entry-too-large", "refused"),
        (2, "entry-refused", "no-such-member"),
        (3, "too-much-uncommitted", "refused"),
        (4, "leadership-in-transfer", "leadership-in-transfer"),
        (5, "role-missing", "refused"),
        (6, "refused", "id-used-before"),
        (7, "refused", "another-change-in-flight"),
        (8, "refused", "cannot-be-dialled"),
        (9, "refused", "endpoint-of-another-member"),
        (10, "refused", "too-few-members-heard"),
        (12, "disk-full", "refused"),
        (27, "refused", "refused"),
    ],
)
def test_number_is_read_as_the_reason_that_it_is_for_its_request(
    number: int, of_client_request: str, of_change: str
) -> None:
    assert Refusal.of_client_request(number) == of_client_request
    assert Refusal.of_change(number) == of_change


def test_reason_is_written_as_its_word() -> None:
    assert f"{Refusal.NOT_LEADER}" == str(Refusal.NOT_LEADER) == "not-leader"
    assert Refusal("too-few-members-heard") is Refusal.TOO_FEW_MEMBERS_HEARD


def words_in(source: str) -> set[str]:
    """The words of reasons that stand in the source as literals."""
    literals = {node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)}
    return {reason.value for reason in Refusal} & literals


def test_no_module_spells_a_reason_as_a_literal() -> None:
    found = {
        (path.relative_to(PACKAGE).as_posix(), word)
        for path in PACKAGE.rglob("*.py")
        if path != PACKAGE / "refusals.py"
        for word in words_in(path.read_text(encoding="utf-8"))
    }
    assert found == OTHER_MEANINGS
