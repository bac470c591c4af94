"""What all rooms share about errors."""

from __future__ import annotations

import pytest

from garlicfarm.errors import first_error

FIRST, SECOND = ValueError("first"), KeyError("second")


@pytest.mark.parametrize(
    "error",
    [
        FIRST,
        ExceptionGroup("", [FIRST]),
        ExceptionGroup("", [FIRST, SECOND]),
        BaseExceptionGroup("", [ExceptionGroup("", [FIRST, SECOND]), KeyboardInterrupt()]),
    ],
)
def test_first_error_is_found_however_deep_its_groups(error: BaseException) -> None:
    assert first_error(error) is FIRST
