"""Wrong passwords, and how long they delay the next: one rule for the farm's port and the admin API.

Each wrong password of a name delays its answer, twice as long each time from the same address. Until that
delay is over, no further password is judged for this name from this address, on any connection: to hang up,
or to ask on many connections at once, gains nothing.

Why by name and address: strangers elsewhere can then never lock a user out. A stranger behind the user's own
address can, while the guessing lasts. So the names whose passwords a machine made are always judged, since
nothing guesses those: members' ids, and ``local``, by which an operator gets in on the node's machine.
"""

from __future__ import annotations

from garlicfarm.credentials.users import LOCAL_USER, is_name
from garlicfarm.http.digest import Refused, Verified, parse_header
from garlicfarm.http.upgrade import Verifier
from garlicfarm.transport import Peer, network_of

__all__ = ["LONGEST_DELAY_S", "LoginAttempts"]

LONGEST_DELAY_S = 5.0
_FIRST_DELAY_S = 0.25
_FORGIVEN_AFTER_S = 900.0
_REMEMBERED = 4096


class LoginAttempts:
    """The wrong passwords of late, at most 4096 of them: more cost a guesser longer than the delays.

    :param longest_delay_s: of one wrong password.

    Where addresses tell nothing (``address_is_peer`` False) every password is judged, and a wrong one has
    the first delay: strangers in the same tunnel could lock users out otherwise.
    """

    def __init__(self, longest_delay_s: float = LONGEST_DELAY_S) -> None:
        self._longest_delay_s = longest_delay_s
        self._failures: dict[tuple[str, str], tuple[int, float, float]] = {}  # how many, when, until when

    def judge(
        self,
        verifier: Verifier,
        peer: Peer,
        method: str,
        target: str,
        authorization: str | None,
        now_s: float,
    ) -> tuple[Verified | Refused | None, float]:
        """Have credentials judged; None: a delay is running for their name, and they were not looked at.

        :returns: with the verdict, for how many seconds to hold its answer; with None, when to try again.
        """
        items = parse_header(authorization or "")
        name = items[0][1].get("username", "") if items else ""
        if not is_name(name):
            name = ""  # no user has it, and the table keeps nothing that is long
        key = (name, network_of(peer.address))
        guessable = peer.address_is_peer and not name.isdigit() and name != LOCAL_USER
        count, last_s, until_s = self._failures.get(key, (0, now_s, now_s))
        if name and guessable and now_s < until_s:
            return None, until_s - now_s
        verdict = verifier.verify(method, target, authorization, now_s)
        if not isinstance(verdict, Refused) or not verdict.failed:
            return verdict, 0.0
        if not peer.address_is_peer:
            return verdict, _FIRST_DELAY_S
        count = 0 if now_s - last_s > _FORGIVEN_AFTER_S else count
        delay_s = min(_FIRST_DELAY_S * 2.0 ** min(count, 30), self._longest_delay_s)
        self._failures.pop(key, None)
        self._failures[key] = (count + 1, now_s, now_s + delay_s)
        if len(self._failures) > _REMEMBERED:
            del self._failures[next(iter(self._failures))]
        return verdict, delay_s
