"""Wrong passwords and the delays that follow them: one rule for the farm's port and the admin API.

The answer to a wrong password is delayed, twice as long each time for the same name and address. Until the
delay is over, no further password is checked for this name from this address, on any connection. So hanging
up, or trying on many connections at once, gains nothing.

An IPv6 address counts as its /64. A guesser may have the 65,536 of a /48, so wrong passwords also count
for the /48. Its delays begin after `_FREE_OF_SITE` of them.

Counting by name and address keeps strangers at other addresses from locking a user out. A stranger behind the
user's own address, or in its /48, can, as long as the guessing lasts. Therefore passwords that a machine
made, which cannot be guessed, are always checked: those of members, and of ``local``, an operator's login on
the node's machine.
"""

from __future__ import annotations

from garlicfarm.credentials.users import LOCAL_USER, is_name
from garlicfarm.http.digest import Refused, Verified, parse_header
from garlicfarm.http.upgrade import Verifier
from garlicfarm.transport import Peer, network_of, site_of

LONGEST_DELAY_S = 5.0
_FIRST_DELAY_S = 0.25
_FORGIVEN_AFTER_S = 900.0
_REMEMBERED = 4096
_FREE_OF_SITE = 16
"""So many of a /48 delay nobody else there: others of the same provider may be in it."""


class LoginAttempts:
    """The recent wrong passwords, at most 4096: filling the table takes a guesser longer than the delays.

    :param longest_delay_s: the limit of one delay.

    If addresses do not distinguish peers (``address_is_peer`` False), every password is checked and each
    wrong one has the first delay: otherwise strangers in the same tunnel could lock users out.
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
        """Check credentials; None: a delay is running for their name, and they were not checked.

        :returns: the verdict, and how many seconds to hold its answer; or None, and the seconds until the
        delay ends.
        """
        items = parse_header(authorization or "")
        name = items[0][1].get("username", "") if items else ""
        if not is_name(name):
            name = ""  # no user has it, and the table holds no long keys
        units = {(name, network_of(peer.address)): 0}
        if (site := site_of(peer.address)) is not None:
            units[name, site] = _FREE_OF_SITE
        guessable = peer.address_is_peer and not name.isdigit() and name != LOCAL_USER
        until_s = max(self._failures[key][2] if key in self._failures else now_s for key in units)
        if name and guessable and now_s < until_s:
            return None, until_s - now_s
        verdict = verifier.verify(method, target, authorization, now_s)
        if not isinstance(verdict, Refused) or not verdict.failed:
            return verdict, 0.0
        if not peer.address_is_peer:
            return verdict, _FIRST_DELAY_S
        return verdict, max([self._failed(key, free, now_s) for key, free in units.items()])

    def _failed(self, key: tuple[str, str], free: int, now_s: float) -> float:
        """Count a wrong password, of which ``free`` cause no delay; the delay, in seconds."""
        count, last_s, _ = self._failures.pop(key, (0, now_s, now_s))
        count = 0 if now_s - last_s > _FORGIVEN_AFTER_S else count
        delay_s = min(_FIRST_DELAY_S * 2.0 ** min(count - free, 30), self._longest_delay_s)
        delay_s = delay_s if count >= free else 0.0
        self._failures[key] = (count + 1, now_s, now_s + delay_s)
        if len(self._failures) > _REMEMBERED:
            del self._failures[next(iter(self._failures))]
        return delay_s
