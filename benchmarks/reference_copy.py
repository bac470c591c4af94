"""A copy of entries from one process into a store of another, as the reference for `catch_up.py`.

Two processes on this machine: one sends the entries' bytes over one TLS 1.3 connection (blocking sockets,
``sendall`` of everything), the other reads them into memory, cuts them into entries and imports them into
an empty store through the product's own `Writer`, in steps of 1 MiB that are all queued at once. The
receiver measures the time from the TLS connection to the last fsync, without the creation of the store, its
certificate and the processes.
"""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import trio

from garlicfarm.credentials.certificates import make_certificate
from garlicfarm.levels import FIRST_ALGORITHM
from garlicfarm.raft.types import Entry, Persist
from garlicfarm.storage import Genesis, LogStore, Writer, create_store
from garlicfarm.wire.messages import Configuration, ValueType

STEP_BYTES = 1 << 20
RECEIVE_BYTES = 1 << 16


async def reference_copy(entries: int, size: int) -> float:
    """The duration in seconds."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as directory:
        command = [sys.executable, __file__, directory, str(entries), str(size)]
        done = await trio.run_process(command, capture_stdout=True)
    return float(done.stdout)


def receive(directory: Path, entries: int, size: int) -> float:
    make_certificate(directory / "crt", directory / "key", "bench")
    create_store(directory / "farm", Genesis("bench", bytes(16), "log", FIRST_ALGORITHM, Configuration(0, 0)))
    store = LogStore.open(directory / "farm", farm="bench")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # the receiver does not read them
    context.load_cert_chain(directory / "crt", directory / "key")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        sender = subprocess.Popen([sys.executable, __file__, str(port), str(entries * size)])
        with context.wrap_socket(listener.accept()[0], server_side=True) as stream:
            begun = time.perf_counter()
            data = bytearray()
            while len(data) < entries * size:
                data += stream.recv(RECEIVE_BYTES)
    done = trio.run(load, store, bytes(data), size)
    assert sender.wait() == 0
    return done - begun


async def load(store: LogStore, data: bytes, size: int) -> float:
    """Import entries of ``size`` bytes into an empty store; the time when the last one was durable."""
    last = trio.Event()
    step = max(1, STEP_BYTES // size)
    count = len(data) // size
    steps = -(-count // step)

    def durable(token: int) -> None:
        if token == steps:
            last.set()

    writer = Writer(store, durable)
    async with trio.open_nursery() as nursery:
        await nursery.start(writer.run)
        for number in range(steps):
            indexes = range(number * step, min((number + 1) * step, count))
            entries = [
                Entry(i + 1, 1, ValueType.APPLICATION, data[i * size : (i + 1) * size]) for i in indexes
            ]
            writer.submit(Persist(number + 1, entries=tuple(entries)))
        await last.wait()
        done = time.perf_counter()
        nursery.cancel_scope.cancel()
    return done


def send(port: int, size: int) -> None:
    data = os.urandom(size)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with context.wrap_socket(socket.create_connection(("127.0.0.1", port))) as stream:
        stream.sendall(data)
        stream.recv(1)  # until the other side has read everything and closes


if __name__ == "__main__":
    if len(sys.argv) == 3:
        send(int(sys.argv[1]), int(sys.argv[2]))
    else:
        print(receive(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
