"""Measures why a training is slow: each part by itself, then a verdict in words."""
