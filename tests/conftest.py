"""What all tests share: what some of them need of the machine, and which of those have to run."""

from __future__ import annotations

import gc
import logging
import math
import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Generator, Iterator
from functools import cache, partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from garlicfarm.cli import sign_of_life
from garlicfarm.errors import ConfigError
from garlicfarm.lab import i2pd, tun_network
from tests.crash import powerloss
from tests.java import java_router
from tests.upgrade import baseline as release
from tests.upgrade.programs import Program

NAMESPACE = ("unshare", "--map-root-user", "--net")

# How fast a machine draws examples says nothing of the product: speed is the benchmarks' business.
settings.register_profile("garlicfarm", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("garlicfarm")

# Nor does a busy machine decide what a test that compares stderr finds there.
sign_of_life.FIRST_S = math.inf

# A shell ignores SIGINT in what it runs in the background, and some supervisors ignore SIGTERM. The programs
# under test would inherit that, and not end.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGTERM, signal.SIG_DFL)
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _ignored() -> set[signal.Signals]:
    return {each for each in ENDING if signal.getsignal(each) is signal.SIG_IGN}


IGNORED = _ignored()


def _program(*command: str) -> str | None:
    """Why ``command`` does not run here; None if it does."""
    if shutil.which(command[0]) is None:
        return f"{command[0]} is not installed: as root, make debs"
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240)
    *_, cause = ["", *done.stderr.splitlines()]
    return f"{' '.join(command)}: {cause}" if done.returncode else None


def _i2pd() -> str | None:
    try:
        i2pd.check_programs()
    except ConfigError as error:
        return str(error)
    return None


def i2pd_of_suite(suite: str) -> Path:
    """Where the i2pd of a later Debian suite is, for tests with the suite's name as their marker."""
    return Path(__file__).parents[1] / ".i2pd" / suite / "i2pd"


def _i2pd_of_suite(suite: str) -> str | None:
    program = i2pd_of_suite(suite)
    return None if program.exists() else f"there is no {program}: make i2pd SUITE={suite}"


def _ipv6() -> str | None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        return f"this machine has no ::1: {error}"
    return None


def _root() -> str | None:
    return None if os.geteuid() == 0 else "this is not root, who alone can give files to other users"


def _cdafka() -> str | None:
    directory = os.environ.get("DAFKA_C")
    if not directory:
        return "DAFKA_C names no directory with programs of the C implementation"
    programs = ("towerd", "stored", "console_producer", "console_consumer")
    missing = [path for each in programs if not (path := Path(directory, f"dafka_{each}")).is_file()]
    return f"there is no {missing[0]}" if missing else None


def _debian() -> str | None:
    if os.geteuid() != 0:
        return "only root can make a Debian with devices and users of its own"
    missing = [
        each for each in ("mmdebstrap", "ssh-keygen", "ssh", "scp", "ip") if shutil.which(each) is None
    ]
    return f"{', '.join(missing)} not installed: as root, make debs" if missing else None


NEEDS: dict[str, Callable[[], str | None]] = {
    "browser": cache(partial(_program, "chromium", "--version")),
    "cdafka": cache(_cdafka),
    "curl": cache(partial(_program, "curl", "--version")),
    "debian": cache(_debian),
    "fish": cache(partial(_program, "fish", "--version")),
    "forky": cache(partial(_i2pd_of_suite, "forky")),
    "fuse": cache(powerloss.why_unavailable),
    "history": cache(release.why_unavailable),
    "i2pd": cache(_i2pd),
    "ipv6": cache(_ipv6),
    "javai2p": cache(java_router.why_unavailable),
    "netns": cache(partial(_program, *NAMESPACE, "true")),
    "nginx": cache(partial(_program, "nginx", "-v")),
    "openssl": cache(partial(_program, "openssl", "version")),
    "prometheus": cache(partial(_program, "promtool", "--version")),
    "root": _root,
    "strace": cache(partial(_program, "strace", "-o", "/dev/null", "true")),
    "systemd": cache(partial(_program, "systemd-analyze", "--version")),
    "trixie": cache(partial(_i2pd_of_suite, "trixie")),
    "tun": cache(partial(tun_network.why_unavailable, NAMESPACE)),
    "zsh": cache(partial(_program, "zsh", "--version")),
}
"""Marker → why its tests cannot run here, None if they can. No other test asks what a machine has; only
those with the marker ``spark`` skip by themselves, since without Spark they cannot even be imported."""


@pytest.fixture(scope="session")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """0.2.0, for tests with the marker ``history``."""
    return release.install(release.baseline_wheel(), tmp_path_factory.mktemp("baseline") / "program")


@pytest.fixture
def logging_restored() -> Iterator[None]:
    """`configured`, as `node start` uses it, sets up the log of its process, which here is ours."""
    root, ours = logging.getLogger(), logging.getLogger("garlicfarm")
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()  # or they would be closed
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    ours.setLevel(logging.NOTSET)


@pytest.fixture
def signals_restored() -> Iterator[None]:
    """A command that was told to end ignores further signals, as its process is about to; here it goes on."""
    before = {each: signal.getsignal(each) for each in ENDING}
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    yield
    if left := _ignored() - IGNORED:
        for each in left:
            signal.signal(each, signal.SIG_DFL)
        pytest.fail(f"{item.nodeid} leaves {left} ignored, also by all programs that later tests start")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers():
        reason = NEEDS[marker.name]() if marker.name in NEEDS else None
        if reason is not None:
            pytest.skip(f"{marker.name}: {reason}")


COLLECTED = pytest.StashKey[list[pytest.Item]]()
"""In the configuration's stash: all tests that were collected, before any expression of markers chose."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    config.stash[COLLECTED] = items[:]


def pytest_collection_finish() -> None:
    """Thousands of collected tests live until the end: no collection of garbage has to visit them again."""
    gc.collect()
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--must-run",
        default="",
        metavar="MARKERS",
        help="fail where a test with one of these markers (blanks between them) is skipped, or none ran",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(MustRun(set(config.getoption("--must-run").split())))


FETCHED = {"forky", "trixie"}
"""Markers of programs that are fetched where they can be: their tests must run only where those are named."""


class MustRun:
    """Makes a skipped test with one of ``markers`` a failed one; of each marker some test has to run.

    With pytest-xdist the workers write the reports, and the process that started them counts.
    """

    def __init__(self, markers: set[str]) -> None:
        self._markers = markers
        self._ran: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        its = {marker.name for marker in item.iter_markers()}
        named = self._markers & its
        vars(report)["must_run"] = sorted(named)
        if report.skipped and not (its & FETCHED) - named:
            _fail(report, named)
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self._ran.update(vars(report)["must_run"])

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        report = yield
        if report.skipped:  # a module that was not imported has no markers yet, but a text
            named = set(re.findall(r"mark\.(\w+)", collector.path.read_text(encoding="utf-8")))
            if "spark" in self._markers or "spark" not in named:  # else a run with Spark requires it
                _fail(report, named & self._markers)
        return report

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        is_worker = hasattr(session.config, "workerinput")
        if self._markers - self._ran and exitstatus == pytest.ExitCode.OK and not is_worker:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for marker in sorted(self._markers - self._ran):
            terminalreporter.line(f"FAILED: no test with the marker {marker} ran, and one has to", red=True)


def _fail(report: pytest.TestReport | pytest.CollectReport, named: set[str]) -> None:
    if named:
        *_, reason = report.longrepr if isinstance(report.longrepr, tuple) else (report.longrepr,)
        report.outcome = "failed"
        report.longrepr = f"must run here ({', '.join(sorted(named))}): {reason}"
