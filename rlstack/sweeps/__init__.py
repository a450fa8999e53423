"""Several runs in one command: sweeps, searches, and populations that train together."""
