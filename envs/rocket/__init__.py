"""Rocket: car soccer on batched tensors."""
