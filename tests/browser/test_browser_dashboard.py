"""The dashboard in a real browser: with script and without, and against pages that mean harm."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from html import escape
from pathlib import Path

import msgspec
import pytest
import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from garlicfarm.admin.server import serve
from tests.admin.fake_node import PASSWORDS, FakeNode
from tests.browser.chromium import Chromium, Page, chromium
from tests.running import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.slow]

EVIL = "<script>document.title = 'owned'</script><img src=x onerror=\"document.title = 'owned'\">"
LIVE = "document.getElementById('live').textContent === 'live'"


@pytest.fixture
async def browser() -> AsyncIterator[Chromium]:
    async with chromium() as started:
        yield started


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path / "data")


@pytest.fixture
async def url(node: FakeNode) -> AsyncIterator[str]:
    async with node.running() as bound:
        yield bound


def note(text: str) -> bytes:
    return msgspec.json.encode(
        {"cluster": "farm", "date": 1_800_000_000_000, "id": 0, "config": {"by": "paul", "text": text}}
    )


async def shown(browser: Chromium, url: str, user: str, *, scripts: bool = True) -> Page:
    page = await browser.page(scripts=scripts)
    await page.open(url, user, PASSWORDS[user][1])
    return page


async def test_page_without_script_shows_everything_and_stays_as_it_is(browser, node, url):
    why = {
        "score": 600_000,
        "mode": "auto",
        "eligible": True,
        "publisher": True,
        "reason": "publisher since 1",
        "measured": None,
        "parts": {},
        "why": ["its mode is auto"],
    }
    body = {"since": 1, "members": [{"id": 1, **why}]}
    node.farm.ranking = lambda **_: body  # type: ignore[method-assign]
    for second, job_lag in enumerate((100, 900)):
        date = 1_800_000_000_000 + 1000 * second
        status = {"cluster": "farm", "date": date, "id": 1, "router": {"jobLag": job_lag}}
        node.farm.commit(msgspec.json.encode(status))
    node.farm.commit(note("what paul has to say"))
    page = await shown(browser, url, "rita", scripts=False)
    text = await page.text()
    for part in ("unreachable", "connection refused", "600,000", "publisher since 1", "what paul has to say"):
        assert part in text
    assert await page.value("document.querySelectorAll('#scores polyline').length") == 1
    await page.value("document.querySelector('summary').click()")
    assert "its mode is auto" in await page.text("#ranking")
    assert "reload for what is new" in text
    asked = node.requests
    node.farm.commit(note("later"))
    await trio.sleep(1.5)
    assert node.requests == asked
    await page.open(url)
    assert "later" in await page.text("#log")


async def test_page_follows_commits_and_a_death_and_says_when_the_node_is_gone(browser, node, shutdown):
    async with trio.open_nursery() as nursery:
        page = await shown(browser, await nursery.start(node.serve, shutdown), "rita")
        await page.until(LIVE)
        readers = partial(node.metrics.registry.get_sample_value, "garlicfarm_feed_readers")
        await wait_until(lambda: readers({"farm": "farm"}) == 1)  # the node pushes to it, through its login
        await page.value("window.same = true")
        node.farm.commit(note("news"))
        await page.until("document.getElementById('log').innerText.includes('news')")
        status = node.farm.status()
        status["members"][1] |= {"role": "unreachable", "error": "gone"}
        node.farm.status = lambda: status  # type: ignore[method-assign]
        await page.until("document.getElementById('member-2').className === 'unreachable'")
        assert await page.value("window.same"), "it was never loaded again"
        shutdown.set()
    await page.until("document.getElementById('live').textContent.includes('does not answer')")
    assert "news" in await page.text("#log"), "what was known stays"


async def test_feed_that_fails_is_shown_with_what_to_do_without_a_reload(browser, node, url):
    row = {"name": "files", "plugin": "file", "state": "running", "index": 7, "lag": 0, "problem": None}
    node.farm.feeds = [row]
    page = await shown(browser, url, "rita")
    await page.until(LIVE)
    assert "running" in await page.text("#feeds-rows")
    assert await page.value("document.querySelectorAll('#feeds-rows .bad').length") == 0
    node.farm.feeds = [row | {"state": "failed", "lag": 3, "problem": f"/x{EVIL}: No space left on device"}]
    node.farm.commit(note("news"))
    await page.until("document.querySelector('#feeds-rows .bad')?.innerText === 'failed'")
    text = await page.text("#feeds-rows")
    assert "No space left on device; fix that" in text
    assert EVIL in text
    assert "owned" not in await page.value("document.title")


async def test_page_that_is_hidden_is_pushed_nothing_until_it_is_shown_again(browser, node, url):
    page = await shown(browser, url, "rita")
    await page.until(LIVE)
    readers = partial(node.metrics.registry.get_sample_value, "garlicfarm_feed_readers", {"farm": "farm"})
    await wait_until(lambda: readers() == 1)
    hide = "Object.defineProperty(document, 'hidden', {{value: {}, configurable: true}})"
    tell = "document.dispatchEvent(new Event('visibilitychange', {bubbles: true}))"
    await page.value(f"{hide.format('true')}; {tell}")
    await wait_until(lambda: readers() == 0)
    await page.value(f"{hide.format('false')}; {tell}")
    await wait_until(lambda: readers() == 1)
    node.farm.commit(note("news"))
    await page.until("document.getElementById('log').innerText.includes('news')")


@pytest.mark.parametrize("scripts", [True, False])
async def test_script_in_an_entry_is_shown_as_text(browser, node, url, scripts):
    node.farm.commit(note(EVIL))
    page = await shown(browser, url, "rita", scripts=scripts)
    if scripts:
        await page.until(LIVE)
        node.farm.commit(EVIL.encode())
        await page.until("document.querySelectorAll('#log tbody tr').length === 2")
    assert "<script>document.title" in await page.text("#log")
    assert await page.value("document.querySelectorAll('img, #log script').length") == 0
    assert "owned" not in await page.value("document.title")


async def test_inline_script_does_not_run_even_where_it_gets_into_the_page(browser, url):
    page = await shown(browser, url, "rita")
    await page.value(
        "document.body.append(Object.assign(document.createElement('script'), {text: 'window.owned = true'}))"
    )
    await page.value(
        "document.body.insertAdjacentHTML('beforeend', '<b onclick=\"window.owned = true\">x</b>')"
    )
    await page.value("document.body.lastChild.click()")
    assert await page.value("window.owned ?? false") is False


async def test_form_of_an_admin_commits_and_comes_back(browser: Chromium, node: FakeNode, url: str) -> None:
    page = await shown(browser, url, "anna", scripts=False)
    form = "document.querySelector('form:has([value=override])')"
    await page.value(f"{form}.member.value = '3', {form}.mode.value = 'off'")
    await page.value(f"{form}.querySelector('button').click()")
    await page.until("location.search === '?farm=farm&index=1' && document.readyState === 'complete'")
    assert "Done: committed at index 1." in await page.text()
    assert node.farm.log[0].value == repr(("override", {"member": 3, "mode": "off"}, "anna")).encode()


async def test_reader_has_no_forms_and_a_forged_one_is_refused(browser, node, url):
    page = await shown(browser, url, "rita")
    assert await page.value("document.querySelectorAll('form, button, input').length") == 0
    code = await page.value(
        "fetch('/', {method: 'POST', body: 'farm=farm&action=stepdown&member=0'})"
        ".then((answer) => answer.status)"
    )
    assert (code, node.farm.log) == (403, [])


async def test_form_on_another_page_is_refused_though_the_browser_is_logged_in_and_knows_the_token(
    browser: Chromium, node: FakeNode, url: str, nursery: trio.Nursery
) -> None:
    page = await shown(browser, url, "anna")
    token = await page.value("document.querySelector('[name=token]').value")
    fields = {"farm": "farm", "token": token, "action": "override", "member": "3", "mode": "off"}

    async def trap(request: Request) -> Response:
        inputs = "".join(f'<input name="{name}" value="{escape(value)}">' for name, value in fields.items())
        target = request.query_params["to"]
        return HTMLResponse(f'<title>trap</title><form method="post" action="{target}/">{inputs}</form>')

    async def make_app() -> Starlette:
        return Starlette(routes=[Route("/", trap)])

    stop = trio.Event()
    other = await nursery.start(
        partial(
            serve,
            make_app,
            bind="https://127.0.0.1:0",
            certificate=node.certificate,
            private_key=node.private_key,
            shutdown=stop,
        )
    )
    asked = node.requests
    await page.open(f"{other}/?to={url}")
    await page.value("document.forms[0].submit()")
    await page.until("document.title !== 'trap' && document.readyState === 'complete'")
    await wait_until(lambda: node.requests > asked)
    assert await page.value("location.href") == f"{url}/"
    assert "forbidden" in await page.text()
    assert "a page of another site" in await page.text(), "it was the page, not the login, that was refused"
    assert node.farm.log == []
    stop.set()


@pytest.fixture
def shutdown() -> trio.Event:
    return trio.Event()


def long_farm(node: FakeNode) -> None:
    """Seven members with long endpoints, a dead one among them, statuses of all, and long entries."""
    parts = {"router_uptime": {"value": 900_000, "weight": 20, "reported": True}}
    about = {
        "score": 650_000,
        "measured": 85,
        "mode": "auto",
        "eligible": True,
        "publisher": False,
        "parts": parts,
    }
    about |= {
        "reason": "took over from 1 at index 1234567 (ahead three times in a row)",
        "why": ["because"] * 4,
    }
    ranking = {"since": 1, "members": [{"id": member, **about} for member in range(1, 8)]}
    node.farm.ranking = lambda **_: ranking  # type: ignore[method-assign]
    node.farm.events = [{"index": 1, "date_ms": 1_800_000_000_000, "text": "member 3 lost, 2 took over"}]
    node.farm.events[0] |= {"publisher": 2, "previous": 3, "because": "ineligible"}
    trouble = "tcp://tower-number-one-of-many.an-organisation.example:5556 does not answer; " * 2
    feed = {"name": "statuses-for-the-archive", "plugin": "dafka", "state": "running", "problem": trouble}
    node.farm.feeds = [feed | {"index": 1_234_567, "lag": 100_000}]
    status = node.farm.status()
    endpoint = f"i2p://{'a' * 52}.b32.i2p:27150"
    status["members"] = [
        status["members"][min(member, 3) - 1] | {"id": member, "endpoint": endpoint} for member in range(1, 8)
    ]
    node.farm.status = lambda: {**status, "commit": node.farm.commit_index}  # type: ignore[method-assign]
    for second in range(8):
        date = 1_800_000_000_000 + 1000 * second
        status_document = {"cluster": "farm", "date": date, "id": 1, "router": {"jobLag": second}}
        node.farm.commit(msgspec.json.encode(status_document))
    node.farm.commit(note("x" * 150))


@pytest.mark.parametrize("width", [320, 390, 900, 901, 1280])
async def test_page_of_any_width_is_whole(browser: Chromium, node: FakeNode, url: str, width: int) -> None:
    long_farm(node)
    page = await shown(browser, url, "anna")
    await page.picture(width, 800)
    await page.until(LIVE)
    assert await page.value("innerWidth") == width
    assert await page.value("document.documentElement.scrollWidth") == width
    inside = "(box => box.width > 0 && box.left >= 0 && box.right <= innerWidth)"
    for what in (
        "#feeds-rows td:last-child",
        "#ranking-rows summary",
        "#events li",
        "#scores figure > svg",
        "#log-rows td:last-child",
    ):
        assert await page.value(
            f"[...document.querySelectorAll('{what}')].every(one => {inside}(one.getBoundingClientRect()))"
        ), what
    assert await page.value(
        "[...document.querySelectorAll('.wide')].every(w => w.scrollWidth <= w.clientWidth)"
    )
    highest = "Math.max(...[...document.querySelectorAll('{} tr')].map(one => one.offsetHeight))"
    assert await page.value(highest.format("#ranking-rows")) <= (140 if width <= 900 else 60)
    assert await page.value(highest.format("#members-rows")) <= (200 if width <= 900 else 110)


async def test_reasons_stay_open_while_the_page_follows(browser: Chromium, node: FakeNode, url: str) -> None:
    long_farm(node)
    page = await shown(browser, url, "rita")
    await page.until(LIVE)
    await page.value("document.querySelector('#why-2 summary').click()")
    await page.value("document.getElementById('ranking-rows').old = true")
    node.farm.commit(note("news"))
    await page.until("!document.getElementById('ranking-rows').old")
    assert await page.value("document.querySelectorAll('details[open]').length") == 1
    assert await page.value("document.getElementById('why-2').open")
