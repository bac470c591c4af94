"""A private Spark session: quiet, on loopback if it is local. Once closed, it leaves nothing running.

All calls block, some for a minute. Do not call them in the main thread: there Spark would handle the
interrupt signal itself.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from garlicfarm.errors import ConfigError, GarlicFarmError, UnreachableError
from garlicfarm_plugin_spark.java import check_java, find_java_home

STOP_TIMEOUT_S = 10.0
DEFAULTS: Mapping[str, str] = {
    "spark.app.name": "garlicfarm rank",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "1",  # one farm is one key; a checkpoint keeps the number
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.stopTimeout": "10s",
    "spark.sql.streaming.pollingDelay": "200ms",  # between two requests to a node without new entries
}
LOOPBACK: Mapping[str, str] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.authenticate": "true",  # by a secret that Spark makes itself if its master is this process
}
LOCAL_MASTER = re.compile(r"local(\[[^\]]*\])?")
LOG4J = """rootLogger.level = {level}
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{{HH:mm:ss}} %p %c{{1}}: %m%n%ex
"""
_LEVELS = ("off", "warn", "info")
# Of `RemoteException(a.b.C): said` it is C that the server has said.
_CAUSES = re.compile(r"^(?:Caused by)?: (?:[\w.$]+\()?((?:[a-z]\w*\.)+[\w$]+)\)?(: .+)?$", re.MULTILINE)
_FRAME = re.compile(r"^\s+at (org\.apache\.spark\.[\w.$]+)", re.MULTILINE)
# Not `SocketException` and `SocketTimeoutException`: Spark's Python processes that died lead to those, too.
_AWAY = {
    "java.net.ConnectException",
    "java.net.NoRouteToHostException",
    "java.net.UnknownHostException",
    "java.nio.channels.UnresolvedAddressException",
    "org.apache.hadoop.net.ConnectTimeoutException",
}
_NOT_READY = {
    "org.apache.hadoop.hdfs.server.namenode.SafeModeException",  # it has started just now
    "org.apache.hadoop.ipc.RetriableException",
    "org.apache.hadoop.ipc.StandbyException",  # another one is to take over, or does
}


# What Spark meets where it talks to a Python process that is gone.
_LOST = re.compile(
    r"java\.io\.(?:EOF|IO)E|java\.net\.Socket|java\.nio\.channels\.|SparkException: Python worker"
)


class PythonProcessLost(GarlicFarmError):
    """One of Spark's Python processes died, or did not start in time. Another one may live."""


def check_installed() -> None:
    """Raises `ConfigError`: Spark is not installed, or no Java for it."""
    _check_spark()
    check_java(os.environ)


def _check_spark() -> None:
    if find_spec("pyspark") is None or find_spec("pyarrow") is None or find_spec("pandas") is None:
        raise ConfigError(["Spark is not installed: pip install 'garlicfarm[spark]' (about 525 MiB)"])


def text_of(error: Exception) -> str:
    """The text of an error, or its class if the Java process, which provides the text, is gone."""
    from py4j.protocol import Py4JError

    try:
        return str(error)
    except (Py4JError, OSError):
        return type(error).__name__


def cause(error: Exception) -> str:
    """The most useful line of Java's message: the innermost cause that says something, else the class of the
    innermost one, else the first line."""
    found = _causes(error)
    told = [each for each in found if each[1]] or found
    return (
        "".join((told[-1][0].rpartition(".")[2], told[-1][1])) if told else text_of(error).partition("\n")[0]
    )


def lost_python(error: Exception) -> PythonProcessLost | None:
    """The error if one of Spark's Python processes is gone; None: it is another one."""
    text = _whole_text(error)
    innermost = text[max((each.start() for each in _CAUSES.finditer(text)), default=0) :]
    # Disks and servers fail of the same exceptions: what counts is where in Spark.
    frame = _FRAME.search(innermost)
    said = innermost if frame is None else innermost[: frame.start()]
    if frame is None or "ython" not in frame[1] or not _LOST.search(said):
        return None
    if "connect back" in said:
        return PythonProcessLost(
            "one of Spark's Python processes did not start within the ten seconds that Spark waits"
            f" ({cause(error)}): is the machine busy?"
        )
    return PythonProcessLost(
        f"one of Spark's Python processes ended ({cause(error)}): was it killed, or is the memory full?"
    )


def unreachable(error: Exception, server: str) -> UnreachableError | None:
    """The error if ``server`` did not answer, or was not ready; None: it is another one."""
    names = {name for name, _ in _causes(error)}
    if names & _AWAY:
        return UnreachableError(
            f"{server} does not answer ({cause(error)})", "is it running, and the address right?"
        )
    if names & _NOT_READY:
        return UnreachableError(f"{server} is not ready ({cause(error)})", "wait, and try again")
    return None


def _causes(error: Exception) -> list[tuple[str, str]]:
    """The class and the message, if any, of each; the innermost one last."""
    return _CAUSES.findall(_whole_text(error))


def _whole_text(error: Exception) -> str:
    return f"{text_of(error)}\n{getattr(error, '_stackTrace', '')}"


def _not_of_py4j(record: logging.LogRecord) -> bool:
    """py4j logs lost connections, and raises them too; not only as its own logger."""
    return "py4j" not in Path(record.pathname).parts


class Session:
    """``spark``, with the data source ``garlicfarm`` registered, and its Java process."""

    def __init__(
        self, scratch: Path, *, master: str, conf: Mapping[str, str] | None = None, verbosity: int = 0
    ) -> None:
        """Start it.

        :param scratch: a directory, empty before the first session, that outlives this one and later ones.
        :param conf: Spark settings that override ours.
        :param verbosity: which of Spark's own logs go to stderr. 0: none; 1: warnings; 2: all.
        :raises ConfigError: no Java, or Spark is not installed.
        :raises GarlicFarmError: Spark does not start.
        """
        _check_spark()
        verbosity = min(max(verbosity, 0), 2)
        os.environ["JAVA_HOME"] = str(find_java_home(scratch, os.environ))
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        if "SPARK_CONF_DIR" not in os.environ:
            (scratch / "log4j2.properties").write_text(LOG4J.format(level=_LEVELS[verbosity]))
            os.environ["SPARK_CONF_DIR"] = str(scratch)
        settings = {**DEFAULTS, "spark.master": master, "spark.sql.warehouse.dir": str(scratch / "warehouse")}
        if LOCAL_MASTER.fullmatch(master):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            blocks = scratch / "blocks"  # entries and rankings, which Spark would keep below /tmp
            blocks.mkdir(mode=0o700, exist_ok=True)
            settings |= {**LOOPBACK, "spark.local.dir": str(blocks)}
        self.settings = settings | dict(conf or {})
        self._gateway: Any = None
        self._process: subprocess.Popen[bytes] | None = None
        self._start(quiet=not verbosity)

    def _start(self, *, quiet: bool) -> None:
        from py4j.protocol import Py4JError
        from pyspark import SparkConf, SparkContext
        from pyspark.errors import PySparkException
        from pyspark.java_gateway import launch_gateway
        from pyspark.sql import SparkSession

        from garlicfarm_plugin_spark.source import GarlicFarm

        conf = SparkConf(loadDefaults=False).setAll(list(self.settings.items()))
        # A new process session, so that a terminal's Ctrl-C reaches only this process. Java ends with this
        # process, because its stdin is our pipe.
        options: dict[str, Any] = {"start_new_session": True, "stdout": subprocess.DEVNULL}
        if quiet:
            options["stderr"] = subprocess.DEVNULL
        try:
            gateway = launch_gateway(conf, options)
            self._gateway, self._process = gateway, gateway.proc
            context = SparkContext(gateway=gateway, conf=conf)
            if quiet:  # else both print tracebacks of broken connections if Java dies
                accumulators: Any = context._accumulatorServer
                accumulators.handle_error = lambda *request: None
                logging.getLogger().addFilter(_not_of_py4j)
                logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
            self.spark = SparkSession(context)
            # Spark finds the format by itself, in a process that has ten seconds to start. If that fails, it
            # does not try again.
            self.spark.dataSource.register(GarlicFarm)
        except (Py4JError, PySparkException, OSError) as error:
            text = cause(error)  # needs the Java process
            self.close()
            raise GarlicFarmError(f"Spark does not start, -v shows what it says: {text}") from error

    def activate(self) -> None:
        """Make the session the active one of this thread. Spark looks for a Python sink in that alone, and a
        thread inherits none; this is the public call that sets it."""
        self.spark.createDataFrame([], "nothing int")

    @property
    def alive(self) -> bool:
        """Whether the Java process runs."""
        return self._process is not None and self._process.poll() is None

    def wait(self, timeout_s: float) -> None:
        """Wait until the Java process has ended, but not longer than this."""
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout_s)

    def close(self) -> None:
        """End the session and the Java process, gracefully or not; another `Session` may follow."""
        from py4j.protocol import Py4JError
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        process, self._process = self._process, None
        if process is None:
            return
        context = SparkContext._active_spark_context
        with suppress(Py4JError, OSError):
            if context is not None:
                if process.poll() is not None:  # then only this process's part is left to stop
                    context._jsc = None
                context.stop()
        # After a crash, their old values would make every later session in this process fail.
        SparkContext._active_spark_context = SparkContext._gateway = SparkContext._jvm = None
        SparkSession._instantiatedSession = None
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        # While Java lives, py4j waits forever for the threads that read from it.
        self._gateway.shutdown_callback_server()
