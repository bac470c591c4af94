"""An I2PControl server on loopback, over real TLS or plain HTTP, that replays what a real i2pd answered,
or answers as the sources of Java I2P do."""

from __future__ import annotations

import ast
import json
import re
import ssl
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import h11
import pytest
import trio
import trio.testing

from garlicfarm.credentials.certificates import make_certificate
from garlicfarm.lab.processes import free_ports
from garlicfarm_plugin_i2pcontrol import I2PControlConfig, I2PControlRouter

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
        if request["method"] == "ClientServicesInfo":
            (services,) = [each for each in self.exchanges if each.request["method"] == request["method"]]
            found = json.loads(services.body)["result"]
            return json.dumps({"result": {key: found[key] for key in request["params"] if key in found}})
        for each in self.exchanges:
            # A method that it lacks, it lacks whatever it is asked.
            if each.request["method"] == request["method"] == "GetRate":
                return each.body
            if _without_token(each.request) == _without_token(request):
                return each.body
        raise AssertionError(f"nothing of the kind was captured: {request['method']}")


def _without_token(request: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return request["method"], {key: value for key, value in request["params"].items() if key != "Token"}


class JavaI2P:
    """Answers as Java I2P's I2PControl does by its sources (i2p.i2p, apps/i2pcontrol, jsonrpc2handlers):
    it checks tokens, tells settings as text or null, and refuses by codes of its own."""

    INFO: ClassVar = {
        "i2p.router.uptime": 86_400_123,
        "i2p.router.net.tunnels.participating": 412,
        "i2p.router.net.bw.inbound.15s": 40_961.5,
        "i2p.router.net.bw.outbound.15s": 51_200.25,
    }

    def __init__(self) -> None:
        self.settings: dict[str, str | None] = {"i2p.router.net.bw.in": "300", "i2p.router.net.bw.out": "60"}
        self.rates: dict[tuple[str, int], float] = {("jobQueue.jobLag", 60_000): 2.75}
        self.tokens: set[str] = set()
        self.expired: set[str] = set()
        self.api_versions = {1}
        self._made = 0

    def restart(self) -> None:
        self.tokens.clear()

    def __call__(self, request: dict[str, Any]) -> str:
        answer = self._answer(request["method"], request["params"])
        key = "error" if isinstance(answer, int) else "result"
        told = {"code": answer, "message": "told by Java"} if isinstance(answer, int) else answer
        return json.dumps({key: told, "id": request["id"], "jsonrpc": "2.0"}) + "\n"

    def _answer(self, method: str, params: dict[str, Any]) -> dict[str, Any] | int:
        if method == "Authenticate":
            if params["Password"] != PASSWORD:
                return -32001
            if params["API"] not in self.api_versions:
                return -32006
            self._made += 1
            self.tokens.add(token := f"token{self._made}")
            return {"API": 1, "Token": token}
        if "Token" not in params:
            return -32002
        if params["Token"] in self.expired:
            return -32004
        if params["Token"] not in self.tokens:
            return -32003
        if method == "RouterInfo":
            return {key: self.INFO[key] for key in params if key in self.INFO}
        if method == "NetworkSetting":
            return {key: self.settings[key] for key in params if key in self.settings}
        if method == "GetRate":
            return (
                {"Result": self.rates[rate]}
                if (rate := (params["Stat"], params["Period"])) in self.rates
                else -32603
            )
        return -32601


class ControlServer:
    """Records every request. Set ``answer`` (request → body) or ``raw`` (stream handler) to misbehave."""

    def __init__(self, directory: Path, nursery: trio.Nursery, *, is_tls: bool = True) -> None:
        self.replay = Replay()
        self.answer: Callable[[dict[str, Any]], str] = self.replay
        self.raw: Callable[[trio.abc.Stream], Awaitable[None]] | None = None
        self.requests: list[dict[str, Any]] = []
        self.is_tls = is_tls
        self.port = 0
        self._directory, self._nursery = directory, nursery
        self.renew_certificate()

    @property
    def url(self) -> str:
        return f"http{'s' if self.is_tls else ''}://127.0.0.1:{self.port}"

    @property
    def methods(self) -> list[str]:
        return [request["method"] for request in self.requests]

    def renew_certificate(self) -> None:
        certificate, key = self._directory / "server.crt", self._directory / "server.key"
        for path in (certificate, key):
            path.unlink(missing_ok=True)
        self.pin = make_certificate(certificate, key, "127.0.0.1")
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(certificate, key)

    async def start(self) -> None:
        """Listen, again at the same port."""
        self._scope = await self._nursery.start(self._run)

    async def stop(self) -> None:
        self._scope.cancel()
        await trio.testing.wait_all_tasks_blocked()

    async def _run(self, *, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
        (listener,) = await trio.open_tcp_listeners(self.port, host="127.0.0.1")
        self.port = listener.socket.getsockname()[1]
        with trio.CancelScope() as scope:
            task_status.started(scope)
            await trio.serve_listeners(self._serve, [listener])

    async def _serve(self, tcp: trio.SocketStream) -> None:
        stream: trio.abc.Stream = tcp
        if self.is_tls:
            stream = trio.SSLStream(tcp, self.context, server_side=True, https_compatible=True)
        try:
            async with stream:
                await (self.raw or self._respond)(stream)
        except (trio.BrokenResourceError, ssl.SSLError, h11.RemoteProtocolError):
            pass  # the client refused us, or left

    async def _respond(self, stream: trio.abc.Stream) -> None:
        connection = h11.Connection(h11.SERVER)
        body = b""
        while not isinstance(event := connection.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                connection.receive_data(bytes(await stream.receive_some()))
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
    """An i2pd."""
    server = ControlServer(tmp_path, nursery)
    await server.start()
    return server


@pytest.fixture
async def java_server(tmp_path: Path, nursery: trio.Nursery) -> ControlServer:
    """A Java I2P, in plain HTTP. Its ``answer`` is a `JavaI2P`."""
    server = ControlServer(tmp_path, nursery, is_tls=False)
    server.answer = JavaI2P()
    await server.start()
    return server


@pytest.fixture
def closed_port() -> int:
    """A port of 127.0.0.1 where nothing listens, and nothing else comes to: it is held."""
    return free_ports(1)[0]


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    path = tmp_path / "i2pcontrol.password"
    path.write_text(PASSWORD + "\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def wrong_password(password_file: Path) -> str:
    password_file.write_text("wrong\n")
    return "wrong"


@pytest.fixture
def make(password_file: Path) -> Callable[..., I2PControlRouter]:
    """An `I2PControlRouter` with the given keys of its configuration."""

    def make(**keys: Any) -> I2PControlRouter:
        config = I2PControlConfig(**{"password_file": password_file.name, **keys})
        return I2PControlRouter(config, password_file.parent)

    return make
