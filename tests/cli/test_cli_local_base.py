"""The command line's base: exit codes, usage errors, and what stays unimported."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import click
import pytest
import trio

from garlicfarm import errors
from garlicfarm.cli.exits import Exit, explain
from garlicfarm.cli.options import print_rows
from garlicfarm.refusals import Refusal
from tests.cli.served import Cli

HEAVY = ("trio", "httpx", "rich", "starlette", "h11", "pyspark", "msgspec", "cryptography", "sqlite3")


def test_help_names_every_command_and_imports_nothing_heavy() -> None:
    program = (
        "import sys\nimport click\nfrom garlicfarm.cli import cli, run\nassert run(['--help']) == 0\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], *cli.list_commands(click.Context(cli)))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded, *commands = result.stdout.splitlines()[-1].split("] ")
    assert loaded == "["
    for command in commands[0].split():
        assert f"\n  {command} " in result.stdout


@pytest.mark.parametrize("group", [[], ["farm"], ["user"]])
def test_help_of_a_group_cuts_no_sentence(group: list[str], cli: Cli) -> None:
    lines = cli(*group, "--help").out.partition("--help ")[2].splitlines()
    assert lines
    assert not [line for line in lines if line.endswith("...")]


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
        (["plugins", "-o", "yaml"], "Invalid value for '-o'"),
        (["status", "--timeout", "0"], "Invalid value for '--timeout': '0' must be seconds, or a number"),
        (["status", "--timeout", "nan"], "Invalid value for '--timeout': 'nan' must be seconds, or a number"),
        (["status", "--timeout", "inf"], "Invalid value for '--timeout': 'inf' must be seconds, or a number"),
        (["user", "add"], "Missing argument 'NAME'"),
        (["user", "list"], "no configuration found"),
        (["config", "check", "--config", "absent.toml"], "there is no configuration file"),
    ],
)
def test_wrong_usage_exits_2_and_says_why(arguments, expected, cli, here):
    output = cli(*arguments, exits=2)
    assert output.out == ""
    assert expected in output.err
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "suggested"),
    [
        (["stauts"], "'status'"),
        (["member", "remvoe"], "'remove'"),
        (["node", "strat"], "'start'"),
        (["user", "lst"], "'list'"),
        (["log", "psot"], "'post'"),
        (["leader", "stpdown"], "'stepdown'"),
        (["config", "exprot"], "'export'"),
        (["--verion"], "--version"),
        (["status", "--wacth"], "--watch"),
        (["status", "--json"], "'-o json'"),
        (["member", "remove", "3", "--forc"], "--force"),
    ],
)
def test_misspelt_command_or_option_is_answered_with_the_one_that_was_meant(arguments, suggested, cli):
    said = cli(*arguments, exits=2).err
    assert "Did you mean" in said
    assert suggested in said


def test_group_without_command_prints_help_and_exits_2(cli: Cli) -> None:
    assert cli("node", exits=2).err.startswith("Usage: garlicfarm node")


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
        (errors.DiskHangs("no answer for 6 s"), 7, ["error: no answer for 6 s"]),
        (errors.ProposalDropped(Refusal.REFUSED), 1, ["error: proposal refused: refused"]),
        (errors.EntryRefused("id", "missing"), 1, ["error: the entry is refused: id: missing"]),
        (errors.OutcomeUnknown(), 1, ["error: OutcomeUnknown"]),
        (trio.TooSlowError(), 124, ["error: deadline passed"]),
        (TimeoutError("no leader in 5 s"), 124, ["error: no leader in 5 s"]),
        (
            PermissionError(13, "Permission denied", "/x"),
            1,
            ["error: /x: Permission denied; is this the node's user?"],
        ),
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
        explained = explain(kind([""]) if issubclass(kind, errors.ConfigError) else kind.__new__(kind))
        assert explained is not None
        assert explained[0] != Exit.OK


def test_closed_stdout_ends_without_traceback() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    result = subprocess.run(
        [sys.executable, "-m", "garlicfarm", "plugins"],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)
    assert result.returncode == 1
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("refused", "taken", "allowed"),
    [
        ("interval=999ms", "interval=1s", "interval must be 1s to 1h"),
        ("interval=3600001ms", "interval=1h", "interval must be 1s to 1h"),
        ("R=2", "R=3", "R must be 3 to 1000"),
        ("lease=999ms", "lease=1s", "lease must be 1s to 10m"),
        ("lease=601s", "lease=600", "lease must be 1s to 10m"),
        ("R=1001", "R=1000", "R must be 3 to 1000"),
        ("margin=1000001", "margin=1000000", "margin must be 0 to 1000000"),
        ("lifetime=9m", "lifetime=10m", "lifetime must be 10m to 18h"),
        ("lifetime=19h", "lifetime=18h", "lifetime must be 10m to 18h"),
    ],
)
def test_farm_set_names_what_is_allowed(refused, taken, allowed, tmp_path, cli):
    nobody = ["--config", str(tmp_path / "absent.toml")]
    assert cli("farm", "set", refused, *nobody, exits=2).err.endswith(f"\nerror: {allowed}\n")
    assert "there is no configuration file" in cli("farm", "set", taken, *nobody, exits=2).err


@pytest.mark.parametrize("name", ["abc", "-", "abc.b32.i2p", "a" * 44])
def test_hash_that_is_none_is_told_what_one_is(name: str, cli: Cli) -> None:
    assert (
        "error: HASH must be 44 characters of I2P base64, or 52 of base32"
        in cli("farm", "exclude", "--", name, exits=2).err
    )


def test_full_stdout_ends_with_a_sentence() -> None:
    command = [sys.executable, "-m", "garlicfarm", "plugins"]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr == "error: the disk that the output goes to is full\n"


@pytest.mark.parametrize(
    ("closed", "arguments", "code"),
    [
        ("<&-", ["user", "add", "ada", "--config", "absent.toml"], 2),
        ("<&-", ["log", "post", "--config", "absent.toml"], 2),
        (">&-", ["plugins"], 0),
        ("2>&-", ["nonsense"], 2),
    ],
)
def test_closed_stream_is_as_the_empty_one(closed: str, arguments: list[str], code: int) -> None:
    command = f'exec "$@" {closed}'
    ended = subprocess.run(
        ["sh", "-c", command, "sh", sys.executable, "-m", "garlicfarm", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == code
    assert "Traceback" not in ended.stderr


def test_print_rows_forms(capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[dict[str, object]] = [{"id": 1, "last_seen": None}, {"id": 12, "last_seen": "a\x1b[2J"}]
    print_rows("table", "garlicfarm.x/1", rows)
    assert capsys.readouterr().out == "ID  LAST SEEN\n1   -\n12  a\\u001b[2J\n"
    print_rows("jsonl", "garlicfarm.x/1", rows)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == rows
    print_rows("json", "garlicfarm.x/1", rows)
    assert json.loads(capsys.readouterr().out) == {"schema": "garlicfarm.x/1", "rows": rows}
