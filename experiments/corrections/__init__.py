"""Measures the value of off-policy corrections on batched CartPole."""
