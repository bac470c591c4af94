"""What all rooms share about errors."""

from __future__ import annotations

import socket
import ssl

import pytest
import trio
import trio.testing

from garlicfarm.errors import cause_of, first_error

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


async def test_cause_of_a_refused_connection_is_what_the_system_says() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        with pytest.raises(OSError, match="all attempts to connect") as caught:
            await trio.open_tcp_stream("127.0.0.1", held.getsockname()[1])
    assert cause_of(caught.value) == "Connection refused"


async def test_cause_of_a_failed_tls_handshake_is_what_tls_says() -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    await theirs.send_all(b"no TLS at all")
    stream = trio.SSLStream(ours, ssl.create_default_context(), server_hostname="router")
    with pytest.raises(trio.BrokenResourceError) as caught:
        await stream.do_handshake()
    assert "WRONG_VERSION_NUMBER" in cause_of(caught.value)


def test_cause_of_an_error_without_a_word_is_its_name() -> None:
    assert cause_of(trio.TooSlowError()) == "TooSlowError"
