"""The programs of the C implementation of Dafka, where ``DAFKA_C`` names a directory with them.

They listen at all addresses of the machine, so `make test-dafka` runs the tests in a network of their own.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import trio

from garlicfarm.transport import Endpoint


class CProgram:
    """A running one. ``lines`` are what it has printed."""

    def __init__(self, process: trio.Process) -> None:
        self._process = process
        self._printed = trio.Event()
        self.lines: list[str] = []

    async def feed(self, lines: Sequence[str]) -> None:
        """Write lines to its standard input."""
        assert self._process.stdin is not None
        await self._process.stdin.send_all("".join(f"{line}\n" for line in lines).encode())

    async def close_input(self) -> None:
        """End its standard input."""
        assert self._process.stdin is not None
        await self._process.stdin.aclose()

    async def printed(self, count: int) -> list[str]:
        """Its first lines, once it has printed so many."""
        while len(self.lines) < count:
            self._printed = trio.Event()
            await self._printed.wait()
        return self.lines[:count]

    async def ended(self) -> int:
        """Its exit code, once it has ended."""
        return await self._process.wait()

    async def kill(self) -> None:
        """kill -9."""
        self._process.kill()
        await self._process.wait()

    async def read(self) -> None:
        """The task that reads what it prints."""
        assert self._process.stdout is not None
        rest = b""
        async for data in self._process.stdout:
            *lines, rest = (rest + data).split(b"\n")
            self.lines += [line.decode(errors="replace") for line in lines]
            self._printed.set()


@asynccontextmanager
async def c_program(name: str, *arguments: str, directory: Path) -> AsyncIterator[CProgram]:
    """One of the programs for the block. What it complains of goes to ``NAME.err`` in ``directory``."""
    path = Path(os.environ["DAFKA_C"]) / name
    with (directory / f"{name}.err").open("ab") as errors:
        # Its own buffer would hold back what it prints until there is much of it.
        process = await trio.lowlevel.open_process(
            ["stdbuf", "-oL", str(path), *arguments],
            cwd=directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
    program = CProgram(process)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(program.read)
            yield program
            nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
                with trio.move_on_after(5):
                    await process.wait()
                process.kill()
                await process.wait()


async def _until_listening(port: int) -> None:
    """Until then, others may take the port."""
    while True:
        with suppress(OSError):
            await (await trio.open_tcp_stream("127.0.0.1", port)).aclose()
            return
        await trio.sleep(0.01)


@asynccontextmanager
async def c_tower(directory: Path, in_port: int, out_port: int) -> AsyncIterator[Endpoint]:
    """Where the tower of the C implementation listens. It breaks down on a machine that has loopback
    addresses only."""
    urls = ("--sub", f"tcp://127.0.0.1:{in_port}", "--pub", f"tcp://127.0.0.1:{out_port}")
    async with c_program("dafka_towerd", *urls, directory=directory):
        await _until_listening(in_port)
        await _until_listening(out_port)
        yield Endpoint("tcp", "127.0.0.1", in_port, {"out": str(out_port)})


def _config(directory: Path, tower: Endpoint, name: str, more: str = "") -> Sequence[str]:
    path = directory / f"{name}.zpl"
    path.write_text(
        f"""beacon
    address = "127.0.0.1"
    sub_address = "tcp://127.0.0.1:{tower.port}"
    pub_address = "tcp://127.0.0.1:{tower.params["out"]}"
{more}"""
    )
    return "-c", str(path)


@asynccontextmanager
async def c_store(directory: Path, tower: Endpoint) -> AsyncIterator[CProgram]:
    """The store, with its database in ``directory``."""
    config = _config(directory, tower, "store", f'store\n    db = "{directory / "db"}"\n')
    async with c_program("dafka_stored", *config, directory=directory) as program:
        yield program


@asynccontextmanager
async def c_producer(directory: Path, tower: Endpoint, topic: str) -> AsyncIterator[CProgram]:
    """A producer of the lines that it is fed. It ends after its input, once a store has saved them."""
    config = _config(directory, tower, "producer")
    async with c_program("dafka_console_producer", *config, topic, directory=directory) as program:
        yield program


@asynccontextmanager
async def c_consumer(
    directory: Path, tower: Endpoint, topic: str, *, from_beginning: bool = True
) -> AsyncIterator[CProgram]:
    """A consumer; prints a line for each record: topic, partition, content."""
    config = _config(
        directory, tower, "consumer", 'consumer\n    offset\n        reset = "earliest"\n' * from_beginning
    )
    async with c_program("dafka_console_consumer", *config, topic, directory=directory) as program:
        yield program
