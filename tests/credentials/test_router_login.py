"""The name and password that a router asks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from garlicfarm.credentials.router_login import RouterLogin, read_login
from garlicfarm.errors import ConfigError


def put(directory: Path, text: str, mode: int = 0o600) -> Path:
    (directory / "password").touch(mode=mode)
    (directory / "password").write_text(text)
    return directory


def test_password_is_the_first_line_and_is_not_shown(tmp_path: Path) -> None:
    login = read_login("farm", "password", put(tmp_path, "s3cret\r\nmore\n"))
    assert login == RouterLogin("farm", "s3cret")
    assert "s3cret" not in repr(login)


def test_no_keys_are_no_login(tmp_path: Path) -> None:
    assert read_login("", "", tmp_path) is None


@pytest.mark.parametrize(
    ("user", "password", "sentence"),
    [
        ("", "s3cret", "set both, or neither"),
        ("a b", "s3cret", "user must have 1 to 64"),
        ("farm", "", "the first line of password must have"),
        ("farm", 'with"quote', "without spaces and quotes"),
        ("farm", "x" * 65, "1 to 64"),
        ("farm", "ä", "ASCII"),
    ],
)
def test_words_that_cannot_be_sent_are_refused_and_not_shown(tmp_path, user, password, sentence):
    with pytest.raises(ConfigError, match=sentence) as caught:
        read_login(user, "password", put(tmp_path, password))
    assert not password or password not in str(caught.value)


def test_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="password"):
        read_login("farm", "password", put(tmp_path, "s3cret", mode=0o644))
    with pytest.raises(ConfigError, match="set both"):
        read_login("farm", "", tmp_path)
