"""Trained agents that come with rlstack, each with a card; ``python -m experiments.zoo.build`` makes them."""
