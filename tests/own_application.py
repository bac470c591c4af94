"""The example of an application, installed as a distribution would bring it."""

from __future__ import annotations

from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def install_key_value(directory: Path, monkeypatch: pytest.MonkeyPatch, name: str = "key-value") -> None:
    """Here, and for processes that are started from here."""
    info = directory / "site" / "key_value-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    points = f"[garlicfarm.applications]\n{name} = own_application:KeyValueState\n"
    (info / "entry_points.txt").write_text(points)
    monkeypatch.setenv("PYTHONPATH", f"{info.parent}:{EXAMPLES}")
    monkeypatch.syspath_prepend(info.parent)
    monkeypatch.syspath_prepend(EXAMPLES)
