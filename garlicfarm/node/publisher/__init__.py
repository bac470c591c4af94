"""What a node of the application `publisher` does beside its log: it reports, hands over and publishes."""
