"""I2P's streaming protocol, incoming streams only. All but `server` is sans-I/O: bytes, times and randomness
come in as arguments."""
