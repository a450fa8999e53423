"""Agents that learn from recorded data alone, on Pendulum."""
