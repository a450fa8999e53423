"""Rocket: learning to win, and the value of its rewards."""
