"""Learning from rows as they come, each seen once."""
