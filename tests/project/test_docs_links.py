"""Every link of the documentation leads somewhere, and no page tells of the machine it was written on."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from tests.project.pages import FENCE, ROOT

MARKDOWN = sorted(page for folder in ("", "docs/**/", "transports/*/") for page in ROOT.glob(f"{folder}*.md"))


def anchors(page: Path) -> set[str]:
    """What can follow # in a link to the page, as GitHub makes them of headings."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    made = {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
    return made | set(re.findall(r'<a id="([^"]+)">', text))


@pytest.mark.parametrize("page", MARKDOWN, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_file(), f"{link} leads nowhere"
        assert target.is_relative_to(ROOT)
        assert not anchor or anchor in anchors(target), f"{link}: no such heading"


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, todo = set(), [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        reached.add(page)
        for link in re.findall(r"\]\(([^)\s#]+\.md)", page.read_text(encoding="utf-8")):
            target = (page.parent / link).resolve()
            if "://" not in link and target not in reached:
                todo.append(target)
    assert {page for page in MARKDOWN if not page.is_relative_to(ROOT / "transports")} <= reached


@pytest.mark.parametrize(
    "page", [*MARKDOWN, *sorted((ROOT / "examples").glob("*.py"))], ids=lambda page: page.name
)
def test_page_names_no_machine_of_ours(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert [
        word for word in (str(ROOT), "/root/", "/home/", f"//{socket.gethostname()}") if word in text
    ] == []
