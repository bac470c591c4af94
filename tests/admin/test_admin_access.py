from __future__ import annotations

import logging

import httpx
import pytest
import trio
import trio.testing

from garlicfarm.admin.app import create_app
from garlicfarm.client import AdminClient
from garlicfarm.errors import AuthError
from tests.admin.fake_node import PASSWORDS, FakeNode
from tests.running import wait_until


@pytest.mark.parametrize(("user", "password"), [("paul", "wrong"), ("nobody", "paul's word")])
async def test_wrong_credentials_are_refused_alike_and_counted(node, url, user, password):
    async with AdminClient([url], user=user, password=password, pin=node.pin) as client:
        with pytest.raises(AuthError, match="the user or the password is wrong"):
            await client.node()
    assert node.metrics.registry.get_sample_value("garlicfarm_auth_failures_total", {"farm": ""}) == 1


async def test_wrong_passwords_are_answered_later_each_time_and_right_ones_at_once(node, autojump_clock):
    app = create_app(node, shutdown=trio.Event())  # type: ignore[arg-type]

    async def took_s(address: str, password: str) -> float:
        transport, auth = httpx.ASGITransport(app, client=(address, 1)), httpx.DigestAuth("paul", password)
        async with httpx.AsyncClient(transport=transport, base_url="https://node", auth=auth) as client:
            begun = trio.current_time()
            response = await client.get("/v1/node")
        assert response.status_code == (200 if password == PASSWORDS["paul"][1] else 401)
        return trio.current_time() - begun

    guesses = [await took_s("192.0.2.7", "a guess") for _ in range(7)]
    assert guesses == pytest.approx([0.25, 0.5, 1, 2, 4, 5, 5])
    assert await took_s("192.0.2.7", PASSWORDS["paul"][1]) == pytest.approx(0)
    assert await took_s("192.0.2.8", "a guess") == pytest.approx(0.25)


async def test_no_or_basic_credentials_are_challenged_and_not_counted(node: FakeNode, url: str) -> None:
    async with node.http(url) as client:
        for auth in (None, httpx.BasicAuth("paul", PASSWORDS["paul"][1])):
            response = await client.get("/v1/node", auth=auth)
            assert response.status_code == 401
            assert [c.partition(" ")[0] for c in response.headers.get_list("www-authenticate")] == [
                "Digest",
                "Digest",
            ]
    assert node.metrics.registry.get_sample_value("garlicfarm_auth_failures_total", {"farm": ""}) in (0, None)


async def test_replayed_authorization_is_stale_and_counts_as_no_failure(node: FakeNode, url: str) -> None:
    async with node.http(url) as client:
        first = await client.get("/v1/node", auth=httpx.DigestAuth("rita", PASSWORDS["rita"][1]))
        assert first.status_code == 200
        replay = await client.get(
            "/v1/node", headers={"Authorization": first.request.headers["authorization"]}
        )
        assert replay.status_code == 401
        assert "stale=true" in replay.headers["www-authenticate"]
        elsewhere = {"Authorization": first.request.headers["authorization"]}
        assert (await client.get("/v1/farms", headers=elsewhere)).status_code == 401


async def test_browser_sent_by_a_page_from_elsewhere_is_refused_though_logged_in(node, url):
    async with node.http(url, "paul") as client:
        for origin, status in [(url, 201), ("https://evil.example", 403), ("null", 403)]:
            response = await client.post("/v1/farms/farm/log", content=b"x", headers={"Origin": origin})
            assert response.status_code == status
            assert not [name for name in response.headers if name.startswith("access-control")]
    assert node.farm.commit_index == 1


async def test_users_file_that_others_can_read_lets_nobody_in_and_is_logged(node, url, caplog):
    (node.data_dir / "users").chmod(0o644)
    (node.data_dir / "users").write_text("{}")
    async with node.http(url, "rita") as client:
        response = await client.get("/v1/node")
        assert response.status_code == 503
        assert response.json()["type"] == "garlicfarm:users-unusable"
        assert str(node.data_dir) not in response.text
    fields = [getattr(record, "garlicfarm_fields", {}) for record in caplog.records]
    (cause,) = {told["cause"] for told in fields if told.get("event") == "users-unusable"}
    assert (
        cause == f"{node.data_dir}/users holds secrets, but its mode is 0644: chmod 600 {node.data_dir}/users"
    )


@pytest.mark.parametrize(
    ("host", "token", "sent", "status"),
    [
        ("127.0.0.1", "", None, 200),
        ("[::1]", "", None, 200),
        ("192.0.2.1", "", None, 401),
        ("192.0.2.1", "", "Bearer ", 401),
        ("192.0.2.1", "token", None, 401),
        ("192.0.2.1", "token", "Bearer other", 401),
        ("192.0.2.1", "token", "Bearer token", 200),
        ("192.0.2.1", "token", "bearer token", 200),
    ],
)
@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/readyz"])
async def test_scraper_not_over_loopback_needs_the_token(node, path, host, token, sent, status):
    app = create_app(node, shutdown=trio.Event(), metrics_token=token)  # type: ignore[arg-type]
    transport = httpx.ASGITransport(app)
    headers = {} if sent is None else {"Authorization": sent}
    async with httpx.AsyncClient(transport=transport, base_url=f"https://{host}") as client:
        assert (await client.get(path, headers=headers)).status_code == status


@pytest.mark.curl
async def test_curl_with_digest_gets_in_and_posts(node: FakeNode, url: str) -> None:
    arguments = ["curl", "--silent", "--show-error", "--cacert", str(node.certificate), "--digest"]
    arguments += ["--config", "-", "--data-binary", "from curl", f"{url}/v1/farms/farm/log"]
    done = await trio.run_process(arguments, stdin=b'user = "paul:paul\'s word"', capture_stdout=True)
    assert done.stdout == b'{"index":1,"term":3}'
    assert node.farm.log[0].value == b"from curl"


async def test_log_of_the_program_never_shows_credentials(node, url, caplog):
    caplog.set_level(logging.DEBUG, logger="garlicfarm")
    node.farm.commit(b"x")
    node.farm.read_error = RuntimeError("a defect that is logged")
    async with node.http(url, "rita") as client:
        response = await client.get("/v1/farms/farm/log")
        assert response.status_code == 500
        await wait_until(lambda: "RuntimeError: a defect that is logged" in caplog.text)
        ours = "\n".join(r.getMessage() for r in caplog.records if not r.name.startswith("http"))
        for secret in ("Digest ", "rita's word", response.request.headers["authorization"][-20:]):
            assert secret not in ours
