"""The files that say who may log in: secrets, users, certificates, keys and join tokens."""
