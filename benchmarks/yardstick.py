"""How fast this machine is now: the CPU time of a fixed piece of work of the kind that a node does.

One exchange: a header packed, 200 bytes encrypted and decrypted by TLS 1.3 in memory, a checksum, a response
back. Nothing of garlicfarm takes part, so that only the machine, Python and OpenSSL change the figure. CPU
times of nodes divided by it, and multiplied by that of the reference machine (``yardstick_us`` of
``goals.toml``), can be compared between runs; what other processes do to the caches stays.
"""

from __future__ import annotations

import ssl
import struct
import tempfile
import time
import zlib
from pathlib import Path

from garlicfarm.credentials.certificates import make_certificate

EXCHANGES = 10_000
REQUEST, RESPONSE = struct.Struct(">BIIQQQQI"), struct.Struct(">BIIQB")
VALUE = bytes(200)


class Yardstick:
    """Both ends of one TLS connection, in memory."""

    def __init__(self) -> None:
        here = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        here.check_hostname, here.verify_mode = False, ssl.CERT_NONE
        there = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        there.minimum_version = ssl.TLSVersion.TLSv1_3
        there.num_tickets = 0
        with tempfile.TemporaryDirectory() as directory:
            certificate, key = Path(directory, "crt"), Path(directory, "key")
            make_certificate(certificate, key, "bench")
            there.load_cert_chain(certificate, key)
        forth, back = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._here = here.wrap_bio(back, forth)
        self._there = there.wrap_bio(forth, back, server_side=True)
        for end in (self._here, self._there, self._here, self._there):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue

    def measure_us(self, exchanges: int = EXCHANGES) -> float:
        """The CPU time of one exchange in this thread, the mean of so many."""
        log: dict[int, bytes] = {}
        begun = time.thread_time_ns()
        for number in range(exchanges):
            self._here.write(REQUEST.pack(3, 1, 2, 1, number, 1, number, len(VALUE)) + VALUE)
            entry = self._there.read(1 << 14)[REQUEST.size :]
            log[number % 1000] = entry + zlib.crc32(entry).to_bytes(4)
            self._there.write(RESPONSE.pack(4, 2, 1, number + 1, 1))
            RESPONSE.unpack(self._here.read(1 << 14))
        return (time.thread_time_ns() - begun) / 1000 / exchanges
