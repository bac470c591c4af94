"""A peer that opens one stream: written apart from the product, as simply as can be, but for the codec.

A fixed window; every packet that is not acknowledged is sent again after fixed times; each packet that takes
a number is acknowledged at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from garlicfarm.i2p.destination import signing_key
from garlicfarm.i2p.keys import DestinationKeys
from garlicfarm_plugin_i2cp.streaming.packet import (
    CLOSE,
    FROM_INCLUDED,
    MAX_PACKET_SIZE,
    NO_ACK,
    RESET,
    SYNCHRONIZE,
    Packet,
    decode_packet,
    encode_packet,
)
from garlicfarm_plugin_i2cp.streaming.payload import decode_payload, encode_payload
from garlicfarm_plugin_i2cp.streaming.signatures import verify_packet

MAX_SENDS = 12
RESEND_S = 1.0
SILENCE_S = 1000.0


class Initiator:
    """``to_send`` is sent, then CLOSE if ``closes``. ``received``: what came, in order. ``failure``: why it
    gave up; ``is_done``: both sides have closed, and all was acknowledged. ``resend_s``: after how long a
    packet is sent again, the last one again and again."""

    def __init__(
        self,
        keys: DestinationKeys,
        service: bytes,
        *,
        stream: int,
        to_send: bytes = b"",
        closes: bool = True,
        window: int = 20,
        max_data: int = 1812,
        now_ms: int = 0,
        resend_s: Sequence[float] = (RESEND_S,),
    ) -> None:
        self.keys = keys
        self.stream = stream
        self.service_stream = 0
        self.received = bytearray()
        self.failure = ""
        self.peer_has_closed = False
        self._service = service
        self._now_ms = now_ms
        self._window = window
        self._resend_s = resend_s
        self._through = -1
        self._ahead: dict[int, Packet] = {}
        self._acks_due = 0
        self._heard_s = 0.0
        self._sent: dict[int, tuple[float, int]] = {}
        pieces = [to_send[at : at + max_data] for at in range(0, len(to_send), max_data)]
        self._numbered = [
            self._syn(max_data),
            *(Packet(0, stream, number, 0, data=data) for number, data in enumerate(pieces, 1)),
        ]
        if closes:
            self._numbered.append(Packet(0, stream, len(self._numbered), 0, flags=CLOSE))
        self._waiting = list(range(len(self._numbered)))

    def _syn(self, max_data: int) -> Packet:
        digest = sha256(self._service).digest()
        return Packet(
            *(0, self.stream, 0, 0),
            nacks=[int.from_bytes(digest[at : at + 4], "big") for at in range(0, 32, 4)],
            flags=SYNCHRONIZE | FROM_INCLUDED | MAX_PACKET_SIZE | NO_ACK,
            destination=self.keys.destination,
            max_data=max_data,
        )

    @property
    def is_done(self) -> bool:
        return self.peer_has_closed and not self._waiting and not self._sent

    @property
    def wake_s(self) -> float | None:
        """When something is to be sent again."""
        if self.failure or self.is_done:
            return None
        resends_s = [sent_s + self._resend_after_s(times) for sent_s, times in self._sent.values()]
        return min(resends_s, default=self._heard_s + SILENCE_S)

    def take_payloads(self, now_s: float) -> list[bytes]:
        payloads: list[bytes] = []
        if self.failure:
            return payloads
        if not self._sent and not self._waiting and not self.is_done and now_s >= self._heard_s + SILENCE_S:
            self.failure = "silence"
        for sequence, (sent_s, times) in list(self._sent.items()):
            if now_s >= sent_s + self._resend_after_s(times):
                if times == MAX_SENDS:
                    self.failure = f"packet {sequence} was not acknowledged"
                    return payloads
                self._sent[sequence] = (now_s, times + 1)
                payloads.append(self.encode(self._numbered[sequence]))
        while self._waiting and len(self._sent) < self._window:
            sequence = self._waiting.pop(0)
            self._sent[sequence] = (now_s, 1)
            self._heard_s = max(self._heard_s, now_s)
            payloads.append(self.encode(self._numbered[sequence]))
        if self._acks_due and self.service_stream:
            payloads.append(self.encode(Packet(0, self.stream, 0, 0)))
        self._acks_due = 0
        return payloads

    def _resend_after_s(self, times: int) -> float:
        return self._resend_s[min(times, len(self._resend_s)) - 1]

    def encode(self, packet: Packet) -> bytes:
        if not packet.flags & SYNCHRONIZE:
            packet.to_stream = self.service_stream
            packet.ack_through, packet.nacks = self._acknowledgement()
            packet.flags &= ~NO_ACK
            if self._through < 0:
                packet.flags |= NO_ACK
        sign = self.keys.sign if packet.flags & (SYNCHRONIZE | CLOSE | RESET) else None
        return encode_payload(encode_packet(packet, sign), 0, 80)

    def _acknowledgement(self) -> tuple[int, list[int]]:
        through = max(self._ahead, default=self._through)
        missing = [n for n in range(self._through + 1, through) if n not in self._ahead]
        return max(through, 0), missing[:255]

    def receive(self, payload: bytes, now_s: float = 0.0) -> None:
        self._heard_s = now_s
        decoded = decode_payload(payload)
        assert decoded.protocol == 6
        assert (decoded.from_port, decoded.to_port) == (80, 0)
        packet = decode_packet(decoded.data)
        assert packet.to_stream == self.stream
        if packet.flags & (SYNCHRONIZE | CLOSE | RESET):
            long_term = signing_key(self._service)
            transient = None if packet.flags & SYNCHRONIZE else getattr(self, "_signer", None)
            self._signer = verify_packet(decoded.data, packet, long_term, transient, self._now_ms)
        if packet.flags & RESET:
            self.failure = "reset"
            return
        if not packet.flags & NO_ACK:
            for sequence in [n for n in self._sent if n <= packet.ack_through and n not in packet.nacks]:
                del self._sent[sequence]
        if packet.sequence or packet.flags & SYNCHRONIZE:
            self._acks_due += 1
            if packet.sequence > self._through:
                self._ahead[packet.sequence] = packet
        while (taken := self._ahead.pop(self._through + 1, None)) is not None:
            self._through += 1
            if taken.flags & SYNCHRONIZE:
                self.service_stream = taken.from_stream
            self.received += taken.data
            if taken.flags & CLOSE:
                self.peer_has_closed = True
