"""TLS over a TCP socket, as a `trio.abc.Stream`.

It does what a farm needs of `trio.SSLStream`, in half of the processor time: it tries the socket first and
waits only where that would block, one receive decrypts all records that have come, and all records of one
send go out together.

Source: RFC 8446; Python's `ssl`, "Memory BIO support".
"""

from __future__ import annotations

import operator
import os
import ssl
from contextlib import suppress

import trio

from garlicfarm.wire import LARGE_RECEIVE_BYTES, RECEIVE_BYTES

RECORD_BYTES = 16_384
"""The most plaintext of one record (RFC 8446, 5.1): a buffer for more would be made and cut for each."""
FLUSH_BYTES = 262_144
"""How much ciphertext is made before it is sent."""
MAX_UNSENT_BYTES = 65_536
"""Of answers to the peer's key updates. A peer that keeps asking and reads nothing is cut off."""


class TlsStream(trio.abc.Stream):
    """TLS over ``tcp``, which it owns. `do_handshake` comes first.

    One task may send while another receives. A connection that ends without close_notify has ended like any
    other, as with ``https_compatible`` of `trio.SSLStream`: what the stream carries must show its own end.

    Raises `trio.BrokenResourceError`, and is broken for good: the connection broke, the peer violates TLS,
    one side refuses the other's certificate (``__cause__`` tells which), or a send was cancelled, which may
    have cut a record in two.
    """

    def __init__(
        self,
        tcp: trio.SocketStream,
        context: ssl.SSLContext,
        *,
        server_side: bool = False,
        server_hostname: str | None = None,
    ) -> None:
        self.transport_stream = tcp
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=server_hostname
        )
        self._unsent = bytearray()
        self._is_sending = self._is_receiving = False
        self._is_ready = self._is_at_end = self._is_broken = self._is_closed = False

    def getpeercert(self, binary_form: bool) -> bytes | None:
        """The peer's certificate in DER, None if it showed none. ``binary_form`` must be true: there is no
        other form."""
        assert binary_form
        return self._tls.getpeercert(True)

    def selected_alpn_protocol(self) -> str | None:
        """The protocol that both sides agreed on in the handshake, None: none."""
        return self._tls.selected_alpn_protocol()

    async def do_handshake(self) -> None:
        """Shake hands, unless that is done. Cancelled: the stream is broken."""
        await trio.lowlevel.checkpoint()
        if self._is_ready:
            return
        self._check(self._is_sending or self._is_receiving)
        self._is_sending = self._is_receiving = True
        try:
            while not self._is_ready:
                try:
                    self._tls.do_handshake()
                    self._is_ready = True
                except ssl.SSLWantReadError:
                    await self._flush()
                    if not self._fill():
                        await trio.lowlevel.wait_readable(self.transport_stream.socket)
            await self._flush()
        except BaseException as error:
            self._break(error)
            raise
        finally:
            self._is_sending = self._is_receiving = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self._check(self._is_sending)
        self._is_sending = True
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
            has_waited, rest = False, memoryview(data).cast("B")
            try:
                while True:
                    while rest and self._outgoing.pending < FLUSH_BYTES:
                        rest = rest[self._tls.write(rest[:FLUSH_BYTES]) :]
                    has_waited = await self._flush() or has_waited
                    if not rest:
                        break
            except BaseException as error:
                self._break(error)
                raise
            if not has_waited:
                await trio.lowlevel.cancel_shielded_checkpoint()
        finally:
            self._is_sending = False

    def send_now(self, data: bytes) -> bool:
        """Send ``data`` without waiting; this is no checkpoint. False: the socket has not taken all of it;
        ``send_all(b"")`` sends the rest. Raises as `send_all`. For small data: all is encrypted at once."""
        self._check(self._is_sending)
        try:
            self._tls.write(data)
            return self._flush_now()
        except BaseException as error:
            self._break(error)
            raise

    async def wait_send_all_might_not_block(self) -> None:
        self._check(self._is_sending)
        self._is_sending = True
        try:
            await trio.lowlevel.checkpoint()
            await trio.lowlevel.wait_writable(self.transport_stream.socket)
        finally:
            self._is_sending = False

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        most = RECEIVE_BYTES if max_bytes is None else operator.index(max_bytes)
        if most < 1:
            raise ValueError("max_bytes must be positive")
        self._check(self._is_receiving)
        self._is_receiving = True
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
            has_waited = False
            while (data := self._receive_now(most)) is None:
                await trio.lowlevel.wait_readable(self.transport_stream.socket)
                has_waited = True
            if not has_waited:
                await trio.lowlevel.cancel_shielded_checkpoint()
            return data
        finally:
            self._is_receiving = False

    def send_close_notify(self) -> None:
        """Tell the peer that nothing more follows, if the socket takes that now."""
        if self._is_ready and not (self._is_broken or self._is_closed):
            with suppress(ssl.SSLError):
                self._tls.unwrap()  # it sends, and then wants to read the peer's
            with suppress(OSError):
                self._flush_now()

    async def aclose(self) -> None:
        """Send close_notify, if the socket takes it now, and close the connection."""
        self.send_close_notify()
        self._is_closed = True
        await self.transport_stream.aclose()

    # ------------------------------------------------------------------ receiving

    def _receive_now(self, most: int) -> bytes | None:
        """What can be received without waiting; None: nothing yet, empty: the end."""
        try:
            while True:
                data = self._decrypt(most)
                if self._outgoing.pending and not self._is_sending:
                    self._answer()
                if data or self._is_at_end:
                    return data
                # From the socket as much as the caller asks for, within bounds.
                if not self._fill(min(max(most, RECEIVE_BYTES), LARGE_RECEIVE_BYTES)):
                    return None
        except (ssl.SSLError, OSError) as error:
            self._break(error)
            raise

    def _decrypt(self, most: int) -> bytes:
        """What has been received, at most so many bytes."""
        parts: list[bytes] = []
        try:
            while most and not self._is_at_end:
                parts.append(data := self._tls.read(min(most, RECORD_BYTES)))
                most -= len(data)
                self._is_at_end = not data  # close_notify
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLEOFError:
            self._is_at_end = True
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _answer(self) -> None:
        """Send what TLS itself has to say, as the answer to a key update. What the socket does not take now
        goes out with the next data."""
        self._flush_now()
        if len(self._unsent) > MAX_UNSENT_BYTES:
            raise ssl.SSLError("the peer keeps asking for key updates, and reads no answer")

    def _fill(self, most: int = RECEIVE_BYTES) -> bool:
        """Take what the socket has received; False: nothing."""
        try:
            data = os.read(self.transport_stream.socket.fileno(), most)
        except BlockingIOError:
            return False
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()
        return True

    # ------------------------------------------------------------------ sending

    async def _flush(self) -> bool:
        """Send all ciphertext; whether that had to wait."""
        has_waited = False
        while not self._flush_now():
            await trio.lowlevel.wait_writable(self.transport_stream.socket)
            has_waited = True
        return has_waited

    def _flush_now(self) -> bool:
        """Send what the socket takes; whether that is all."""
        if self._unsent:
            self._unsent += self._outgoing.read()
            del self._unsent[: self._write(self._unsent)]
        else:
            data = self._outgoing.read()
            self._unsent += data[self._write(data) :]
        return not self._unsent

    def _write(self, data: bytes | bytearray) -> int:
        try:
            return os.write(self.transport_stream.socket.fileno(), data) if data else 0
        except BlockingIOError:
            return 0

    # ------------------------------------------------------------------ states

    def _check(self, is_busy: bool) -> None:
        if is_busy:
            raise trio.BusyResourceError("another task does that now")
        if self._is_closed:
            raise trio.ClosedResourceError
        if self._is_broken:
            raise trio.BrokenResourceError("the TLS connection is broken")

    def _break(self, error: BaseException) -> None:
        """After any error the stream is broken; one of TLS or of the socket is told as Trio does."""
        self._is_broken = True
        if self._is_closed:
            raise trio.ClosedResourceError from None
        if isinstance(error, (ssl.SSLError, OSError)):
            with suppress(OSError):
                self._flush_now()  # the alert
            reason = getattr(error, "reason", None) or str(error)
            raise trio.BrokenResourceError(reason.lower().replace("_", " ")) from error
