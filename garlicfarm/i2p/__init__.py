"""What I2P's own structures look like in bytes: destinations, LeaseSets, keys. Pure, like `wire`."""
