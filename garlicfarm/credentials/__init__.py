"""The files that decide about logins: secrets, users, certificates, keys and join tokens."""
