"""The worlds as environments of Gymnasium, PettingZoo and Stable-Baselines3; see :mod:`rlstack.envs`."""
