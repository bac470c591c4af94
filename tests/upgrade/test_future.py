"""The program to come can what this tree cannot, and an edit that matches nothing is no edit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.upgrade.future import BROUGHT, FUTURE_LEVEL, FUTURE_VERSION, edited_copy, program_to_come
from tests.upgrade.programs import TREE

pytestmark = pytest.mark.upgrade


async def test_program_to_come_is_this_tree_with_one_level_and_one_action_more(tmp_path: Path) -> None:
    program = program_to_come(tmp_path / "future")
    assert FUTURE_VERSION in (await program.run("--version")).out
    asked = (
        "import garlicfarm, garlicfarm_transport_ssl as ssl, pathlib\n"
        "from garlicfarm.levels import BRINGS, HIGHEST\n"
        "from garlicfarm.publishing.administration import ACTIONS, SINCE\n"
        "print(*(pathlib.Path(each.__file__).parents[1].name for each in (garlicfarm, ssl)))\n"
        "print(HIGHEST, BRINGS[HIGHEST])\n"
        "print([each for each in SINCE if SINCE[each] == HIGHEST], 'mark' in ACTIONS)"
    )
    found = await program.execute(asked)
    assert found == ["future future", f"{FUTURE_LEVEL} {BROUGHT}", "['mark'] True"]
    assert TREE.version in (await TREE.run("--version")).out


def test_edit_of_what_is_not_there_or_there_twice_fails(tmp_path: Path) -> None:
    for old, times in (("no such line", "0"), ("HIGHEST", "[2-9]")):
        with pytest.raises(ValueError, match=rf"levels\.py has '{old}' {times} times"):
            edited_copy(tmp_path / old, {"garlicfarm/levels.py": {old: ""}})
