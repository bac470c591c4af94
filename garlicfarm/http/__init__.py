"""The handshake before a Raft stream, sans-I/O: HTTP Digest (`digest`) and the upgrade (`upgrade`).

Bytes go in, verdicts and bytes come out; clocks and random bytes are arguments. The Trio side is
`garlicfarm.net.handshake`.
"""
