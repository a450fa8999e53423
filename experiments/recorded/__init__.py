"""What agents learn from recorded data alone, on Pendulum."""
