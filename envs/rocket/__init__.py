"""Rocket, batched car soccer."""
