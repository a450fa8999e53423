"""A TorchRL ``LossModule`` for each algorithm; our agents use these, and they work in any TorchRL script."""

from .a2c import A2CLoss
from .aciqn import ACIQNLoss
from .advantage import estimate, vtrace
from .base import Loss
from .c51 import C51Loss, project_distribution
from .ddpg import DDPGLoss
from .dqn import DQNLoss
from .iqn import IQNLoss
from .ppo import PPOLoss
from .pqn import PQNLoss
from .qrdqn import QRDQNLoss
from .quantile import quantile_huber_loss
from .retrace import RetraceLoss, greedy_returns, retrace
from .rnd import RNDLoss
from .sac import DiscreteSACLoss, SACLoss
from .td3 import TD3Loss
from .tqc import TQCLoss

__all__ = [
    "A2CLoss",
    "ACIQNLoss",
    "C51Loss",
    "DDPGLoss",
    "DQNLoss",
    "DiscreteSACLoss",
    "IQNLoss",
    "Loss",
    "PPOLoss",
    "PQNLoss",
    "QRDQNLoss",
    "RNDLoss",
    "RetraceLoss",
    "SACLoss",
    "TD3Loss",
    "TQCLoss",
    "estimate",
    "greedy_returns",
    "project_distribution",
    "quantile_huber_loss",
    "retrace",
    "vtrace",
]
