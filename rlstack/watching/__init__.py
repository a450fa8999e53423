"""Showing episodes: live in a window or a terminal, or as a film."""
