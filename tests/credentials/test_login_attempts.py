"""`LoginAttempts` by itself: how wrong passwords delay the next one."""

from __future__ import annotations

import pytest

from garlicfarm.credentials.login_attempts import LONGEST_DELAY_S, LoginAttempts
from garlicfarm.http.digest import Refused, Verified
from garlicfarm.transport import Peer

HERE = Peer("192.0.2.7", True, None)
ELSEWHERE = Peer("192.0.2.8", True, None)
REMEMBERED = 4096
TUNNEL = Peer("127.0.0.1", False, None)


class Passwords:
    """A verifier that takes ``response="right"``."""

    def __init__(self) -> None:
        self.judged = 0

    def challenges(self, now_s: float, random: bytes, *, stale: bool = False) -> list[str]:
        return []

    def verify(self, method: str, target: str, authorization: str | None, now_s: float) -> Verified | Refused:
        self.judged += 1
        return Verified("", "") if "right" in (authorization or "") else Refused(failed=True)


class Tries:
    def __init__(self) -> None:
        self.passwords = Passwords()
        self.attempts = LoginAttempts()

    def __call__(self, name: str, now_s: float, peer: Peer = HERE, word: str = "wrong") -> float | None:
        """What the answer is delayed by; None: not judged."""
        given = f'Digest username="{name}", response="{word}"'
        verdict, wait_s = self.attempts.judge(self.passwords, peer, "GET", "/", given, now_s)
        return None if verdict is None else wait_s


@pytest.fixture
def tries() -> Tries:
    return Tries()


def test_thousand_tries_at_once_are_judged_once(tries: Tries) -> None:
    assert [tries("paul", 0.0) for _ in range(1000)] == [0.25] + [None] * 999
    assert tries.passwords.judged == 1


def test_tries_as_fast_as_the_delays_allow_are_few(tries: Tries) -> None:
    for tick in range(10_000):
        tries("paul", tick / 100)
    assert tries.passwords.judged == 6 + 18  # after 0.25, 0.5 … 4 s, then every 5 s


def test_delay_counts_per_name_and_address(tries: Tries) -> None:
    assert tries("paul", 0.0) == 0.25
    assert tries("paul", 0.1, word="right") is None
    assert tries("anna", 0.1, word="right") == 0.0
    assert tries("paul", 0.1, ELSEWHERE, word="right") == 0.0
    assert tries("paul", 0.25, word="right") == 0.0
    assert tries("paul", 0.25) == 0.5


@pytest.mark.parametrize("name", ["local", "7"])
def test_name_whose_password_a_machine_made_is_always_judged(name: str, tries: Tries) -> None:
    assert [tries(name, 0.0) for _ in range(3)] == [0.25, 0.5, 1.0]
    assert tries(name, 0.0, word="right") == 0.0


def test_tunnel_where_all_share_an_address_locks_nobody_out(tries: Tries) -> None:
    assert [tries("paul", 0.0, TUNNEL) for _ in range(3)] == [0.25] * 3
    assert tries("paul", 0.0, TUNNEL, word="right") == 0.0


def test_guesses_over_all_networks_of_a_site_are_few_and_delay_no_other_site(tries: Tries) -> None:
    def host(network: int, site: int = 0xA) -> Peer:
        return Peer(f"2001:db8:{site:x}:{network:x}::1", True, None)

    for tick in range(60_000):  # each from a /64 of its own, for ten minutes
        tries("paul", tick / 100, host(tick))
    free, doubled = 16, 5  # after these, one every 5 s
    assert free + doubled + 600 / 5 - 3 <= tries.passwords.judged <= free + doubled + 600 / 5 + 1
    tries("paul", 606.0, host(1))
    assert tries("paul", 606.0, host(2), word="right") is None, "one of the same site"
    assert tries("paul", 606.0, host(2, site=0xB), word="right") == 0.0
    assert tries("paul", 606.0, HERE, word="right") == 0.0
    assert tries("anna", 606.0, host(2), word="right") == 0.0


def test_first_wrong_passwords_of_a_site_delay_their_own_network_alone(tries: Tries) -> None:
    guesser = Peer("2001:db8:a:1::1", True, None)
    user = Peer("2001:db8:a:2::1", True, None)
    for second in range(4):
        tries("paul", second * 10.0, guesser)
        assert tries("paul", second * 10.0, guesser, word="right") is None
        assert tries("paul", second * 10.0, user, word="right") == 0.0


def test_failures_are_forgiven_after_a_quarter_of_an_hour(tries: Tries) -> None:
    for now_s in (0.0, 1.0, 2.0):
        tries("paul", now_s)
    assert tries("paul", 902.5) == 0.25


def test_requests_without_a_password_are_neither_counted_nor_refused(tries: Tries) -> None:
    assert tries("paul", 0.0) == 0.25
    for given in (None, "", "Basic cGF1bDp4", "Digest"):
        verdict, _ = tries.attempts.judge(tries.passwords, HERE, "GET", "/", given, 0.1)
        assert verdict is not None


def test_what_is_remembered_is_bounded_in_number_and_size(tries: Tries) -> None:
    for number in range(2 * REMEMBERED):
        tries(f"user{number}", 0.0)
        tries("x" * 10_000 + str(number), 0.0)
    assert tries("x" * 10_000, 0.0) == LONGEST_DELAY_S, "names that no user has count as one"
    assert tries(f"user{REMEMBERED + 1}", 0.0) is None, "remembered"
    assert tries(f"user{REMEMBERED}", 0.0) == 0.25, "forgotten"
