"""Models of Stable-Baselines3 as policies, without needing Stable-Baselines3 itself."""
