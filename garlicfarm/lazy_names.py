"""Packages as doors: each name is imported when it is first asked for, so that one name costs no other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module


def lazy_names(package: str, modules: Mapping[str, Sequence[str]]) -> Callable[[str], object]:
    """The ``__getattr__`` of ``package``. ``modules``: each module, and the names that come from it."""
    origins = {name: module for module, names in modules.items() for name in names}

    def find(name: str) -> object:
        if name in origins:
            return getattr(import_module(origins[name]), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find
