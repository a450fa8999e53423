"""Rocket: learning to win, and what rewards do."""
