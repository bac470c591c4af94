"""Makes and changes what a node starts from: new farms and nodes, joining, recovery."""
