"""The manual pages in `share` are what the commands say of themselves."""

from __future__ import annotations

from tools.man_pages import FOLDER, pages


def test_manual_pages_are_what_the_commands_say() -> None:
    written = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()}
    assert written == pages(), "the commands changed: python -m tools.man_pages writes the pages anew"


def test_manual_page_of_one_command_shows_its_options_examples_and_no_markup() -> None:
    page = pages()["garlicfarm-lab.1"]
    assert "\\fB\\-\\-until [leader|publisher|ranked|moved]\\fP\n" in page
    assert "\n.EX\ngarlicfarm lab\n" in page
    assert "`" not in page
