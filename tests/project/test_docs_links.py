"""Every link of the documentation leads somewhere, and no page tells of the machine it was written on."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MARKDOWN = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
PAGES = [*MARKDOWN, *sorted((ROOT / "examples").glob("*.py"))]
FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)


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
    assert set(MARKDOWN) <= reached


@pytest.mark.parametrize("page", MARKDOWN, ids=lambda page: str(page.relative_to(ROOT)))
def test_decision_cited_on_a_page_is_a_link(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    if page.name == "protocol.md":
        text = re.sub(r"\*\*D\d+: ", "", text)  # the decisions themselves
    assert re.findall(r"\bD\d{1,2}\b", re.sub(r"\[[^\]]*\]\([^)]*\)", "", text)) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_names_no_machine_of_ours(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for word in (str(ROOT), "/root/", "/home/", f"//{socket.gethostname()}"):
        assert word not in text
    # Example names are those of RFC 2606; addresses are loopback or wildcards.
    for host in re.findall(r"\b(?:ssl|https|tcp)://([A-Za-z0-9.-]+)", text):
        allowed = host.endswith((".example", ".org", ".com")) or host in ("127.0.0.1", "0.0.0.0", "host")
        assert allowed or host.isupper() or host == "a", host


def test_every_place_of_a_change_exists() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text[text.index("## Where do I change") : text.index("## Rules")]
    places = re.findall(r"`((?:garlicfarm|docs)/[^`]*)`", table)
    assert len(places) >= 10
    assert [place for place in places if not (ROOT / place).exists()] == []
