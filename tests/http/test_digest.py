"""Digest on its own: RFC vectors, what a verifier lets in, what it remembers, what an initiator caches."""

from __future__ import annotations

import hashlib
import tracemalloc
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from garlicfarm.errors import LocalProtocolError, RemoteProtocolError
from garlicfarm.http import digest
from garlicfarm.http.digest import (
    ALGORITHMS,
    NONCE_LIFETIME_S,
    REALM,
    WINDOW,
    ChallengeCache,
    DigestVerifier,
    Refused,
    Verified,
    digest_response,
    ha1,
    parse_header,
)

TARGET = "/GarlicFarm/farm/1/websocket"
KEY = b"k" * 32
NOW_S = 1000.0

# RFC 7616 §3.9.1, with its line breaks taken out.
RFC = {
    "nonce": "7ypf/xlj9XXwfDPEoM4URrv/xwf94BcCAzFZH4GiTo0v",
    "nc": "00000001",
    "cnonce": "f2/wE4q74E6zIJEtWaHKaf5wv/H5QzzpXusqGemxURZJ",
    "uri": "/dir/index.html",
}
RFC_RESPONSES = {
    "MD5": "8ca523f5e9506fed4657c9700eebdbec",
    "SHA-256": "753927fa0e85d155564e2e272a28d1802ca10daf4496794697cf8db5856cb6c1",
}
RFC_CHALLENGE = (
    'Digest realm="http-auth@example.org", qop="auth, auth-int", algorithm={}, '
    'nonce="7ypf/xlj9XXwfDPEoM4URrv/xwf94BcCAzFZH4GiTo0v", '
    'opaque="FQhe/qaU925kfnzjCev0ciny7QMkPqMAFRtzCUYo5tdS"'
)


def hashes(user: str, *passwords: str) -> dict[str, list[str]]:
    return {a: [ha1(a, user, REALM, password) for password in passwords] for a in ALGORITHMS}


USERS = {"alice": hashes("alice", "right"), "rotating": hashes("rotating", "new", "old")}


def lookup(user: str) -> Mapping[str, Sequence[str]]:
    return USERS.get(user, {})


def make_verifier(key: bytes = KEY, algorithms: Sequence[str] = ALGORITHMS) -> DigestVerifier:
    return DigestVerifier(REALM, algorithms, key, lookup)


def login(
    challenges: Sequence[str], user: str = "alice", password: str = "right", method: str = "GET"
) -> str:
    """Credentials for a challenge, with nc 1."""
    cache = ChallengeCache()
    cache.learn(("h", "f", user), challenges)
    made = cache.authorization(("h", "f", user), method=method, target=TARGET, password=password, cnonce="c0")
    return made.header


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_response_of_the_rfc_example_equals_the_rfc(algorithm: str) -> None:
    secret = ha1(algorithm, "Mufasa", "http-auth@example.org", "Circle of Life")
    assert digest_response(algorithm, secret, method="GET", **RFC) == RFC_RESPONSES[algorithm]


def test_cache_given_the_rfc_challenges_answers_the_strongest_with_the_rfc_response() -> None:
    cache = ChallengeCache()
    key = ("www.example.org", "", "Mufasa")
    cache.learn(key, [RFC_CHALLENGE.format("MD5"), RFC_CHALLENGE.format("SHA-256")])
    made = cache.authorization(
        key, method="GET", target=RFC["uri"], password="Circle of Life", cnonce=RFC["cnonce"]
    )
    assert parse_header(made.header) == [
        (
            "digest",
            {
                "username": "Mufasa",
                "realm": "http-auth@example.org",
                **RFC,
                "algorithm": "SHA-256",
                "response": RFC_RESPONSES["SHA-256"],
                "qop": "auth",
                "opaque": "FQhe/qaU925kfnzjCev0ciny7QMkPqMAFRtzCUYo5tdS",
            },
        )
    ]


def test_challenges_come_md5_first_with_one_nonce() -> None:
    first, second = make_verifier().challenges(NOW_S, b"r" * 16)
    assert first.endswith("algorithm=MD5")
    assert second == first.replace("=MD5", "=SHA-256")
    assert first.startswith('Digest realm="restricted", qop="auth", nonce="')


@pytest.mark.parametrize("algorithms", [("MD5",), ("SHA-256",), ALGORITHMS])
def test_verify_of_the_right_password_names_the_user_and_proves_the_server(algorithms: Sequence[str]) -> None:
    verifier = make_verifier(algorithms=algorithms)
    cache = ChallengeCache()
    cache.learn(("h", "f", "alice"), verifier.challenges(NOW_S, b"r" * 16))
    made = cache.authorization(
        ("h", "f", "alice"), method="GET", target=TARGET, password="right", cnonce="c0"
    )
    verdict = verifier.verify("GET", TARGET, made.header, NOW_S)
    assert isinstance(verdict, Verified)
    assert verdict.user == "alice"
    assert parse_header(verdict.authentication_info) == [
        ("", {"rspauth": made.rspauth, "qop": "auth", "cnonce": "c0", "nc": "00000001"})
    ]


@pytest.mark.parametrize("password", ["new", "old"])
def test_verify_during_a_rotation_takes_either_password(password: str) -> None:
    verifier = make_verifier()
    credentials = login(verifier.challenges(NOW_S, b"r" * 16), "rotating", password)
    assert isinstance(verifier.verify("GET", TARGET, credentials, NOW_S), Verified)


@pytest.mark.parametrize(
    ("user", "password"), [("alice", "wrong"), ("alice", ""), ("nobody", "right"), ("rotating", "right")]
)
def test_verify_of_wrong_password_or_unknown_user_counts_as_failed(user: str, password: str) -> None:
    verifier = make_verifier()
    credentials = login(verifier.challenges(NOW_S, b"r" * 16), user, password)
    assert verifier.verify("GET", TARGET, credentials, NOW_S) == Refused(failed=True)


@pytest.mark.parametrize("user", ["alice", "nobody", "rotating"])
def test_verify_does_the_same_hashes_whoever_asks(user: str, monkeypatch: pytest.MonkeyPatch) -> None:
    verifier = make_verifier()
    credentials = login(verifier.challenges(NOW_S, b"r" * 16), user, "wrong")
    calls = 0
    real = hashlib.new

    def counting(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        return real(*arguments, **options)

    monkeypatch.setattr(hashlib, "new", counting)
    assert verifier.verify("GET", TARGET, credentials, NOW_S) == Refused(failed=True)
    assert calls == 5  # two candidates of two hashes each, and the dummy's HA1


@pytest.mark.parametrize("user", ["alice", "nobody"])
def test_verify_never_accepts_the_stand_in_for_unknown_users(user: str, monkeypatch) -> None:
    tried: list[str] = []

    def noting(algorithm: str, ha1: str, **proof: str) -> str:
        tried.append(ha1)
        return digest_response(algorithm, ha1, **proof)

    monkeypatch.setattr(digest, "digest_response", noting)
    verifier = make_verifier()
    credentials = login(verifier.challenges(NOW_S, b"r" * 16)[:1], user, "wrong")
    assert verifier.verify("GET", TARGET, credentials, NOW_S) == Refused(failed=True)
    proof = {"nonce": new_nonce(verifier, NOW_S), "nc": "00000001", "cnonce": "c", "uri": TARGET}
    response = digest_response("MD5", tried[-1], method="GET", **proof)
    header = (
        f'Digest username="{user}", realm="{REALM}", nonce="{proof["nonce"]}", uri="{TARGET}", '
        f'response="{response}", qop=auth, nc=00000001, cnonce="c"'
    )
    assert verifier.verify("GET", TARGET, header, NOW_S) == Refused(failed=True)


def test_verify_for_another_method_or_target_fails() -> None:
    verifier = make_verifier()
    challenges = verifier.challenges(NOW_S, b"r" * 16)
    assert verifier.verify("POST", TARGET, login(challenges), NOW_S) == Refused(failed=True)
    assert verifier.verify("GET", TARGET + "2", login(challenges), NOW_S) == Refused()
    lied = login(challenges).replace(TARGET, TARGET + "2")
    assert verifier.verify("GET", TARGET + "2", lied, NOW_S) == Refused(failed=True)


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Basic YWxpY2U6cmlnaHQ=",
        "Digest",
        "Digest username=alice",
        "Bearer a=b",
        'Digest username="alice',
        "\xff\xfe=,=,",
    ],
)
def test_verify_of_what_is_no_digest_is_no_failed_password(authorization: str | None) -> None:
    assert make_verifier().verify("GET", TARGET, authorization, NOW_S) == Refused()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("qop=auth", "qop=auth-int"),
        ("algorithm=SHA-256", "algorithm=SHA-512-256"),
        ('realm="restricted"', 'realm="other"'),
        ("nc=00000001", "nc=1"),
        ("nc=00000001", "nc=0000000g"),
        ('username="alice", ', ""),
        ("qop=auth", "qop=auth, qop=auth"),
        ("Digest ", "Digest x=y, Digest "),
    ],
)
def test_verify_of_malformed_digest_is_no_failed_password(old: str, new: str) -> None:
    verifier = make_verifier()
    credentials = login(verifier.challenges(NOW_S, b"r" * 16))
    assert old in credentials
    assert verifier.verify("GET", TARGET, credentials.replace(old, new), NOW_S) == Refused()


def test_verify_of_a_disabled_algorithm_refuses() -> None:
    credentials = login(make_verifier(algorithms=["MD5"]).challenges(NOW_S, b"r" * 16))
    assert make_verifier(algorithms=["SHA-256"]).verify("GET", TARGET, credentials, NOW_S) == Refused()


def test_verify_of_a_replay_is_refused_as_stale() -> None:
    verifier = make_verifier()
    credentials = login(verifier.challenges(NOW_S, b"r" * 16))
    assert isinstance(verifier.verify("GET", TARGET, credentials, NOW_S), Verified)
    assert verifier.verify("GET", TARGET, credentials, NOW_S) == Refused(stale=True)


def test_nonce_lives_two_hours_and_is_stale_afterwards() -> None:
    verifier = make_verifier()
    cache = ChallengeCache()
    key = ("h", "f", "alice")
    cache.learn(key, verifier.challenges(NOW_S, b"r" * 16))
    for age_s, expected in [
        (3600.0, Verified),
        (NONCE_LIFETIME_S, Verified),
        (NONCE_LIFETIME_S + 0.01, Refused),
    ]:
        made = cache.authorization(key, method="GET", target=TARGET, password="right", cnonce="c0")
        verdict = verifier.verify("GET", TARGET, made.header, NOW_S + age_s)
        assert isinstance(verdict, expected)
    assert verdict == Refused(stale=True)


def test_nonce_of_an_earlier_process_is_stale_but_a_wrong_password_over_it_is_failed() -> None:
    challenges = make_verifier(b"before" * 4).challenges(NOW_S, b"r" * 16)
    verifier = make_verifier()
    assert verifier.verify("GET", TARGET, login(challenges), NOW_S) == Refused(stale=True)
    wrong = login(challenges, password="wrong")
    assert verifier.verify("GET", TARGET, wrong, NOW_S) == Refused(failed=True)


@pytest.mark.parametrize("nonce", ["", "x", "3e8.aa.bb", "fffffffff.72.", "3e8.72." + "0" * 32])
def test_made_up_nonce_is_stale_for_who_knows_the_password(nonce: str) -> None:
    challenge = f'Digest realm="{REALM}", qop="auth", nonce="{nonce}", algorithm=MD5'
    assert make_verifier().verify("GET", TARGET, login([challenge]), NOW_S) == Refused(stale=True)


def use(verifier: DigestVerifier, nonce: str, count: int, now_s: float = NOW_S) -> Verified | Refused:
    """Right credentials for alice under any count."""
    proof = {"nonce": nonce, "nc": f"{count:08x}", "cnonce": "c", "uri": TARGET}
    response = digest_response("MD5", USERS["alice"]["MD5"][0], method="GET", **proof)
    header = (
        f'Digest username="alice", realm="{REALM}", nonce="{nonce}", uri="{TARGET}", '
        f'response="{response}", qop=auth, nc={proof["nc"]}, cnonce="c"'
    )
    return verifier.verify("GET", TARGET, header, now_s)


def new_nonce(verifier: DigestVerifier, now_s: float, random: bytes = b"r" * 16) -> str:
    return parse_header(verifier.challenges(now_s, random)[0])[0][1]["nonce"]


def test_missing_algorithm_means_md5() -> None:
    verifier = make_verifier()
    assert isinstance(use(verifier, new_nonce(verifier, NOW_S), 1), Verified)


@given(
    st.lists(
        st.one_of(
            st.integers(0, 2 * WINDOW), st.integers(0, 2**32 - 1), st.sampled_from([2**32 - 1, 2**32 - 2])
        ),
        max_size=60,
    )
)
def test_counts_on_one_nonce_are_accepted_once_and_within_the_window(counts: list[int]) -> None:
    verifier = make_verifier()
    nonce = new_nonce(verifier, NOW_S)
    seen: set[int] = set()
    for count in counts:
        fits = count >= 1 and count not in seen and count > max(seen, default=0) - WINDOW
        assert isinstance(use(verifier, nonce, count), Verified) is fits
        if fits:
            seen.add(count)


def test_only_right_digests_with_a_count_take_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest, "MAX_WINDOWS", 1)
    verifier = make_verifier()
    first, second = (new_nonce(verifier, NOW_S, random * 16) for random in (b"r", b"s"))
    challenges = verifier.challenges(NOW_S, b"t" * 16)
    assert isinstance(use(verifier, first, 1), Verified)
    assert use(verifier, second, 0) == Refused(stale=True)
    for wrong in (login(challenges, password="wrong"), login(challenges, user="nobody")):
        assert verifier.verify("GET", TARGET, wrong, NOW_S) == Refused(failed=True)
    assert isinstance(use(verifier, first, 2), Verified)
    assert isinstance(use(verifier, second, 1), Verified)
    assert use(verifier, first, 3) == Refused(stale=True)


def test_evicted_window_leaves_a_floor_so_that_no_replay_gets_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest, "MAX_WINDOWS", 3)
    verifier = make_verifier()
    nonces = [new_nonce(verifier, NOW_S + second) for second in range(6)]
    later_s = NOW_S + 10
    for nonce in nonces:
        assert isinstance(use(verifier, nonce, 1, later_s), Verified)
    assert [use(verifier, nonce, 1, later_s) for nonce in nonces] == [Refused(stale=True)] * 6
    # Evicted nonces are stale under any count, kept ones go on.
    assert [isinstance(use(verifier, nonce, 2, later_s), Verified) for nonce in nonces] == [False] * 3 + [
        True
    ] * 3
    # A nonce below the floor that was never used is stale as well; one issued now gets in.
    assert use(verifier, new_nonce(verifier, NOW_S + 1, b"s" * 16), 1, later_s) == Refused(stale=True)
    assert isinstance(use(verifier, new_nonce(verifier, later_s), 1, later_s), Verified)


def test_login_looks_at_few_rows_of_a_full_table(monkeypatch: pytest.MonkeyPatch) -> None:
    class Time(int):
        """When a nonce was issued; counts how often two of them are compared."""

        compared = 0

        def __lt__(self, other: int) -> bool:
            Time.compared += 1
            return super().__lt__(other)

        __hash__ = int.__hash__

    monkeypatch.setattr(digest, "MAX_WINDOWS", 1000)
    verifier = make_verifier()
    for number in range(1000):
        assert isinstance(use(verifier, new_nonce(verifier, NOW_S + number), 1, NOW_S + 2000), Verified)
    monkeypatch.setattr(digest, "int", Time, raising=False)
    for number in range(1000, 1100):
        assert isinstance(use(verifier, new_nonce(verifier, NOW_S + number), 1, NOW_S + 2000), Verified)
    assert 0 < Time.compared < 100 * 40


def test_logins_beyond_a_full_table_take_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest, "MAX_WINDOWS", 100)
    verifier = make_verifier()

    def log_in(first: int) -> int:
        for number in range(first, first + 300):
            assert isinstance(use(verifier, new_nonce(verifier, NOW_S + number), 1, NOW_S + 1000), Verified)
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = log_in(0)
        assert log_in(300) - before < 10_000
    finally:
        tracemalloc.stop()


def test_window_for_a_nonce_older_than_all_kept_ones_serves_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest, "MAX_WINDOWS", 2)
    verifier = make_verifier()
    old, *newer = [new_nonce(verifier, NOW_S + second) for second in range(3)]
    for nonce in [*newer, old]:
        assert isinstance(use(verifier, nonce, 1, NOW_S + 5), Verified)
    assert use(verifier, old, 1, NOW_S + 5) == Refused(stale=True)
    assert use(verifier, old, 2, NOW_S + 5) == Refused(stale=True)


def test_verifier_with_an_unknown_algorithm_is_refused() -> None:
    for algorithms in (["SHA-512-256"], []):
        with pytest.raises(LocalProtocolError):
            make_verifier(algorithms=algorithms)


def test_cache_counts_up_and_starts_again_with_a_new_challenge() -> None:
    cache = ChallengeCache()
    key = ("h", "f", "alice")
    assert cache.authorization(key, method="GET", target=TARGET, password="p", cnonce="c") is None
    counts: list[tuple[str, str]] = []
    for nonce in ("one", "one", "two"):
        if nonce == "two" or not counts:
            cache.learn(key, [f'Digest realm="r", nonce="{nonce}", qop="auth"'])
        made = cache.authorization(key, method="GET", target=TARGET, password="p", cnonce="c")
        parameters = parse_header(made.header)[0][1]
        counts.append((parameters["nonce"], parameters["nc"]))
    assert counts == [("one", "00000001"), ("one", "00000002"), ("two", "00000001")]


def test_cache_is_bounded() -> None:
    cache = ChallengeCache()
    for number in range(digest.MAX_CACHED + 5):
        cache.learn((str(number), "f", "u"), ['Digest realm="r", nonce="n", qop="auth"'])
    assert cache.authorization(("0", "f", "u"), method="GET", target="/", password="p", cnonce="c") is None


def test_learn_reads_challenges_joined_in_one_line() -> None:
    joined = (
        'Basic realm="b", Digest realm="r", nonce="1", qop="auth", '
        'DIGEST realm="r", nonce="2", qop=auth, algorithm=SHA-256, stale=TRUE'
    )
    challenge = ChallengeCache().learn(("h", "f", "u"), ["Negotiate", joined])
    assert (challenge.nonce, challenge.algorithm, challenge.stale) == ("2", "SHA-256", True)


@pytest.mark.parametrize(
    "headers",
    [
        [],
        ['Basic realm="r"'],
        ['Digest realm="r", nonce="n"'],
        ['Digest realm="r", nonce="n", qop="auth-int"'],
        ['Digest realm="r", nonce="n", qop="auth", algorithm=MD5-sess'],
        ['Digest realm="r", nonce="n\x01", qop="auth"'],
        ['Digest realm="r\x7f", nonce="n", qop="auth"'],
        ['Digest realm="r", nonce="n", qop="auth", opaque="\t"'],
    ],
)
def test_learn_without_a_usable_challenge_raises(headers: list[str]) -> None:
    with pytest.raises(RemoteProtocolError, match="no usable Digest"):
        ChallengeCache().learn(("h", "f", "u"), headers)


def test_user_name_that_would_break_the_header_is_the_callers_fault() -> None:
    with pytest.raises(LocalProtocolError, match="username"):
        login(make_verifier().challenges(NOW_S, b"r" * 16), user='a", realm="b')


@given(st.text())
def test_verify_of_any_text_refuses_and_never_raises(text: str) -> None:
    verifier = make_verifier()
    assert verifier.verify("GET", TARGET, text, NOW_S) == Refused()
    assert verifier.verify("GET", TARGET, f"Digest {text}", NOW_S) == Refused()


TOKENS = st.text("abcdefgh-", min_size=1)
QUOTED = st.text(st.characters(codec="latin-1", exclude_characters='"\\'))


@given(TOKENS, st.dictionaries(TOKENS, QUOTED, min_size=1))
def test_parse_header_gives_back_what_was_formatted(scheme: str, parameters: dict[str, str]) -> None:
    line = f"{scheme} " + ", ".join(f'{name}="{value}"' for name, value in parameters.items())
    assert parse_header(line) == [(scheme, parameters)]
