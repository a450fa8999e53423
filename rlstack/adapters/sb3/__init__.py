"""Models of Stable-Baselines3 as policies, without needing Stable-Baselines3 itself."""

from rlstack.adapters.sb3.model import SB3Model, load_sb3
from rlstack.adapters.sb3.policy import SB3Policy, sb3_policy

__all__ = ["SB3Model", "SB3Policy", "load_sb3", "sb3_policy"]
