"""Any parallel PettingZoo environment as a batched world with a group of agents."""

from .env import PettingZoo

__all__ = ["PettingZoo"]
