"""Reads untrusted files without running anything that they name."""
