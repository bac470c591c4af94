"""A headless Chromium, driven over the DevTools protocol on a pair of pipes.

Its own profile in a temporary directory; every name but 127.0.0.1 does not resolve, so it talks to the
nodes under test and to nobody else.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import count
from subprocess import DEVNULL
from typing import Any
from urllib.parse import quote

import trio

ANSWER_S = 240.0
CHANGED = "net::ERR_NETWORK_CHANGED"
"""Something on this machine added or removed a network, a container engine say: a browser tries again."""
FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--ignore-certificate-errors",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--no-proxy-server",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-gpu",
    "--hide-scrollbars",
    "--disable-dev-shm-usage",
    "--no-sandbox",  # it has none where tests run as root
)


class Refused(Exception):
    """The browser did not do what it was asked; so too where a page is just being replaced by another."""


class Page:
    """One tab. ``scripts`` off: as a browser without JavaScript."""

    def __init__(self, browser: Chromium, session: str) -> None:
        self._browser = browser
        self._session = session

    async def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        return await self._browser.ask(method, self._session, **parameters)

    async def open(self, url: str, user: str = "", password: str = "") -> None:
        """Go to a page; the login, where one is given, is held for its origin from then on."""
        if user:
            login = f"{quote(user, safe='')}:{quote(password, safe='')}@"
            await self._go(url.replace("https://", "https://" + login))
        await self._go(url)

    async def _go(self, url: str) -> None:
        """Go there; again if a network changed before the page was there with its script and its style."""
        for _ in range(20):
            await self.ask("Runtime.evaluate", expression="window.left = true")
            interrupted = self._browser.interrupted[self._session]
            done = await self.ask("Page.navigate", url=url)
            if done.get("errorText") == CHANGED:
                continue
            assert "errorText" not in done, done
            await self.until("!window.left && document.readyState === 'complete'")
            if self._browser.interrupted[self._session] == interrupted:
                return
        raise AssertionError(f"networks of this machine change faster than {url} loads")

    async def value(self, expression: str) -> Any:
        """What JavaScript makes of it (also where the page itself may not run any)."""
        done = await self.ask(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    async def text(self, selector: str = "body") -> str:
        return str(await self.value(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    async def until(self, expression: str, timeout_s: float = 30) -> None:
        """Wait until it is true; fails with the page's text where it does not become so."""
        with trio.move_on_after(timeout_s):
            while True:
                with suppress(Refused):
                    if await self.value(expression):
                        return
                await trio.sleep(0.1)
        raise AssertionError(f"{expression} is not true of:\n{await self.text()}")

    async def picture(self, width: int, height: int, *, dark: bool = False) -> bytes:
        """A PNG of the top of the page."""
        await self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.ask("Emulation.setEmulatedMedia", features=[scheme])
        return base64.b64decode((await self.ask("Page.captureScreenshot", format="png"))["data"])


class Chromium:
    """The process, and answers to what it was asked."""

    def __init__(self, commands: trio.abc.SendStream, messages: trio.abc.ReceiveStream) -> None:
        self._commands = commands
        self._messages = messages
        self._ids = count(1)
        self._answers: dict[int, dict[str, Any]] = {}
        self._arrived = trio.Condition()
        self._turn = trio.Lock()
        self.interrupted = Counter[str]()
        """Requests that ended because a network changed, by session."""

    async def ask(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        number = next(self._ids)
        message = {"id": number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        with trio.fail_after(ANSWER_S):
            async with self._turn:
                await self._commands.send_all(json.dumps(message).encode() + b"\0")
            async with self._arrived:
                while number not in self._answers:
                    await self._arrived.wait()
        answer = self._answers.pop(number)
        if "error" in answer:
            raise Refused(method, answer["error"])
        return dict(answer["result"])

    async def read(self) -> None:
        pending = b""
        async for data in self._messages:
            *whole, pending = (pending + data).split(b"\0")
            for text in whole:
                message = json.loads(text)
                if message.get("params", {}).get("errorText") == CHANGED:  # Network.loadingFailed
                    self.interrupted[message["sessionId"]] += 1
                if "id" in message:
                    async with self._arrived:
                        self._answers[message["id"]] = message
                        self._arrived.notify_all()

    async def page(self, *, scripts: bool = True) -> Page:
        """A new tab with a login and a storage of its own."""
        context = (await self.ask("Target.createBrowserContext"))["browserContextId"]
        target = await self.ask("Target.createTarget", url="about:blank", browserContextId=context)
        attached = await self.ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        page = Page(self, attached["sessionId"])
        await page.ask("Page.enable")
        await page.ask("Network.enable")
        if not scripts:
            await page.ask("Emulation.setScriptExecutionDisabled", value=True)
        return page


@asynccontextmanager
async def chromium() -> AsyncIterator[Chromium]:
    """A browser for as long as the block lasts."""
    with tempfile.TemporaryDirectory(prefix="garlicfarm-chromium-", ignore_cleanup_errors=True) as profile:
        theirs_in, ours_out = _pipe()
        ours_in, theirs_out = _pipe()
        # It talks on descriptors 3 and 4; ours are above 10, so that neither is in the way.
        shell = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        command = ["bash", "-c", shell, "bash", "chromium", *FLAGS, f"--user-data-dir={profile}"]
        async with trio.open_nursery() as nursery:
            process = await nursery.start(
                partial(
                    trio.run_process,
                    command,
                    pass_fds=(theirs_in, theirs_out),
                    stdin=DEVNULL,
                    stdout=DEVNULL,
                    stderr=DEVNULL,
                    check=False,
                    env={**os.environ, "HOME": profile},
                )
            )
            os.close(theirs_in)
            os.close(theirs_out)
            async with (
                trio.lowlevel.FdStream(ours_out) as commands,
                trio.lowlevel.FdStream(ours_in) as messages,
                trio.open_nursery() as reading,  # the reader ends before its pipe is closed
            ):
                browser = Chromium(commands, messages)
                reading.start_soon(browser.read)
                yield browser
                with trio.move_on_after(5):
                    await browser.ask("Browser.close")
                    await process.wait()
                reading.cancel_scope.cancel()
            nursery.cancel_scope.cancel()


def _pipe() -> tuple[int, int]:
    """A pipe whose descriptors are none of the first ten."""
    low = os.pipe()
    high = [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, 10) for one in low]
    for one in low:
        os.close(one)
    return high[0], high[1]
