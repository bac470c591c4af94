"""A router that speaks SAM, scripted: what it answers to a command can be replaced, and all of it is kept."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import trio

from garlicfarm.transport import Endpoint


class SamRouter:
    """Use it as an async context manager. ``replies``: command → line without its end, raw bytes to send, or
    None for no answer at all; "" closes the connection. ``greeting``: first bytes of each stream.
    ``service``: what a stream leads to, if anything. ``is_found``: whether a look-up finds the service.
    ``closing``: after the client's EOF it closes once this is set. ``is_java``: it refuses streams as Java
    I2P 2.7.0, and then closes the connection (SAMv3Handler.execStreamMessage)."""

    def __init__(self) -> None:
        self.replies: dict[str, str | bytes | None] = {}
        self.commands: list[str] = []
        self.sessions: dict[str, str] = {}
        self.forwards: dict[str, str] = {}
        self.streams = 0
        self.is_found = True
        self.is_java = False
        self.closing = trio.Event()
        self.closing.set()
        self.eofs = 0
        self.greeting = b""
        self.service: Callable[[trio.SocketStream], Awaitable[None]] | None = None
        self.changed = trio.Event()
        self._connections: dict[trio.SocketStream, list[str]] = {}
        self._unanswered: list[trio.SocketStream] = []
        self._creating: set[str] = set()

    async def __aenter__(self) -> SamRouter:
        self._manager = trio.open_nursery()
        self._nursery = await self._manager.__aenter__()
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._nursery.cancel_scope.cancel()
        await self._manager.__aexit__(None, None, None)

    async def start(self, port: int = 0) -> None:
        serve = partial(trio.serve_tcp, self._connection, port, host="127.0.0.1")
        self._scope = trio.CancelScope()
        (listener,) = await self._nursery.start(self._serve, serve)
        self.address = f"127.0.0.1:{listener.socket.getsockname()[1]}"
        self.endpoint = Endpoint.parse(f"sam://{self.address}")

    async def _serve(self, serve, task_status) -> None:
        with self._scope:
            await serve(task_status=task_status)

    async def answer_sessions(self) -> None:
        """Say OK to all sessions that have no answer yet."""
        for stream in self._unanswered:
            await stream.send_all(b"SESSION STATUS RESULT=OK DESTINATION=key\n")
        self._unanswered.clear()
        self._creating.clear()

    async def say(self, command: str, data: bytes) -> None:
        """Send this on all connections that had ``command``."""
        for stream, commands in [*self._connections.items()]:
            if command in commands and stream.socket.fileno() >= 0:
                await stream.send_all(data)

    def kill(self) -> None:
        """End all connections, and listen no longer, as a killed process does."""
        self._scope.cancel()
        self.cut()

    def cut(self, command: str = "") -> None:
        """Close all connections, or those that had ``command``."""
        for stream, commands in self._connections.items():
            if not command or command in commands:
                stream.socket.close()

    async def seen(self, command: str, count: int = 1) -> None:
        """Wait for the ``count``-th command of this kind."""
        while sum(each.startswith(command) for each in self.commands) < count:
            await self.changed.wait()

    def told(self, command: str) -> list[dict[str, str]]:
        """The arguments of all commands of this kind."""
        return [
            dict(word.split("=", 1) for word in each.removeprefix(command).split())
            for each in self.commands
            if each.startswith(command)
        ]

    def _note(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    async def _connection(self, stream: trio.SocketStream) -> None:
        self._connections[stream] = []
        mine: list[tuple[dict[str, str], str]] = []
        try:
            received = bytearray()
            while data := await stream.receive_some():
                received += data
                while b"\n" in received:
                    line, _, rest = received.partition(b"\n")
                    received = bytearray(rest)
                    await self._command(stream, line.decode(), mine)
            self.eofs += 1
            self._note()
            if not self.closing.is_set():
                await self.closing.wait()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            for table, name in mine:
                table.pop(name, None)
            self._connections.pop(stream)
            self._note()

    def _java(self, session: str, command: str, arguments: dict[str, str]) -> str:
        if session not in self.sessions:
            result, message = "INVALID_ID", f"STREAM SESSION ID {session} does not exist"
        elif session in self._creating:
            result, message = "I2P_ERROR", f"specified ID {session} is not a STREAM session"
        elif command == "STREAM CONNECT" and not self.is_found:
            result, message = "INVALID_KEY", f"Lease set not found: {arguments['DESTINATION']}"
        elif command == "STREAM FORWARD" and session in self.forwards:
            message = "Forwarding failed : a forwarding server is already defined for this destination"
            result = "I2P_ERROR"
        else:
            return "STREAM STATUS RESULT=OK"
        return f'STREAM STATUS RESULT={result} MESSAGE="{message}"'

    async def _command(self, stream: trio.SocketStream, line: str, mine: list) -> None:
        self.commands.append(line)
        self._note()
        command = " ".join(line.split()[:2])
        self._connections[stream].append(command)
        arguments = dict(word.split("=", 1) for word in line.split()[2:])
        session = arguments.get("ID", "")
        reply = {
            "HELLO VERSION": "HELLO REPLY RESULT=OK VERSION=3.1",
            "SESSION CREATE": f"SESSION STATUS RESULT=OK DESTINATION={arguments.get('DESTINATION')}",
            "NAMING LOOKUP": f"NAMING REPLY RESULT=KEY_NOT_FOUND NAME={arguments.get('NAME')}",
        }.get(command, "STREAM STATUS RESULT=OK")
        if command == "STREAM CONNECT" and not self.is_found:
            reply = "STREAM STATUS RESULT=CANT_REACH_PEER"
        if self.is_java and command.startswith("STREAM"):
            reply = self._java(session, command, arguments)
        given = self.replies.get(command, reply)
        if command == "SESSION CREATE" and (given is None or given == reply):
            self.sessions[session] = arguments["DESTINATION"]
            mine.append((self.sessions, session))
        if command == "STREAM FORWARD" and given == reply == "STREAM STATUS RESULT=OK":
            self.forwards[session] = arguments["PORT"]
            mine.append((self.forwards, session))
        if command == "SESSION CREATE" and given is None:
            self._unanswered.append(stream)
            self._creating.add(session)
        is_refusal = self.is_java and command.startswith("STREAM") and given != "STREAM STATUS RESULT=OK"
        if given == "":
            stream.socket.close()
        elif given is not None:
            data = given if isinstance(given, bytes) else f"{given}\n".encode()
            is_stream = command == "STREAM CONNECT" and given == "STREAM STATUS RESULT=OK"
            if is_stream:
                self.streams += 1
                data += self.greeting
            await stream.send_all(data)
            if is_refusal:
                await stream.aclose()
            if is_stream and self.service is not None:
                await self.service(stream)
                await stream.aclose()
        self._note()
