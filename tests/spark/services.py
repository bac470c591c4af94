"""Spark as a service on loopback, from pip's pyspark: a standalone cluster and a Connect server."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

from garlicfarm_plugin_spark.java import find_java_home
from garlicfarm_plugin_spark.session import LOG4J

DEPLOY = "org.apache.spark.deploy"
# What a driver on this machine needs: it would name itself by an address that is no loopback one.
LOOPBACK = (
    *("--conf", "spark.driver.host=127.0.0.1"),
    *("--conf", "spark.driver.bindAddress=127.0.0.1"),
    *("--conf", "spark.executor.memory=512m"),
)
START_S = 240.0
STOP_S = 20.0
LAST_LINES = 30
JETTY = """logger.jetty.name = org.sparkproject.jetty
logger.jetty.level = warn
"""


class SparkProcess:
    """A Java program of Spark's; all that it writes is in ``log``."""

    def __init__(self, directory: Path, name: str, *command: str, token: str = "") -> None:
        """Start ``spark-class`` with these words. Java and Python are those of the tests. ``token``: what
        clients of a Connect server have to show."""
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "log4j2.properties").write_text(LOG4J.format(level="info") + JETTY)
        self.log = directory / f"{name}.log"
        environ = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
        environ |= {
            "JAVA_HOME": str(find_java_home(directory / name, os.environ)),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_CONF_DIR": str(directory),
            **({"SPARK_CONNECT_AUTHENTICATE_TOKEN": token} if token else {}),
            "SPARK_HOME": str(spark_home()),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",  # its port is fixed
        }
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [spark_home() / "bin" / "spark-class", *command],
                cwd=directory,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # with the executors that a worker starts
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_for(self, pattern: str) -> re.Match[str]:
        """The first match in the log."""
        deadline = time.monotonic() + START_S
        while (found := re.search(pattern, self.log.read_text(errors="replace"))) is None:
            assert self._process.poll() is None, f"it ended:\n{self.last_lines()}"
            assert time.monotonic() < deadline, f"it never wrote {pattern!r}:\n{self.last_lines()}"
            time.sleep(0.05)
        return found

    def last_lines(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join([f"{self.log}:", *lines[-LAST_LINES:]])

    def close(self) -> None:
        """End it, and what it has started."""
        self._process.terminate()  # a worker ends its executors then
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def spark_home() -> Path:
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


class Standalone:
    """A master and its workers; ``url`` is for ``--master``. Made by `standalone`."""

    def __init__(self, url: str, processes: list[SparkProcess]) -> None:
        self.url = url
        self.processes = processes

    @property
    def workers(self) -> list[SparkProcess]:
        return self.processes[1:]

    def told(self) -> str:
        """The ends of all logs, those of the executors too: for a failed assertion."""
        executors = sorted(self.processes[0].log.parent.glob("work-*/*/*/stderr"))
        ends = [process.last_lines() for process in self.processes]
        for path in executors:
            ends += [f"{path}:", *path.read_text(errors="replace").splitlines()[-LAST_LINES:]]
        return "\n".join(ends)


@contextmanager
def standalone(directory: Path, *, workers: int, cores: int = 1, memory: str = "1g") -> Iterator[Standalone]:
    """Workers with so many cores and so much memory each, registered, for as long as the block lasts."""
    with ExitStack() as stack:

        def start(name: str, *words: str) -> SparkProcess:
            process = SparkProcess(directory, name, *words, "--host", "127.0.0.1", "--webui-port", "0")
            stack.callback(process.close)
            return process

        master = start("master", f"{DEPLOY}.master.Master", "--port", "0")
        url = master.wait_for(r"Starting Spark master at (spark://\S+)")[1]
        started = []
        for number in range(workers):
            limits = ("--cores", str(cores), "--memory", memory)
            words = (*limits, "--work-dir", str(directory / f"work-{number}"), url)
            started.append(start(f"worker-{number}", f"{DEPLOY}.worker.Worker", *words))
        for worker in started:
            worker.wait_for("Successfully registered with master")
        yield Standalone(url, [master, *started])


class ConnectServer(SparkProcess):
    """``url`` is for a remote session. Made by `connect_server`."""

    url = ""


@contextmanager
def connect_server(directory: Path, token: str) -> Iterator[ConnectServer]:
    """A server on ``local[2]``, ready, for as long as the block lasts."""
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.ui.enabled": "false",
    }
    words = [f"--conf={name}={value}" for name, value in settings.items()]
    submit = (f"{DEPLOY}.SparkSubmit", "--class", "org.apache.spark.sql.connect.service.SparkConnectServer")
    server = ConnectServer(directory, "connect", *submit, "--master", "local[2]", *words, token=token)
    try:
        port = server.wait_for(r"Spark Connect server started at: \S+?:(\d+)")[1]
        server.url = f"sc://localhost:{port}"  # by that name a token needs no TLS
        yield server
    finally:
        server.close()
