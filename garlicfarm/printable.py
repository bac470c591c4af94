"""Text that others wrote, as a terminal shows it and does not obey it.

Whatever Unicode does not count as printable is shown as its escape in JSON: control characters (C0, DEL, C1),
marks that turn the direction of text, line and paragraph separators, lone surrogates.
"""

from __future__ import annotations

import re

_SUSPECT = re.compile(r"[^ -~]")


def printable(text: str) -> str:
    """``text`` on one line, without a character that a terminal obeys."""
    return text if text.isprintable() else _SUSPECT.sub(_escaped, text)


def printable_json(text: str) -> str:
    """The same for a document or lines of JSON, which stay the same JSON: line feeds and tabs are kept."""
    return "".join(each if each in "\n\t" else printable(each) for each in re.split(r"([\n\t])", text))


def _escaped(found: re.Match[str]) -> str:
    character = found[0]
    if character.isprintable():
        return character
    code = ord(character)
    if code < 0x10000:
        return f"\\u{code:04x}"
    high, low = divmod(code - 0x10000, 0x400)  # as JSON has it: a pair of surrogates
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"
