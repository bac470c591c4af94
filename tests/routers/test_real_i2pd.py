"""Real i2pd routers, in a network namespace of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio

from garlicfarm.errors import ConfigError
from garlicfarm.lab import i2pd
from garlicfarm.lab.i2pd_files import RouterPlan
from tests.running import until

HERE = Path(__file__).parent
NAMESPACE = ["unshare", "--map-root-user", "--net"]
SESSION = [*NAMESPACE, sys.executable, str(HERE / "real_i2pd_session.py")]


@pytest.mark.i2pd
@pytest.mark.netns
@pytest.mark.slow
def test_three_real_routers_tell_their_true_figures(tmp_path: Path) -> None:
    own = f"--basetemp={tmp_path / 'checks'}"  # not beside those of others, which each run tidies up
    checks = ["-m", "pytest", "-q", "-p", "no:cacheprovider", own, str(HERE / "real_i2pd_checks.py")]
    ended = subprocess.run(
        [*SESSION, str(tmp_path), "3", *checks], capture_output=True, text=True, timeout=280, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert " passed" in ended.stdout
    assert " skipped" not in ended.stdout
    assert running_below(tmp_path) == []


@pytest.mark.i2pd
@pytest.mark.netns
def test_routers_end_with_the_process_that_started_them_even_if_killed(tmp_path: Path) -> None:
    tell = ["-c", "import os, sys; print(os.environ['I2PD_ROUTERS'], flush=True); sys.stdin.read()"]
    with subprocess.Popen(
        [*SESSION, str(tmp_path), "1", *tell], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as session:
        assert session.stdout is not None
        (router,) = json.loads(session.stdout.readline())
        assert running_below(tmp_path) == [router["pid"]]
        session.send_signal(signal.SIGKILL)
    until(lambda: not running_below(tmp_path))


CRASHED = """
import os, signal, sys, trio
from pathlib import Path
from garlicfarm.lab.i2pd import i2pd_network
from garlicfarm.lab.i2pd_files import RouterPlan

async def main():
    async with i2pd_network(Path(sys.argv[1]), [RouterPlan()]) as network:
        os.kill(network[0].pid, signal.SIGSEGV)
        while network.is_running(1):
            await trio.sleep(0.01)
        raise ValueError("not as expected")

trio.run(main)
"""


@pytest.mark.i2pd
@pytest.mark.netns
def test_error_says_which_routers_had_ended(tmp_path: Path) -> None:
    command = [*NAMESPACE, sys.executable, "-c", CRASHED, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert "ValueError: not as expected\nrouter 1 had ended with status -11\n" in ended.stderr


def running_below(directory: Path) -> list[int]:
    """The processes whose command line names ``directory``, ours and zombies excepted."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if command.startswith(b"i2pd\0") and os.fsencode(directory) in command:
                found.append(int(entry.name))
    return found


@pytest.mark.i2pd
@pytest.mark.netns
def test_reexec_leads_into_a_private_network() -> None:
    inner = "from garlicfarm.lab.i2pd import in_private_network; print(in_private_network())"
    outer = (
        "import sys; from garlicfarm.lab.i2pd import reexec_in_private_network;"
        f"reexec_in_private_network([sys.executable, '-c', {inner!r}])"
    )
    ended = subprocess.run([sys.executable, "-c", outer], capture_output=True, text=True, check=True)
    assert ended.stdout == "True\n"


async def test_network_outside_a_private_one_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(i2pd, "check_programs", lambda: None)
    monkeypatch.setattr("socket.if_nameindex", lambda: [(1, "lo"), (2, "eth0")])
    started: list[object] = []
    monkeypatch.setattr("subprocess.run", lambda *arguments, **options: started.append(arguments))
    monkeypatch.setattr("subprocess.Popen", lambda *arguments, **options: started.append(arguments))
    with pytest.raises(ConfigError, match="unshare -rn"):
        async with i2pd.i2pd_network(tmp_path, [RouterPlan()]):
            pytest.fail("it started")
    assert started == []


async def test_wait_for_a_router_that_takes_its_time_holds_up_no_other_task(tmp_path, monkeypatch):
    others = threading.Event()

    async def other() -> None:
        others.set()

    def ready(plan: RouterPlan, data_dir: Path) -> bool:
        assert others.wait(240), "held up"
        (data_dir / "router.info").write_bytes(b"info")
        return True

    monkeypatch.setattr(RouterPlan, "has_keys", ready)
    router = SimpleNamespace(poll=lambda: None, send_signal=lambda number: None, wait=lambda timeout: 0)
    monkeypatch.setattr("subprocess.Popen", lambda *arguments, **options: router)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        await i2pd.make_i2pd(tmp_path, ["127.0.0.1"], [RouterPlan()])


def test_missing_programs_are_named_with_their_packages(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"i2pd.*apt-get install i2pd iproute2 util-linux"):
        i2pd.check_programs()
