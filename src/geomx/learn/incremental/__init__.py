"""Learning on top of a network that has been trained before."""
