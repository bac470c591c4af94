"""Wherever an operator names a file: a FIFO, which would be waited for, is refused, and a directory too."""

from __future__ import annotations

import os
import signal
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
import trio

from garlicfarm.admin.server import serve
from garlicfarm.cli import run
from garlicfarm.client.trust import client_tls
from garlicfarm.config import load
from garlicfarm.credentials.certificates import make_certificate
from garlicfarm.errors import ConfigError
from garlicfarm.plugins import make_router, make_transport
from garlicfarm.setup.i2p_tunnel import b32_address
from garlicfarm_plugin_dafka.keys import read_key, read_known_peers

REMOTE = ["--node", "https://127.0.0.1:9", "--user", "u"]
SAID = "it is a (FIFO|directory), not a regular file"


@pytest.fixture(autouse=True)
def ends() -> Iterator[None]:
    """Ends a wait in `open`, which is what a defect looks like here."""

    def end(*_: object) -> None:
        raise TimeoutError("it waited for the other end of a FIFO")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(params=["fifo", "directory"])
def special(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "special"
    (os.mkfifo if request.param == "fifo" else os.mkdir)(path, 0o700)
    return path


def made(tmp_path: Path) -> tuple[Path, Path]:
    files = tmp_path / "node.crt", tmp_path / "node.key"
    make_certificate(*files, "127.0.0.1")
    return files


async def admin(certificate: Path, private_key: Path) -> None:
    async def make_app() -> NoReturn:
        raise AssertionError("it serves")

    await serve(
        make_app,
        bind="https://127.0.0.1:0",
        certificate=certificate,
        private_key=private_key,
        shutdown=trio.Event(),
    )


def router_info(special: Path, tmp_path: Path) -> object:
    password = tmp_path / "password"
    password.write_text("itoopie\n")
    password.chmod(0o600)
    return make_router("i2pcontrol", {"password_file": "password", "router_info": special.name}, tmp_path)


READERS: dict[str, Callable[[Path, Path], Any]] = {
    "configuration": lambda special, _: load(special, {}),
    "ca of a command": lambda special, _: client_tls(pin=None, ca=special),
    "admin certificate": lambda special, path: trio.run(admin, special, made(path)[1]),
    "admin key": lambda special, path: trio.run(admin, made(path)[0], special),
    "ca of ssl": lambda special, path: make_transport("ssl", {"ca": special.name}, path),
    "ca of wss": lambda special, path: make_transport("wss", {"ca": special.name}, path),
    "certificate of ssl": lambda special, path: make_transport(
        "ssl", {"certificate": special.name, "private_key": "x"}, path
    ),
    "keys of a tunnel": lambda special, _: b32_address(special),
    "CURVE key": lambda special, _: read_key(special),
    "known peers": lambda special, _: read_known_peers(special),
    "I2PControl's password": lambda special, path: make_router(
        "i2pcontrol", {"password_file": special.name}, path
    ),
    "router.info": router_info,
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_special_file_is_refused_by_what_reads_it(special, tmp_path, read):
    with pytest.raises(ConfigError, match=SAID) as caught:
        read(special, tmp_path)
    assert "Errno" not in str(caught.value)


@pytest.mark.parametrize(
    "command",
    [
        ["status", *REMOTE, "--password-file", "special"],
        ["node", "join", "new", "--token-file", "special", "--endpoint", "ssl://127.0.0.1:1"],
        ["keys", "show", "special"],
    ],
    ids=" ".join,
)
def test_command_refuses_a_fifo(tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("special", 0o600)
    assert run(command) not in (0, 124)
    said = capsys.readouterr().err
    assert "it is a FIFO, not a regular file" in said


def test_authority_that_holds_no_certificate_is_named(tmp_path: Path) -> None:
    (tmp_path / "ca").write_text("none")
    with pytest.raises(ConfigError, match="ca holds no certificate in PEM form") as caught:
        client_tls(pin=None, ca=tmp_path / "ca")
    assert isinstance(caught.value.__cause__, ssl.SSLError)
