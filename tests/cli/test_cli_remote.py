"""`status`, `log post` and `log tail` against a served node, through the command line."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from garlicfarm.cli import run
from garlicfarm.client import from_config
from garlicfarm.credentials.certificates import make_certificate
from garlicfarm.credentials.private_files import write_private_file
from garlicfarm.errors import AuthError, ConfigError, NoQuorum, NotLeader, OutcomeUnknown
from garlicfarm.wire.messages import ValueType
from tests.admin.fake_node import PASSWORDS
from tests.cli.served import Served, serving
from tests.running import Terminal


def test_status_off_a_terminal_is_a_plain_table_of_all_members(served, cli):
    head, columns, *rows = cli("status").out.splitlines()
    assert head == "farm farm: leader 1, publisher 1, term 3, commit 0, quorum, can lose 0 more"
    assert columns.split()[:4] == ["ID", "ENDPOINT", "ROLE", "PUBLISHER"]
    assert [row.split()[:4] for row in rows] == [
        ["1", "ssl://127.0.0.1:27151", "leader", "*"],
        ["2", "ssl://127.0.0.1:27152", "follower", "-"],
        ["3", "ssl://127.0.0.1:27153", "unreachable", "-"],
    ]
    assert rows[2].endswith("connection refused")
    assert "2.1 ms" in rows[1]


def test_status_off_a_terminal_says_what_its_publishers_do(served, cli):
    publisher = {"plugin": "i2cp", "state": "not ready", "since_ms": None, "until_ms": None}
    served.say(publishers=[publisher | {"problems": ["\x1bno"]}])
    assert cli("status").out.splitlines()[-1] == "node 1, publisher i2cp: not ready; \\u001bno"


def test_farm_show_of_the_application_log_says_that_there_is_nothing_to_rank(served, cli, monkeypatch):
    body = {"index": 5, "publisher": None, "members": []}
    monkeypatch.setattr(served.node.farm, "ranking", lambda *, statuses: body)
    assert cli("farm", "show").out == "index 5: a farm of the application log has no statistics\n"
    told = json.loads(cli("farm", "show", "-o", "json").out)
    assert told.items() >= {"schema": "garlicfarm.ranking/1", **body}.items()
    assert cli("farm", "show", "-o", "jsonl").out == ""


@pytest.mark.parametrize("output", ["json", "jsonl"])
def test_status_as_json_is_the_nodes_own_body(served, cli, output):
    out = cli("status", "-o", output).out
    assert json.loads(out) == served.node.farm.status()
    assert (out.count("\n") == 1) == (output == "jsonl")


@pytest.mark.parametrize("colour", [True, False])
def test_status_watched_on_a_terminal_is_drawn_until_ctrl_c(spawn, monkeypatch, colour):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    if not colour:
        monkeypatch.setenv("NO_COLOR", "1")
    with Terminal() as terminal:
        process = spawn("status", "--watch", stdout=terminal.theirs)
        terminal.close_theirs()
        drawn = b""
        while drawn.count(b"unreachable") < 2:
            drawn += terminal.read()
        process.send_signal(signal.SIGINT)
        assert process.wait(240) == 130
    assert (b"\x1b[1;32m" in drawn) == colour


def test_status_watched_off_a_terminal_is_one_line_each_time(spawn):
    process = spawn("status", "--watch", "-o", "jsonl")
    assert process.stdout is not None
    for _ in range(2):
        assert json.loads(process.stdout.readline())["schema"] == "garlicfarm.status/1"


def test_log_post_of_a_file_or_stdin_prints_the_index(served, spawn, tmp_path, cli):
    (tmp_path / "entry").write_bytes(b"from a file \xff")
    assert cli("log", "post", "entry").out == "1\n"
    assert json.loads(cli("log", "post", "entry", "-o", "json").out) == {
        "schema": "garlicfarm.log-post/1",
        "index": 2,
        "term": 3,
    }
    process = spawn("log", "post", stdin=subprocess.PIPE)
    assert process.communicate(b"from stdin", timeout=240) == (b"3\n", b"")
    values = [entry.value for entry in served.node.farm.log]
    assert values == [b"from a file \xff", b"from a file \xff", b"from stdin"]
    assert served.node.farm.posted_by == ["local"] * 3


def test_log_post_of_nothing_is_a_wrong_use_and_posts_nothing(served, spawn, tmp_path, cli):
    (tmp_path / "entry").touch()
    assert "entry is empty; an entry has one byte or more" in cli("log", "post", "entry", exits=2).err
    process = spawn("log", "post", stdin=subprocess.DEVNULL)
    out, err = process.communicate(timeout=240)
    assert (process.returncode, out) == (2, b"")
    assert b"error: stdin is empty" in err
    assert served.node.farm.log == []


def test_log_post_in_batches_says_what_became_of_each_line(served, tmp_path, capfd):
    (tmp_path / "lines").write_bytes(b"a\n\nrefuse\x1b\n" + bytes((1 << 20) + 1) + b"\n\xffz")
    assert run(["log", "post", "--batch", "1024", "lines"]) == 1
    told = capfd.readouterr()
    assert told.out.splitlines() == [
        "line 1: index 1, term 3",
        "line 2: refused: it is empty",
        "line 3: refused: $.date: absent",
        "line 4: refused: larger than 1048576 bytes",
        "line 5: index 2, term 3",
    ]
    assert told.err == "5 lines: 2 committed, 3 refused\n"
    assert [entry.value for entry in served.node.farm.log] == [b"a", b"\xffz"]
    (tmp_path / "lines").write_bytes(b"b\nc\n")
    assert run(["log", "post", "--batch", "1024", "lines", "-o", "jsonl"]) == 0
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert rows == [
        {"line": 1, "outcome": "committed", "index": 3, "term": 3},
        {"line": 2, "outcome": "committed", "index": 4, "term": 3},
    ]


def test_log_post_in_batches_has_no_more_lines_on_their_way_than_it_is_told(served, tmp_path):
    (tmp_path / "lines").write_bytes(b"".join(b"%d\n" % number for number in range(100)))
    assert run(["log", "post", "--batch", "8", "lines"]) == 0
    assert served.node.farm.batches == [8] * 12 + [4]
    assert [entry.value for entry in served.node.farm.log] == [b"%d" % number for number in range(100)]


@pytest.mark.parametrize(
    ("error", "code", "outcome"),
    [
        (NoQuorum("no majority"), 5, "not appended"),
        (OutcomeUnknown("stepped down"), 1, "unknown"),
        (RuntimeError("a defect"), 1, "unknown"),
    ],
)
def test_log_post_in_batches_ends_at_an_error_and_sends_no_later_line(
    served, tmp_path, capfd, error, code, outcome
):
    served.node.farm.post_error = error
    (tmp_path / "lines").write_bytes(b"a\nb\n\nc\nd\n")
    assert run(["log", "post", "--batch", "3", "lines", "-o", "jsonl"]) == code
    told = capfd.readouterr()
    rows = [json.loads(line) for line in told.out.splitlines()]
    assert [row["outcome"] for row in rows] == [outcome, outcome, "refused"]
    assert told.err.startswith(f"3 lines: 1 refused, 2 {outcome}; no line after line 3 was sent\nerror: ")


def test_log_post_in_batches_waits_for_no_second_line(served, spawn):
    process = spawn("log", "post", "--batch", "100", stdin=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    for number in range(1, 4):
        process.stdin.write(b"entry\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"line %d: index %d, term 3\n" % (number, number)
    process.send_signal(signal.SIGINT)
    assert process.wait(240) == 130
    assert process.stderr is not None
    assert process.stderr.read().splitlines() == [
        b"3 lines: 3 committed; no line after line 3 was sent",
        b"interrupted",
    ]


def test_log_post_in_batches_ended_by_ctrl_c_says_which_lines_are_unknown(served, spawn):
    process = spawn("log", "post", "--batch", "2", stdin=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"a\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"line 1: index 1, term 3\n"
    served.node.farm.post_blocks = True
    process.stdin.write(b"b\nc\nd\ne\n")
    process.stdin.flush()
    while not served.node.farm.batches:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 130
    assert out.splitlines() == [
        b"line 2: unknown: interrupted before the answer",
        b"line 3: unknown: interrupted before the answer",
    ]
    assert err.splitlines() == [
        b"3 lines: 1 committed, 2 unknown; no line after line 3 was sent",
        b"interrupted",
    ]


def test_log_post_in_batches_has_no_outcomes_in_one_object(served, cli):
    assert (
        "choose -o table or -o jsonl"
        in cli("log", "post", "--batch", "8", "garlicfarm.toml", "-o", "json", exits=2).err
    )
    assert served.node.farm.log == []


def test_log_tail_prints_what_is_held_as_json_lines(served, capfdbinary):
    for number in range(5):
        served.commit(b"\xff" if number == 3 else b"entry %d" % number)
    assert run(["log", "tail", "--after", "2"]) == 0
    lines = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    assert lines == [
        {"index": 3, "term": 3, "type": "application", "value": "entry 2"},
        {"index": 4, "term": 3, "type": "application", "value_base64": "/w=="},
        {"index": 5, "term": 3, "type": "application", "value": "entry 4"},
    ]
    served.node.farm.compact(4)
    assert run(["log", "tail"]) == 0
    assert [json.loads(line)["index"] for line in capfdbinary.readouterr().out.splitlines()] == [4, 5]
    assert run(["log", "tail", "--after", "1"]) == 1
    assert b"the log starts at index 4" in capfdbinary.readouterr().err


def test_log_tail_that_is_linearizable_prints_what_the_leader_confirms_or_nothing(served, capfdbinary):
    served.commit(b"entry")
    assert run(["log", "tail", "--linearizable"]) == 0
    lines = [json.loads(line)["value"] for line in capfdbinary.readouterr().out.splitlines()]
    assert lines == ["entry", "confirmed 1"]
    served.node.farm.confirm_error = NotLeader(2, "ssl://b.example:1")
    assert run(["log", "tail", "--linearizable"]) == 5
    told = capfdbinary.readouterr()
    assert (told.out, b"the leader is member 2" in told.err) == (b"", True)


@pytest.mark.parametrize("options", [[], ["--all"]])
def test_log_tail_followed_shows_each_entry_and_ends_with_ctrl_c(served, spawn, options):
    process = spawn("log", "tail", "-f", *options)
    assert process.stdout is not None
    for number in range(3):
        served.commit(b"Configuration", ValueType.CONFIGURATION)
        if options:
            assert json.loads(process.stdout.readline())["type"] == "configuration"
        served.commit(b"entry %d" % number)
        assert json.loads(process.stdout.readline())["value"] == f"entry {number}"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=240)
    assert (process.returncode, out, err.strip()) == (130, b"", b"interrupted")


def test_log_tail_whose_reader_leaves_ends_quietly(served, spawn):
    for _ in range(3000):
        served.commit(b"x" * 100)
    process = spawn("log", "tail", "-f")
    assert process.stdout is not None
    assert process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    assert process.wait(240) == 1


def test_user_named_by_options_is_asked_with_instead_of_the_local_one(served, tmp_path, cli):
    password = tmp_path / "password"
    write_private_file(password, b"rita's word\n")
    reader = ["--node", served.url, "--user", "rita", "--password-file", str(password)]
    (tmp_path / "garlicfarm.toml").unlink()
    cli("status", *reader, "--pin", served.node.pin)
    pinned = f"{served.url}?pin={served.node.pin}"
    cli("status", "--node", pinned, *reader[2:])
    cli("status", "--node", pinned, *reader[2:], "--farm", "barn", exits=2)
    cli("status", *reader, "--ca", str(served.node.certificate))
    assert (
        "needs the role writer"
        in cli("log", "post", "password", *reader, "--pin", served.node.pin, exits=4).err
    )
    cli("status", *reader, "--pin", "sha256:" + "00" * 32, exits=4)
    password.write_text("wrong")
    assert "user or the password is wrong" in cli("status", *reader, "--pin", served.node.pin, exits=4).err
    password.chmod(0o644)
    cli("status", *reader, "--pin", served.node.pin, exits=2)
    cli("status", "--node", served.url, exits=2)
    cli("status", "--user", "rita", exits=2)


def test_farm_is_to_be_named_where_there_are_several(tmp_path, monkeypatch, cli):
    with serving(tmp_path, monkeypatch, "farm", "other"):
        assert "--farm is needed: this node has farm, other" in cli("status", exits=2).err
        assert json.loads(cli("status", "--farm", "other", "-o", "json").out)["farm"] == "other"


@pytest.mark.parametrize(
    ("arguments", "waited_for"),
    [
        (["log", "post"], "the entry is not known to be committed; look for it in the log"),
        (["farm", "set", "R=4"], "the change is not known to be committed; `garlicfarm farm show`"),
        (["leader", "stepdown"], "no other member is known to lead yet"),
        (["member", "remove", "3"], "the change is not known to be committed; see `garlicfarm member list`"),
        (["log", "tail", "--follow"], "the log was followed"),
    ],
)
def test_deadline_that_passes_says_what_was_waited_for(served, cli, monkeypatch, arguments, waited_for):
    served.node.farm.post_blocks = True
    entry = Path("entry")
    entry.write_bytes(b"one")
    if arguments == ["log", "post"]:
        arguments = [*arguments, str(entry)]
    for timeout_s in ("2", "8", "32", "128"):  # the longer ones where a busy machine took it all to ask
        told = cli(*arguments, "--timeout", timeout_s, exits=124).err
        if waited_for in told:
            break
    assert f"error: --timeout of {timeout_s} s passed: {waited_for}" in told


def test_deadline_that_passes_without_an_answer_names_the_node(served, capsys):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://127.0.0.1:{silent.getsockname()[1]}"
        (served.node.data_dir / "admin.url").write_text(f"{url}\n")
        assert run(["status", "--timeout", "0.2"]) == 124
    assert capsys.readouterr().err == f"error: --timeout of 0.2 s passed: no answer from {url}\n"


def test_client_made_from_the_configuration_is_the_local_user_and_pins_the_certificate(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def post(**options: Any) -> None:
        async with from_config(**options) as client:
            await client.post("farm", b"one")

    for options in ({"path": served.config}, {"path": str(served.config)}, {}):
        trio.run(partial(post, **options))
    assert served.node.farm.posted_by == ["local", "local", "local"]
    word = tmp_path / "word"
    write_private_file(word, PASSWORDS["paul"][1].encode())
    trio.run(partial(post, user="paul", password_file=word))
    assert served.node.farm.posted_by[-1] == "paul"
    for options in ({"user": "paul"}, {"password_file": word}):
        with pytest.raises(ConfigError, match="user and password_file together"):
            from_config(**options)
    other = make_certificate(tmp_path / "other.crt", tmp_path / "other.key", "127.0.0.1")
    assert other != served.node.pin
    (tmp_path / "other.crt").replace(served.node.certificate)
    with pytest.raises(AuthError, match="another certificate than the pinned one"):
        trio.run(post)
