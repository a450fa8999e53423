"""MarineNav's published agents (arXiv 2412.09466): their files as policies and as native agents, and the way back."""

from rlstack.adapters.marinenav.agents import (
    network_state,
    published_agent,
    published_policy,
    save_published,
    set_network,
)
from rlstack.adapters.marinenav.files import Published, load_published
from rlstack.adapters.marinenav.weights import ACTOR_NAMES, CRITIC_NAMES, NETWORKS, published_arrays, published_state

__all__ = [
    "ACTOR_NAMES",
    "CRITIC_NAMES",
    "NETWORKS",
    "Published",
    "load_published",
    "network_state",
    "published_agent",
    "published_arrays",
    "published_policy",
    "published_state",
    "save_published",
    "set_network",
]
