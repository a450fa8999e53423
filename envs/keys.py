"""Keys of a world's tensordicts that stand for themselves."""

GROUP = "agents"
"""The group of the agents in worlds that have several, ``[W, A, ...]``."""
MEMORY = "memory"
"""A policy's memory of the episode, at the root or in the group ``agents``; see :class:`envs.world.World`."""
ACTION_MASK = "action_mask"
"""Beside the observation: which choices are allowed, bool."""
