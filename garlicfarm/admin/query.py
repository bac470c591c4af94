"""Parameters of a request's query. Raises `Problem` 400 for one that cannot be used."""

from __future__ import annotations

from starlette.requests import HTTPConnection

from garlicfarm.admin.problems import Problem

__all__ = ["flag", "number", "parse_number"]


def number(request: HTTPConnection, name: str, default: float, most: float, *, least: float = 0) -> float:
    """A number from ``least`` to ``most``; a whole one unless ``most`` is a float."""
    text = request.query_params.get(name)
    return default if text is None else parse_number(name, text, most, least=least)


def parse_number(name: str, text: str, most: float, *, least: float = 0) -> float:
    """The same of the value ``text``."""
    try:
        value = float(text) if isinstance(most, float) else int(text)
        if isinstance(most, int) and not text.isdecimal():  # 1_0, which Python takes, or +5
            value = -1
    except ValueError:
        value = -1
    if not least <= value <= most:
        bound = f"{most:.0f}" if isinstance(most, float) else most
        raise Problem(
            400, "bad-query", f"{name} is not a number from {least} to {bound}", "Correct the query."
        )
    return value


def flag(request: HTTPConnection, name: str) -> bool:
    """``true`` or ``false``, which is the default."""
    text = request.query_params.get(name, "false")
    if text not in ("true", "false"):
        raise Problem(400, "bad-query", f"{name} is neither true nor false", "Correct the query.")
    return text == "true"
