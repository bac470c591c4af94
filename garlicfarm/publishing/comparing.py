"""What members say that they hold at the agreed index, and when most contradict one of them (D26).

A member that restored another one's snapshot holds what that one held, right or wrong. So members that are
linked in this way have one vote between them, and a wrong state that was handed on makes no majority. Once a
majority holds what such a member holds, what was handed on was right, and the member has a vote of its own
again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from garlicfarm.levels import COMPARING, level_of
from garlicfarm.publishing.documents import DigestReport
from garlicfarm.publishing.fold_state import ComparedState, Contradiction, FarmState

STATUSES_EACH = 4
"""After so many statuses for each member, another index is agreed: each member has told its digests at the
one before."""

_Value = TypeVar("_Value")


def configure(state: FarmState) -> None:
    """The members and the level of ``state`` are those of a Configuration now. Where half of its members are
    contradicted, no majority of them says so any more."""
    compared, members = state.compared, state.members
    if compared:
        compared.claims = {id_: one for id_, one in compared.claims.items() if id_ in members}
        compared.contradicted = {id_: one for id_, one in compared.contradicted.items() if id_ in members}
        if 2 * len(compared.contradicted) >= len(members):
            compared.contradicted = {}
        compared.disagreeing = ()
    elif level_of(state.algorithm) >= COMPARING:
        state.compared = ComparedState()


def on_status(
    state: FarmState, index: int, author: int, claim: DigestReport | None, recent: Collection[int]
) -> set[int]:
    """The status at ``index`` has this claim. Returns the members of which something else is known now."""
    compared, changed = state.compared, set[int]()
    if not compared:
        return changed
    if claim is not None and claim.index == compared.agreed > 0:
        compared.claims[author] = claim
        changed = _compare(compared, state.members, recent)
    compared.statuses += 1
    if compared.statuses >= STATUSES_EACH * len(state.members):
        compared.agreed, compared.statuses = index, 0
    return changed


def is_confirmed(state: FarmState, member: int) -> bool:
    """Whether a majority holds what ``member`` says that it held at the agreed index."""
    compared = state.compared
    if not compared or member not in compared.claims:
        return False
    claims, own, roots = compared.claims, compared.claims[member], _roots(compared.claims)
    held = own.index, own.state, own.chain
    votes = {roots[one] for one, each in claims.items() if (each.index, each.state, each.chain) == held}
    return own.index == compared.agreed and len(votes) > len(state.members) // 2


def _compare(compared: ComparedState, members: Collection[int], recent: Collection[int]) -> set[int]:
    """Compare the claims of ``members`` at the agreed index. Returns those of which something else is known
    now."""
    index = compared.agreed
    claims = {one: claim for one, claim in compared.claims.items() if claim.index == index}
    roots = _roots(compared.claims)
    least = len(members) // 2 + 1
    chain = _most(claims, roots, least, lambda claim: claim.chain)
    state = _most(claims, roots, least, lambda claim: claim.state)
    together = Counter((claim.state, claim.chain) for claim in claims.values())
    changed = set()
    for member, claim in claims.items():
        known = compared.contradicted.get(member)
        since = index if known is None else known.index
        found = known
        if chain is not None and claim.chain != chain:
            found = Contradiction(since, "chain")
        elif state is not None and claim.state != state:
            found = Contradiction(since, "state")
        elif together[claim.state, claim.chain] >= least:  # votes or not: nobody contradicts them any more
            found = None
        if found != known:
            changed.add(member)
            compared.contradicted.pop(member, None)
            if found is not None:
                compared.contradicted[member] = found
    if {*recent} <= claims.keys():
        groups: dict[tuple[str, str], tuple[int, ...]] = {}
        for member in sorted(claims):
            held = claims[member].state, claims[member].chain
            groups[held] = (*groups.get(held, ()), member)
        is_decided = chain is not None and state is not None
        compared.disagreeing = () if is_decided or len(groups) < 2 else tuple(groups.values())
    return changed


def _most(
    claims: Mapping[int, DigestReport],
    roots: Mapping[int, int],
    least: int,
    value_of: Callable[[DigestReport], _Value],
) -> _Value | None:
    """The value with ``least`` votes, None: there is none."""
    votes: dict[_Value, set[int]] = {}
    for member, claim in claims.items():
        votes.setdefault(value_of(claim), set()).add(roots[member])
    return next((value for value, whose in votes.items() if len(whose) >= least), None)


def _roots(claims: Mapping[int, DigestReport]) -> dict[int, int]:
    """Each member with the one that stands for all that it is linked with."""
    roots = {one: one for one in {*claims, *(claim.origin for claim in claims.values() if claim.origin)}}
    for member, claim in claims.items():
        if claim.origin:
            joined, into = roots[member], roots[claim.origin]
            roots = {one: into if root == joined else root for one, root in roots.items()}
    return roots
