"""The command line's base: exit codes, usage errors, and what stays unimported."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import click
import pytest
import trio

from garlicfarm import errors
from garlicfarm.cli import run
from garlicfarm.cli.exits import Exit, explain
from garlicfarm.cli.options import print_rows

HEAVY = ("trio", "httpx", "rich", "starlette", "hypercorn", "pyspark", "msgspec", "cryptography", "sqlite3")


def test_version_imports_nothing_heavy() -> None:
    program = (
        "import sys\nfrom garlicfarm.cli import run\nassert run(['--version']) == 0\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    version, loaded = result.stdout.splitlines()
    assert version.startswith("garlicfarm, version ")
    assert loaded == "[]"


def test_version_takes_little_cpu() -> None:
    def children_cpu_s() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    spent = []
    for _ in range(3):
        before = children_cpu_s()
        subprocess.run(
            [sys.executable, "-m", "garlicfarm", "--version"], check=True, stdout=subprocess.DEVNULL
        )
        spent.append(children_cpu_s() - before)
    assert min(spent) < 0.2


def test_help_names_every_command_and_imports_nothing_heavy() -> None:
    program = (
        "import sys\nfrom garlicfarm.cli import COMMANDS, run\nassert run(['--help']) == 0\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], *COMMANDS)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded, *commands = result.stdout.splitlines()[-1].split("] ")
    assert loaded == "["
    for command in commands[0].split():
        assert f"\n  {command} " in result.stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["nonsense"], "No such command 'nonsense'"),
        (["--nonsense"], "No such option"),
        (["node", "nonsense"], "No such command 'nonsense'"),
        (["node", "init", "--id", "0"], "Invalid value for '--id'"),
        (["node", "init", "--id", "2147483648"], "Invalid value for '--id'"),
        (["node", "init", "--application", "chat"], "Invalid value for '--application'"),
        (["node", "init", "--host", "a", "--endpoint", "ssl://a:1"], "--endpoint or --host, not both"),
        (["farm", "create", "--member", "1=ssl://a:1"], "Missing option '--out'"),
        (["farm", "create", "--out", "x"], "Missing option '--member'"),
        (["farm", "create", "--out", "x", "--member", "ssl://a:1"], "must be ID=ENDPOINT"),
        (
            ["farm", "create", "--out", "x", "--member", "1=ssl://a:1", "--member", "1=ssl://b:1"],
            "each id once",
        ),
        (["farm", "create", "--out", "x", "--member", "1=nowhere"], "nowhere"),
        (["transports", "-o", "yaml"], "Invalid value for '-o'"),
        (["user", "add"], "Missing argument 'NAME'"),
        (["user", "list"], "no configuration found"),
        (["config", "check", "--config", "absent.toml"], "there is no configuration file"),
    ],
)
def test_wrong_usage_exits_2_and_says_why(
    arguments: list[str],
    expected: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("GARLICFARM_CONFIG", raising=False)
    assert run(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert expected in output.err
    assert list(tmp_path.iterdir()) == []


def test_group_without_command_prints_help_and_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["node"]) == 2
    assert capsys.readouterr().err.startswith("Usage: garlicfarm node")


@pytest.mark.parametrize(
    ("error", "code", "lines"),
    [
        (errors.ConfigError(["a", "b"]), 2, ["error: a", "error: b"]),
        (errors.PluginError("no plugin 'x'"), 2, ["error: no plugin 'x'"]),
        (errors.UnreachableError("nobody answers"), 3, ["error: nobody answers"]),
        (errors.TransportError("port is taken", "stop it"), 1, ["error: port is taken; stop it"]),
        (errors.AuthError("wrong password"), 4, ["error: wrong password"]),
        (errors.NotLeader(), 5, ["error: no leader is known"]),
        (errors.NoQuorum("no quorum"), 5, ["error: no quorum"]),
        (errors.StorageMissing("no store"), 7, ["error: no store"]),
        (errors.StorageInUse("in use"), 7, ["error: in use"]),
        (errors.EntryRefused("id", "missing"), 1, ["error: id: missing"]),
        (errors.OutcomeUnknown(), 1, ["error: OutcomeUnknown"]),
        (trio.TooSlowError(), 124, ["error: deadline passed"]),
        (TimeoutError("no leader in 5 s"), 124, ["error: no leader in 5 s"]),
        (KeyboardInterrupt(), 130, ["interrupted"]),
        (click.Abort(), 130, ["interrupted"]),
        (click.UsageError("no"), 2, ["error: no"]),
    ],
)
def test_explain_error_has_its_code(error: BaseException, code: int, lines: list[str]) -> None:
    assert explain(error) == (code, lines)


def test_explain_group_finds_our_error_and_the_interrupt_first() -> None:
    ours = errors.StorageDamaged("bad")
    assert explain(ExceptionGroup("", [OSError(), ExceptionGroup("", [ours])])) == (7, ["error: bad"])
    assert explain(BaseExceptionGroup("", [ours, KeyboardInterrupt()])) == (130, ["interrupted"])


def test_explain_defect_is_left_alone() -> None:
    assert explain(ZeroDivisionError()) is None
    assert explain(ExceptionGroup("", [ValueError(), KeyError()])) is None


def test_every_error_of_ours_has_a_code() -> None:
    def family(kind: type[Exception]) -> list[type[Exception]]:
        return [kind, *(below for child in kind.__subclasses__() for below in family(child))]

    for kind in family(errors.GarlicFarmError):
        explained = explain(kind.__new__(kind)) if kind is not errors.ConfigError else explain(kind([""]))
        assert explained is not None
        assert explained[0] != Exit.OK


def test_closed_stdout_ends_without_traceback() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    result = subprocess.run(
        [sys.executable, "-m", "garlicfarm", "transports"],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)
    assert result.returncode == 1
    assert result.stderr == ""


def test_print_rows_forms(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"id": 1, "last_seen": None}, {"id": 12, "last_seen": "a\x1b[2J"}]
    print_rows("table", "garlicfarm.x/1", rows)
    assert capsys.readouterr().out == 'ID  LAST SEEN\n1   -\n12  "a\\u001b[2J"\n'
    print_rows("jsonl", "garlicfarm.x/1", rows)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == rows
    print_rows("json", "garlicfarm.x/1", rows)
    assert json.loads(capsys.readouterr().out) == {"schema": "garlicfarm.x/1", "rows": rows}


def test_transports_lists_name_distribution_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["transports", "-o", "json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["schema"] == "garlicfarm.transports/1"
    (ssl,) = [row for row in body["rows"] if row["name"] == "ssl"]
    assert ssl["distribution"] == "garlicfarm"
    assert set(ssl) == {"name", "distribution", "version"}


def test_transports_loads_no_plugin() -> None:
    program = (
        "import sys\nfrom garlicfarm.cli import run\nassert run(['transports']) == 0\n"
        "print([name for name in ('trio', 'httpx', 'garlicfarm_transport_ssl') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"
