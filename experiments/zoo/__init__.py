"""Trained agents that come with rlstack, each with its card: made by ``python -m experiments.zoo.build``."""
