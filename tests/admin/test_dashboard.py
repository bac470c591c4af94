"""The dashboard's page and forms without a browser: what is shown to whom, escaped, and what is refused."""

from __future__ import annotations

import ast
import re
import time
from html.parser import HTMLParser
from typing import Any

import httpx
import msgspec
import pytest

from garlicfarm.admin.dashboard import duration_text
from garlicfarm.admin.dashboard_history import Line, plot
from garlicfarm.errors import EntryRefused, NoQuorum, NotLeader
from garlicfarm.i2p.encoding import b32_of_hash, encode
from garlicfarm.wire.messages import ValueType
from tests.admin.fake_node import PASSWORDS, FakeNode, ranked_row

EVIL = "<script>document.title = 'owned'</script>&amp;\u202e\"'"


T0 = 1_800_000_000_000
HASH = encode(bytes(range(32)))
B32 = b32_of_hash(bytes(range(32)))


def status_of(member: int, job_lag: int = 100, date: int = T0) -> bytes:
    return msgspec.json.encode({"cluster": "farm", "date": date, "id": member, "router": {"jobLag": job_lag}})


def note(text: str) -> bytes:
    return msgspec.json.encode(
        {"cluster": "farm", "date": 1_800_000_000_000, "id": 0, "config": {"by": "paul", "text": text}}
    )


class Texts(HTMLParser):
    """The text of a page, and its elements by name."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text = ""
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


async def token(client: httpx.AsyncClient) -> str:
    found = re.search(r'name="token" value="(\w+)"', (await client.get("/")).text)
    return found[1] if found else ""


async def submit(
    client: httpx.AsyncClient, headers: dict[str, str] | None = None, **form: str
) -> httpx.Response:
    origin = str(client.base_url).rstrip("/")
    form = {"farm": "farm", "token": await token(client), **form}
    given = {"Origin": origin, "Sec-Fetch-Site": "same-origin"} if headers is None else headers
    return await client.post("/", data=form, headers=given)


async def test_page_shows_a_level_that_can_be_raised_programs_and_troubles(node: FakeNode, url: str) -> None:
    async with node.http(url, "rita") as client:
        assert "Level" not in Texts((await client.get("/")).text).text
        node.farm.level = {"in_force": 0, "highest": 1, "brings": {"1": EVIL}, "hindered_by": []}
        body = node.farm.status()
        body["members"][1] |= {"version": "0.3.0", "revision": "0123456789ab"}
        body["members"][2] |= {"error": "stuck", "trouble": "stuck", "trouble_since_ms": 50_524_000}
        node.farm.status = lambda: body  # type: ignore[method-assign]
        page = Texts((await client.get("/")).text)
    assert f"0; level 1 can be raised: `garlicfarm farm level raise` (it brings: {EVIL})" in page.text
    assert "0.3.0 (0123456789ab)" in page.text
    assert "stuck since 14:02:04 UTC" in page.text


async def test_page_shows_members_ranking_and_entries_to_a_reader(node: FakeNode, url: str) -> None:
    why = ["eligible: its mode is auto", "publisher since index 1: the role was vacant"]
    node.farm.ranked = [ranked_row(1, publisher=True, why=why)]
    for second, job_lag in enumerate((100, 300)):
        node.farm.commit(status_of(1, job_lag, T0 + 4000 * second))
    node.farm.commit(note("hello"))
    node.farm.commit(b"\xff\x00", ValueType.CONFIGURATION)
    async with node.http(url, "rita") as client:
        answer = await client.get("/")
    page = Texts(answer.text)
    assert answer.status_code == 200
    for text in ("connection refused", "650,000", "because", *why, "hello", "paul", "2.1 ms"):
        assert text in page.text
    assert page.text.count("the farm's Configuration") == 1
    assert {"id": "member-3", "class": "unreachable"} in page.named("tr")
    assert "job lag: 250,000, weight 15 %" in page.text
    assert "remote sensing: not reported, weight 5 %" in page.text
    assert "15 % of the score is measured" in page.text
    assert [rect["height"] for rect in page.named("rect")] == ["6.0", "12.0"]
    trend, curve = page.named("polyline")
    assert trend["points"] == curve["points"]
    for moment in ("08:00:00", "08:00:02", "08:00:04"):
        assert moment in page.text
    first, last = (point.split(",") for point in str(curve["points"]).split())
    assert (first[0], last[0]) == ("0.0", "1000.0")
    assert float(first[1]) < float(last[1]), "more lag, lower score, further down"


def line(index: int, member: int, date_ms: int, score: int = 500_000) -> Line:
    return Line(index, 1, "status", f"member {member}", "", date_ms, member, score)


def places(lines: list[Line], members: int) -> dict[int, list[float]]:
    drawn = plot(lines, [{"id": id_} for id_ in range(1, members + 1)])
    assert drawn is not None
    return {
        curve.member: [float(point.split(",")[0]) for points in curve.lines for point in points.split()]
        for curve in drawn.curves
    }


def test_scores_are_drawn_at_their_time_whatever_one_wrong_clock_says() -> None:
    ahead = 50 * 365 * 86_400_000
    lines = [
        line(2 * second + member, member, T0 + 1000 * second + (ahead if member == 3 else 0))
        for second in (0, 1, 4)
        for member in (3, 1, 2)
    ]
    assert places(lines, 3)[2] == [0, 250, 1000]
    assert places(lines, 3)[3] == [0, 0, 250], "at the time of the others"
    back = [line(1, 1, T0), line(2, 1, T0 - 500), line(3, 1, T0 + 1000)]
    assert places(back, 1) == {1: [0, 0, 1000]}


def test_curve_is_broken_where_a_member_was_silent() -> None:
    """Others post on, so that the time goes on; a lone status is a dot."""
    silent = {*range(30, 50), *range(51, 70)}
    lines = [
        line(3 * second + member, member, T0 + 1000 * second)
        for second in range(101)
        for member in (1, 3, 2)
        if member != 2 or second not in silent
    ]
    drawn = plot(lines, [{"id": 1}, {"id": 2}, {"id": 3}])
    assert drawn is not None
    steady, other, _ = drawn.curves
    assert [len(points.split()) for points in steady.lines] == [101]
    ends = [(points.split()[0], points.split()[-1]) for points in other.lines]
    assert [[float(point.split(",")[0]) for point in pair] for pair in ends] == [
        [0, 290],
        [500, 500],
        [700, 1000],
    ]


def test_scores_of_one_moment_are_no_curve() -> None:
    assert plot([line(1, 1, T0), line(2, 1, T0)], [{"id": 1}]) is None
    assert plot([], [{"id": 1}]) is None


def test_axis_of_scores_has_times_and_for_more_than_a_day_dates() -> None:
    for span, ticks in ((4000, ["08:00:00", "08:00:04"]), (86_400_000, ["15 Jan 08:00", "16 Jan 08:00"])):
        drawn = plot([line(1, 1, T0), line(2, 1, T0 + span)], [{"id": 1}])
        assert drawn is not None
        assert [text for _, text in (drawn.ticks[0], drawn.ticks[-1])] == ticks


async def test_events_are_shown_newest_first_and_explain_the_publisher(node: FakeNode, url: str) -> None:
    rows = [
        ranked_row(2, publisher=True, reason="publisher since index 9: the one before was no longer eligible")
    ]
    node.farm.ranking = lambda **_: {"since": 9, "members": rows}  # type: ignore[method-assign]
    none = {"publisher": None, "previous": None, "because": ""}
    taken = {"publisher": 2, "previous": 1, "because": "ineligible"}
    node.farm.events = [
        {"index": 5, "date_ms": T0, "text": "member 3 is back", **none},
        {"index": 9, "date_ms": T0 + 1000, "text": "member 1 lost, 2 took over", **taken},
    ]
    async with node.http(url, "rita") as client:
        text = " ".join(Texts((await client.get("/")).text).text.split())
    later, earlier = "08:00:01 member 1 lost, 2 took over", "08:00:00 member 3 is back"
    assert text.index(later) < text.index(earlier)
    assert "took over from 1 at index 9 (no longer eligible)" in text
    assert "the one before" not in text


async def test_unreachable_publisher_has_no_mark_and_a_lost_majority_counts(node: FakeNode, url: str) -> None:
    whole = node.farm.status()
    whole["members"][0] |= {"publisher": False}
    whole["members"][2] |= {"publisher": True, "last_contact_s": 3000.0}
    whole |= {"publisher": 3}
    node.farm.status = lambda: whole  # type: ignore[method-assign]
    async with node.http(url, "rita") as client:
        page = Texts((await client.get("/")).text)
        assert not [mark for mark in page.named("span") if mark.get("class") == "mark publisher"]
        assert "Publishermember 3 (lost)" in " ".join(page.text.split())
        whole |= {
            "quorum": False,
            "needed": 2,
            "leader": None,
            "leader_lost": {"id": 3, "date_ms": 50_524_000},
        }
        page = Texts((await client.get("/")).text)
    assert not [mark for mark in page.named("span") if mark.get("class") == "mark publisher"]
    text = " ".join(page.text.split())
    assert "Publishernone (member 3 was named)" in text
    assert "Quorumno: lost leader 3 at 14:02:04 UTC Needed2 more" in text
    assert "14:02:04 leader 3 lost, and no other since" in text
    assert "Can lose" not in text


async def test_last_contact_is_that_of_a_leader_and_its_followers(node: FakeNode, url: str) -> None:
    whole = {**node.farm.status(), "leader": 2}
    for member in whole["members"]:
        member["last_contact_s"] = 10.0 * member["id"]
    node.farm.status = lambda: whole  # type: ignore[method-assign]
    async with node.http(url, "rita") as client:
        page = Texts((await client.get("/")).text).text
    assert ("10.0 s" in page, "20.0 s" in page, "30.0 s" in page) == (False, True, False)


async def test_page_says_whether_other_members_reach_the_publishers_leaf(node: FakeNode, url: str) -> None:
    leaf = {"hash": EVIL, "seen": [{"by": 2, "ok": False, "ms": 15_000}]}
    unmeasured = {"hash": "unmeasured", "seen": None}
    node.farm.ranking = lambda **_: {  # type: ignore[method-assign]
        "since": 1,
        "publisher": 1,
        "members": [ranked_row(1, publisher=True)],
        "publication": {"last_published_ms": T0, "problems": [], "leaves": [leaf, unmeasured]},
    }
    async with node.http(url, "rita") as client:
        text = Texts((await client.get("/")).text).text
    assert f"Leaf {EVIL} of member 1: not confirmed by any other member; not reached by member 2." in text
    assert "unmeasured" not in text


async def test_page_has_the_streams_of_the_nodes_publisher_and_what_was_refused(
    node: FakeNode, url: str
) -> None:
    streams = {"streams": {"open": 3, "most": 256}, "refused": {EVIL: 1200}}
    rows = [{"plugin": "hooks", "state": "standby"}, {"plugin": "i2cp", "state": "publishing", **streams}]
    whole = {**node.farm.status(), "publishers": rows}
    node.farm.status = lambda: whole  # type: ignore[method-assign]
    node.farm.ranking = lambda **_: {  # type: ignore[method-assign]
        "since": 1,
        "publisher": 1,
        "members": [ranked_row(1, publisher=True)],
    }
    async with node.http(url, "rita") as client:
        text = Texts((await client.get("/")).text).text
    assert f"Publisher i2cp of this node, publishing: 3 of 256 streams, refused: {EVIL} 1,200." in text
    assert "Publisher hooks" not in text


async def test_members_have_the_days_that_their_offline_keys_last(node: FakeNode, url: str) -> None:
    now_ms = time.time_ns() // 1_000_000
    day_ms = 86_400_000
    expiries = {"1": now_ms + 90 * day_ms + 5000, "2": now_ms + 13 * day_ms + 5000, "3": now_ms - 1}
    status = node.farm.status()
    node.farm.status = lambda: status  # type: ignore[method-assign]

    async def shown() -> list[tuple[str, bool]]:
        async with node.http(url, "rita") as client:
            html = (await client.get("/")).text
        cells = re.findall(r'<td class="n( bad)?" data-label="Keys">(.*?)</td>', html)
        return [(text, bool(bad)) for bad, text in cells]

    assert await shown() == []  # no such column in a farm of the application log
    status["key_expiries"] = expiries
    assert await shown() == [("90 days", False), ("13 days", True), ("expired", True)]
    status["key_expiries"] = {}
    assert await shown() == [("–", False)] * 3


async def test_page_says_when_the_publisher_last_published_and_what_is_wrong(node, url):
    publication: dict[str, Any] = {"last_published_ms": 0, "problems": ["member 2 waits"]}
    node.farm.ranking = lambda **_: {  # type: ignore[method-assign]
        "since": 1,
        "members": [],
        "publication": publication,
    }
    async with node.http(url, "rita") as client:
        assert "never; member 2 waits" in Texts((await client.get("/")).text).text
        publication |= {"last_published_ms": T0, "problems": []}
        assert "2027-01-15 08:00:00" in Texts((await client.get("/")).text).text


async def test_page_says_that_the_disk_hangs(node: FakeNode, url: str) -> None:
    async with node.http(url, "rita") as client:
        assert "Disk" not in (await client.get("/")).text
        node.farm.disk_hangs_s = 130.0
        assert "silent for 2 min" in Texts((await client.get("/")).text).text


async def test_page_says_what_is_wrong_with_the_farm(node: FakeNode, url: str) -> None:
    body = {**node.farm.status(), "problems": ["no member publishes: no member is eligible"]}
    async with node.http(url, "rita") as client:
        assert "Problem" not in (await client.get("/")).text
        node.farm.status = lambda: body  # type: ignore[method-assign]
        assert "no member publishes: no member is eligible" in Texts((await client.get("/")).text).text


async def test_page_shows_the_feeds_of_the_node_and_what_to_do_about_them(node: FakeNode, url: str) -> None:
    async with node.http(url, "rita") as client:
        assert "Feeds" not in (await client.get("/")).text
        files = {"name": "files", "plugin": "file", "index": None, "lag": 1200}
        node.farm.feeds = [
            {"name": "idle", "plugin": "x", "state": "running", "index": 7, "lag": 0, "problem": None},
            files | {"state": "failed", "problem": "<b>: No space left on device"},
        ]
        text = " ".join(Texts((await client.get("/")).text).text.split())
        assert "idle running 7 0 files failed – 1,200 <b>: No space left on device; fix that;" in text
        node.farm.feeds = [files | {"state": "running", "problem": "it has passed nothing on for 60 s"}]
        text = " ".join(Texts((await client.get("/")).text).text.split())
        assert "files blocked – 1,200 it has passed nothing on for 60 s; check its" in text


@pytest.mark.parametrize("user", ["rita", "paul", "anna"])
async def test_forms_are_shown_to_admins_alone(node: FakeNode, url: str, user: str) -> None:
    async with node.http(url, user) as client:
        page = Texts((await client.get("/")).text)
    forms = page.named("form")
    assert len(forms) == (5 if user == "anna" else 0)
    assert all(form["method"] == "post" for form in forms)
    assert bool(page.named("button")) is (user == "anna")


async def test_contents_are_text_whatever_they_are(node: FakeNode, url: str) -> None:
    for entry in (note(EVIL), EVIL.encode(), b"\xff\xfe<b>", b'{"cluster":"<script>"}'):
        node.farm.commit(entry)
    node.farm.url_of_leader = "javascript:alert(1)"
    members = node.farm.status()["members"]
    members[0] |= {"error": EVIL, "version": EVIL, "endpoint": EVIL}
    whole = {**node.farm.status(), "members": members}
    node.farm.status = lambda: whole  # type: ignore[method-assign]
    async with node.http(url, "anna") as client:
        answer = await client.get("/")
    page = Texts(answer.text)
    assert page.named("script") == [{"src": "/static/dashboard.js", "defer": None}]
    assert page.named("b") == []
    assert page.text.count("<script>document.title = 'owned'</script>") == 5


async def test_page_needs_nothing_from_elsewhere_and_runs_no_inline_script(node: FakeNode, url: str) -> None:
    node.farm.commit(status_of(1))
    node.farm.commit(status_of(1))
    async with node.http(url, "anna") as client:
        answer = await client.get("/")
        page = Texts(answer.text)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        for _, attributes in page.elements:
            assert not [name for name in attributes if name == "style" or name.startswith("on")]
            for name in ("src", "href", "action"):
                assert re.match(r"/(?!/)|data:,", attributes.get(name) or "/")
        for part in ("dashboard.js", "dashboard.css"):
            assert (await client.get(f"/static/{part}")).status_code == 200
            assert not re.search(r"https?:|url\(|@import", (await client.get(f"/static/{part}")).text)
        assert (await client.get("/static/users")).status_code == 404


@pytest.mark.parametrize("path", ["/", "/static/dashboard.js"])
async def test_stranger_is_asked_to_log_in(node: FakeNode, url: str, path: str) -> None:
    async with node.http(url, "anna") as client:
        assert (await client.get(path, auth=None)).status_code == 401


@pytest.mark.parametrize(
    ("form", "entry"),
    [
        ({"action": "override", "member": "3", "mode": "off"}, ("override", {"member": 3, "mode": "off"})),
        ({"action": "override", "member": "3", "mode": ""}, ("override", {"member": 3, "mode": None})),
        ({"action": "exclude", "hash": " abc "}, ("exclude", {"hash": "abc"})),
        ({"action": "include", "hash": "abc"}, ("include", {"hash": "abc"})),
        ({"action": "publish"}, ("publish", {})),
        (
            {"action": "ban", "hash": f" {B32} ", "hours": ""},
            ("ban", {"hash": HASH, "until_ms": None}),
        ),
        ({"action": "unban", "hash": HASH}, ("unban", {"hash": HASH})),
        ({"action": "disallow", "hash": B32}, ("disallow", {"hash": HASH})),
    ],
)
async def test_form_of_an_admin_commits_an_administrative_entry(node, url, form, entry):
    async with node.http(url, "anna") as client:
        answer = await submit(client, None, **form)
        assert (answer.status_code, answer.headers["location"]) == (303, "/?farm=farm&index=1")
        assert "Done: committed at index 1." in (await client.get(answer.headers["location"])).text
    assert node.farm.log[0].value == repr((*entry, "anna")).encode()


async def test_ban_of_an_hour_is_one_from_now_on(node: FakeNode, url: str) -> None:
    async with node.http(url, "anna") as client:
        before_ms = time.time_ns() // 1_000_000
        await submit(client, action="ban", hash=B32, hours="1")
        after_ms = time.time_ns() // 1_000_000
        for wrong in ({"hash": "site.i2p", "hours": "1"}, {"hash": B32, "hours": "2"}, {"hash": B32}):
            assert (await submit(client, None, action="ban", **wrong)).status_code == 400
    ((action, args, _),) = [ast.literal_eval(entry.value.decode()) for entry in node.farm.log]
    assert (action, args["hash"]) == ("ban", HASH)
    assert before_ms + 3_600_000 <= args["until_ms"] <= after_ms + 3_600_000


@pytest.mark.parametrize(("user", "is_admin"), [("anna", True), ("rita", False)])
async def test_lists_of_clients_are_counted_for_all_and_shown_to_admins(node, url, user, is_admin):
    by = {"by": "<b>alice", "date": T0, "index": 7, "until_ms": None}
    banned = {encode(number.to_bytes(32, "big")): by for number in range(30)}
    banned[HASH] = by | {"until_ms": 1}
    body = node.farm.policy() | {"clients": {"banned": banned, "allowed": {HASH: by}}}
    node.farm.policy = lambda: body
    async with node.http(url, user) as client:
        text = (await client.get("/")).text
    assert "Clients: 30 banned, 1 on the access list" in text
    assert text.count("<td>banned</td>") == 25 * is_admin
    assert ("<code>garlicfarm publish clients</code> lists all" in text) == is_admin
    assert text.count('name="action" value="unban"') == 25 * is_admin
    assert ("&lt;b&gt;alice" in text) == is_admin
    body["clients"] = {"banned": {}, "allowed": {HASH: by}}
    async with node.http(url, user) as client:
        text = (await client.get("/")).text
    assert "Clients: 0 banned, 1 on the access list" in text
    assert (B32 in text) == is_admin


async def test_forms_change_members_and_leader(node: FakeNode, url: str) -> None:
    async with node.http(url, "anna") as client:
        unsure = await submit(client, action="remove", member="3")
        assert (unsure.status_code, node.farm.changes) == (400, [])
        assert (await submit(client, action="remove", member="3", sure="yes")).status_code == 303
        assert node.farm.changes == [("remove", 3, "", False, "anna")]
        answer = await submit(client, action="stepdown", member="0")
        assert answer.headers["location"] == "/?farm=farm&leader=2"
        assert "the leader is now member 2" in (await client.get("/?farm=farm&leader=2")).text


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "null"},
        {"Origin": "https://evil.example"},
        {"Origin": "OURS", "Sec-Fetch-Site": "same-site"},
        {"Origin": "OURS", "Sec-Fetch-Site": "cross-site"},
    ],
    ids=["no origin", "null", "elsewhere", "same site", "cross site"],
)
async def test_form_from_another_page_is_refused_even_with_the_token(node, url, headers):
    given = {name: url if value == "OURS" else value for name, value in headers.items()}
    async with node.http(url, "anna") as client:
        assert await token(client)
        answer = await submit(client, given, action="override", member="3", mode="off")
    assert (answer.status_code, node.farm.log) == (403, [])


@pytest.mark.parametrize("forged", ["", "0" * 64, "ä", "another's", "another process's"])
async def test_form_without_the_users_token_of_this_process_is_refused(node, url, forged):
    node.users.add("bert", "admin", "bert's word")
    async with node.http(url, "anna") as client:
        if forged == "another's":
            bert = httpx.DigestAuth("bert", "bert's word")
            found = re.search(r'name="token" value="(\w+)"', (await client.get("/", auth=bert)).text)
            assert found is not None
            forged = found[1]
        elif forged == "another process's":
            async with node.running() as other, node.http(other, "anna") as there:
                forged = await token(there)
        answer = await submit(client, token=forged, action="override", member="3", mode="off")
        assert (answer.status_code, node.farm.log) == (403, [])
        assert "Load the page" in answer.text
        assert (await submit(client, action="override", member="3", mode="off")).status_code == 303


@pytest.mark.parametrize("user", ["rita", "paul"])
async def test_forged_action_of_who_is_no_admin_is_refused(node: FakeNode, url: str, user: str) -> None:
    async with node.http(url, "anna") as admin, node.http(url, user) as client:
        answer = await submit(client, token=await token(admin), action="stepdown", member="0")
    assert (answer.status_code, node.farm.log) == (403, [])


async def test_action_of_who_is_no_admin_any_more_is_refused(node: FakeNode, url: str) -> None:
    async with node.http(url, "anna") as client:
        own = await token(client)
        node.users.add("anna", "writer", PASSWORDS["anna"][1])
        answer = await submit(client, token=own, action="stepdown", member="0")
    assert (answer.status_code, node.farm.log) == (403, [])
    assert "needs the role admin" in answer.text


async def test_get_changes_nothing(node: FakeNode, url: str) -> None:
    async with node.http(url, "anna") as client:
        form = {"farm": "farm", "token": await token(client), "action": "stepdown", "member": "0"}
        assert (await client.get("/", params=form, headers={"Origin": url})).status_code == 200
    assert node.farm.log == []


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"action": "stop"},
        {"action": "override", "member": "x"},
        {"action": "stepdown", "member": "9" * 99},
    ],
)
async def test_form_that_is_not_filled_in_is_refused(node: FakeNode, url: str, form: dict[str, str]) -> None:
    async with node.http(url, "anna") as client:
        answer = await submit(client, None, **form)
    assert (answer.status_code, node.farm.log) == (400, [])


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (EntryRefused("config.admin.args.hash", "not <i>a hash"), 422, "not &lt;i&gt;a hash"),
        (NoQuorum("no leader"), 503, "Nothing was appended."),
        (NotLeader(2, "ssl://b.example:1"), 421, 'href="https://b.example:27151"'),
    ],
)
async def test_refused_form_says_what_is_wrong_and_what_to_do(node, url, error, code, text):
    node.farm.post_error = error
    node.farm.url_of_leader = "https://b.example:27151"
    async with node.http(url, "anna") as client:
        answer = await submit(client, action="exclude", hash="abc")
    assert answer.status_code == code
    assert text in answer.text
    assert answer.headers["content-security-policy"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.0021, "2.1 ms"),
        (0.255, "255 ms"),
        (5.74, "5.7 s"),
        (3600, "60 min"),
        (86_400, "24 h"),
        (1e7, "116 d"),
    ],
)
def test_durations_have_the_unit_that_is_read_best(value: float | None, text: str) -> None:
    assert duration_text(value) == text


@pytest.mark.parametrize("application", ["publisher", "one of a third party"])
async def test_page_of_a_farm_that_ranks_its_members_shows_the_ranking_and_reads_their_statuses(
    node: FakeNode, url: str, application: str
) -> None:
    node.farm.application = application
    node.farm.commit(note("read as a note"))
    async with node.http(url, "anna") as client:
        whole = Texts((await client.get("/")).text)
        node.farm.ranked = []
        bare = Texts((await client.get("/")).text)
    ranked = ("Who publishes", "650,000", "Override who may publish", "Statuses are not listed")
    assert [text in whole.text for text in ranked] == [True] * 4
    assert [text in bare.text for text in ranked] == [False] * 4
    assert (len(whole.named("form")), len(bare.named("form"))) == (5, 2)
    rows = [[line.strip() for line in page.text.splitlines() if line.strip()] for page in (whole, bare)]
    assert [("note" in row, "paul" in row, "entry" in row) for row in rows] == [
        (True, True, False),
        (False, False, True),
    ]


async def test_farms_have_a_page_each(node: FakeNode, url: str) -> None:
    node.farms["other"] = type(node.farm)("other")
    node.farms["other"].application = "log"
    node.farms["other"].ranked = []
    node.farms["other"].commit(b"any bytes")
    async with node.http(url, "anna") as client:
        page = Texts((await client.get("/?farm=other")).text)
        assert "any bytes" in page.text
        assert "Who publishes" not in page.text
        assert [link["href"] for link in page.named("a")] == ["/?farm=farm", "/?farm=other"]
        none = await client.get("/?farm=none")
        assert (none.status_code, none.headers["Content-Type"]) == (404, "text/html; charset=utf-8")
        assert "no farm of that name" in Texts(none.text).text
        assert {link["href"] for link in Texts(none.text).named("a")} == {"/"}
