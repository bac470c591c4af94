"""Where the i2pd of another Debian suite cannot be fetched, one sentence says why, and nothing is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import debian_i2pd


def test_suite_that_apt_refuses_is_skipped_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "apt-get"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\necho "$@" >>{tmp_path}/asked\ncase "$*" in *update) ;; *) exit 100 ;; esac\n'
    )
    program.chmod(0o755)
    (tmp_path / "keyring").touch()
    monkeypatch.setenv("PATH", str(program.parent))
    monkeypatch.setattr(debian_i2pd, "KEYRING", str(tmp_path / "keyring"))
    told = debian_i2pd.main("forky", tmp_path / "made" / "forky")
    assert told.startswith("skipped: the i2pd of Debian forky cannot be fetched: ")
    assert told.endswith("returned non-zero exit status 100.")
    assert list((tmp_path / "made").iterdir()) == []
    update, install = (tmp_path / "asked").read_text().splitlines()
    assert update.endswith(" update")
    assert install.endswith(" install --download-only --assume-yes i2pd")
    assert "Dir::State::Status=" in install  # not this system's: nothing here is touched


def test_machine_that_is_no_debian_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debian_i2pd, "KEYRING", str(tmp_path / "missing"))
    assert debian_i2pd.main("forky", tmp_path / "forky").startswith("skipped: this is no Debian")
