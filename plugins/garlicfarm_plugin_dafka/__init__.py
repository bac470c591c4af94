"""Dafka (ZeroMQ RFC 46): a distributed log of records over ZeroMQ."""
