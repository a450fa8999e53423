"""Several runs by one command: what became of each, and populations that train together."""
