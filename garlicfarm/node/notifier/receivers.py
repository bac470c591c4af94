"""How notices reach their receivers: as an HTTP request, or as the input of a command."""

from __future__ import annotations

import hmac
import os
import signal
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Protocol
from urllib.parse import urlsplit

import trio

from garlicfarm._version import __version__
from garlicfarm.config.model import NotifySection
from garlicfarm.credentials.private_files import read_private_file
from garlicfarm.errors import cause_of
from garlicfarm.node.notifier.notices import Notice
from garlicfarm.request_body import RequestBody

SIGNATURE = "Garlic-Farm-Signature"
PASSED_ON = ("PATH", "HOME", "LANG")


class NotTaken(Exception):
    """A receiver has not taken a notice. ``is_final``: it will not do so later either."""

    def __init__(self, why: str, *, is_final: bool = False) -> None:
        super().__init__(why)
        self.is_final = is_final


class Receiver(Protocol):
    """``name``: what the log calls it; no part of a URL that may be a secret."""

    name: str

    async def send(self, notice: Notice, body: bytes) -> None:
        """Try once; the caller sets the deadline. Raises `NotTaken`."""
        ...


def make_receiver(number: int, section: NotifySection, base_dir: Path) -> Receiver:
    """The receiver of the table ``number``. Raises `ConfigError`: its secret cannot be read."""
    if section.kind == "command":
        return CommandReceiver(number, section.command, base_dir)
    return WebhookReceiver(number, section)


class WebhookReceiver:
    """Posts the body to a URL. Taken is what is answered with 2xx; the body of an answer is not read, and
    redirects are not followed."""

    def __init__(self, number: int, section: NotifySection) -> None:
        self.name = f"{number}: {urlsplit(section.url).hostname}"
        self._url = section.url
        secret = section.secret_file
        self._secret = None if secret is None else read_private_file(secret).strip().encode()

    async def send(self, notice: Notice, body: bytes) -> None:
        # Not at the top: most nodes have no receiver. In a thread: it takes as long as Trio to import.
        await trio.to_thread.run_sync(import_module, "httpx")
        import httpx

        class Body(RequestBody, httpx.AsyncByteStream):
            """Not httpx's own, a generator."""

        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"garlicfarm/{__version__}",
            "Connection": "close",
        }
        if self._secret is not None:
            headers[SIGNATURE] = f"sha256={hmac.new(self._secret, body, sha256).hexdigest()}"
        try:
            request = httpx.Request("POST", self._url, headers=headers, content=body)
            request.stream = Body(body)
            # A transport: a client would follow the proxies of the environment.
            async with httpx.AsyncHTTPTransport() as transport:
                status = (await transport.handle_async_request(request)).status_code
        except (OSError, httpx.ConnectError) as error:
            raise NotTaken(cause_of(error)) from error
        except httpx.TransportError as error:
            raise NotTaken(f"no HTTP answer: {cause_of(error)}") from error
        except (httpx.InvalidURL, UnicodeError) as error:
            raise NotTaken("its URL is not valid", is_final=True) from error
        if not 200 <= status < 300:
            later = status >= 500 or status in (408, 425, 429)
            raise NotTaken(f"HTTP status {status}", is_final=not later)


class CommandReceiver:
    """Runs a command, without a shell between, with the body as its input. Taken is what ends with status 0.
    Its process group is killed if it is cancelled; what it prints goes nowhere."""

    def __init__(self, number: int, command: tuple[str, ...], base_dir: Path) -> None:
        self.name = f"{number}: {Path(command[0]).name}"
        self._command = command
        self._base_dir = base_dir

    async def send(self, notice: Notice, body: bytes) -> None:
        environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        environment |= {
            "GARLICFARM_FARM": notice.farm,
            "GARLICFARM_KIND": notice.kind,
            "GARLICFARM_TEXT": notice.text.replace("\0", ""),
        }
        try:
            process = await trio.lowlevel.open_process(
                self._command,
                stdin=PIPE,
                stdout=DEVNULL,
                stderr=DEVNULL,
                cwd=self._base_dir,
                env=environment,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:  # a NUL among the arguments
            why = getattr(error, "strerror", None) or str(error)
            raise NotTaken(f"it cannot be started: {why}", is_final=True) from error
        try:
            assert process.stdin is not None
            try:
                async with process.stdin:
                    await process.stdin.send_all(body)
            except trio.BrokenResourceError:
                pass  # it does not read its input
            status = await process.wait()
        finally:
            if process.returncode is None:
                with trio.CancelScope(shield=True):  # a killed process ends
                    os.killpg(process.pid, signal.SIGKILL)
                    await process.wait()
        if status:
            raise NotTaken(f"it ended with status {status}")
