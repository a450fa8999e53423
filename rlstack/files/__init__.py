"""Reads files that strangers may have written, without running anything that they name."""
