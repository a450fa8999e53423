"""Keys of a world's tensordicts."""

GROUP = "agents"
"""Group of the agents in worlds with several, ``[W, A, ...]``."""
MEMORY = "memory"
"""Recurrent state of a policy, at the root or in the group ``agents``; see :class:`rlstack.envs.world.World`."""
ACTION_MASK = "action_mask"
"""Allowed choices (bool), beside the observation."""
