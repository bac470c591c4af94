"""What keeps a release from being made."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import release_check
from tools.release_check import changelog_problems, found, tree_problems


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("# Changelog\n\n## 1.2.0 (2030-01-31)\n\n## 1.1.0\n", None),
        ("# Changelog\n\n## 1.2.0\n", "'1.2.0'; a release has its date there: ## 1.2.0 (YYYY-MM-DD)"),
        ("# Changelog\n\n## 1.2.0 (soon)\n", "a release has its date there"),
        ("# Changelog\n\n## 1.1.0 (2030-01-31)\n", "and garlicfarm/_version.py says 1.2.0"),
        ("# Changelog\n", "CHANGELOG.md begins with ''"),
    ],
)
def test_changelog_has_to_begin_with_the_version_and_its_date(text: str, problem: str | None) -> None:
    problems = list(changelog_problems("1.2.0", text))
    assert len(problems) == (problem is not None)
    assert all(problem in each for each in problems)


def test_tree_with_changes_is_named() -> None:
    assert list(tree_problems("")) == []
    assert list(tree_problems(" M README.md\n?? new\n")) == [
        "the tree has changes that are not committed:  M README.md, ?? new"
    ]


def test_pythons_that_do_not_run_are_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, code in (("python3.98", 0), ("python3.99", 1)):
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {code}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert found(["python3.97", "python3.98", "python3.99"]) == ["python3.98"]


def test_command_that_fails_says_what_it_said_last(tmp_path: Path) -> None:
    with pytest.raises(release_check.Failed, match=r"^sh -c echo why >&2; exit 3 … ended with 3: why$"):
        release_check.run("sh", "-c", "echo why >&2; exit 3", cwd=tmp_path)
