"""An I2PControl server on loopback, over real TLS, that replays what a real i2pd answered."""

from __future__ import annotations

import ast
import json
import re
import ssl
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h11
import pytest
import trio

from garlicfarm.certificates import make_certificate

CAPTURE = Path(__file__).parents[1] / "data" / "i2pcontrol" / "i2pcontrol-2.45.1.txt"
PASSWORD = "itoopie"
ALL_FIGURES = re.compile(r'"(i2p\.router\.[^"]+)":("[^"]*"|[0-9.]+)')


@dataclass
class Exchange:
    """One request (parsed) and the answer's headers and body, as captured."""

    request: dict[str, Any]
    headers: dict[str, str]
    body: str


def captured() -> Iterator[Exchange]:
    for block in re.split(r"^>> ", CAPTURE.read_text(), flags=re.MULTILINE)[1:]:
        request, answer = block.rstrip("\n").split("\n<< 200 ", 1)
        headers, body = re.fullmatch(r"({[^}]*}) (.*)", answer, re.DOTALL).groups()
        yield Exchange(json.loads(request), ast.literal_eval(headers), body)


class Replay:
    """Answers as the captured i2pd did. RouterInfo: the captured figures of the keys asked for, as text.
    No answer is made up."""

    def __init__(self) -> None:
        self.exchanges = list(captured())
        infos = [each.body for each in self.exchanges if each.request["method"] == "RouterInfo"]
        self.figures = dict(ALL_FIGURES.findall(max(infos, key=len)))
        self.headers = self.exchanges[0].headers

    def __call__(self, request: dict[str, Any]) -> str:
        if request["method"] == "RouterInfo":
            asked = [key for key in request["params"] if key in self.figures]
            figures = ",".join(f'"{key}":{self.figures[key]}' for key in asked)
            return f'{{"id":1,"result":{{{figures}}},"jsonrpc":"2.0"}}'
        for each in self.exchanges:
            if _without_token(each.request) == _without_token(request):
                return each.body
        raise AssertionError(f"nothing of the kind was captured: {request['method']}")


def _without_token(request: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return request["method"], {key: value for key, value in request["params"].items() if key != "Token"}


class ControlServer:
    """Records every request. Set ``answer`` (request → body) or ``raw`` (stream handler) to misbehave."""

    def __init__(self, directory: Path) -> None:
        self.replay = Replay()
        self.answer: Callable[[dict[str, Any]], str] = self.replay
        self.raw: Callable[[trio.abc.Stream], Awaitable[None]] | None = None
        self.requests: list[dict[str, Any]] = []
        self.pin = make_certificate(directory / "server.crt", directory / "server.key", "127.0.0.1")
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(directory / "server.crt", directory / "server.key")
        self.url = ""

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.url = f"https://127.0.0.1:{listener.socket.getsockname()[1]}"
        await trio.serve_listeners(self._serve, [listener], task_status=task_status)

    async def _serve(self, tcp: trio.SocketStream) -> None:
        stream = trio.SSLStream(tcp, self.context, server_side=True, https_compatible=True)
        try:
            async with stream:
                await (self.raw or self._respond)(stream)
        except (trio.BrokenResourceError, ssl.SSLError):
            pass  # the client refused us, or left

    async def _respond(self, stream: trio.abc.Stream) -> None:
        connection = h11.Connection(h11.SERVER)
        body = b""
        while not isinstance(event := connection.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                connection.receive_data(await stream.receive_some())
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.ConnectionClosed):
                return
        request = json.loads(body)
        self.requests.append(request)
        answer = self.answer(request).encode()
        headers = self.replay.headers | {"Content-Length": str(len(answer))}
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        await stream.send_all(f"HTTP/1.1 200 OK\r\n{head}\r\n".encode() + answer)


@pytest.fixture
async def control_server(tmp_path: Path, nursery: trio.Nursery) -> ControlServer:
    server = ControlServer(tmp_path)
    await nursery.start(server.run)
    return server


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    path = tmp_path / "i2pcontrol.password"
    path.write_text(PASSWORD + "\n")
    path.chmod(0o600)
    return path
