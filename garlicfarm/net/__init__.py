"""Connections between members, on Trio: TCP, the handshake over a stream, and links."""
