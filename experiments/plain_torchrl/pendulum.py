"""AC-IQN on Pendulum in plain TorchRL: ``python -m experiments.plain_torchrl.pendulum``."""

import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import Compose, GymEnv, InitTracker, RewardSum, TransformedEnv
from torchrl.modules import MLP, AdditiveGaussianModule
from torchrl.objectives import SoftUpdate

from rlstack.losses import ACIQNLoss
from rlstack.networks.quantile import LateQuantileCritic

LIMIT = 2.0  # of the torque, in N m


class Torque(nn.Module):
    """A torque within its limits."""

    def forward(self, raw: torch.Tensor) -> torch.Tensor:
        return LIMIT * raw.tanh()


def train(frames: int = 15_000, start: int = 500, seed: int = 0) -> list[float]:
    """Trains an agent, and returns the returns of its episodes in their order."""
    torch.manual_seed(seed)
    env = TransformedEnv(GymEnv("Pendulum-v1"), Compose(RewardSum(), InitTracker()))
    env.set_seed(seed)

    actor = nn.Sequential(MLP(3, 1, num_cells=[64, 64], activation_class=nn.ReLU), Torque())
    loss = ACIQNLoss(actor, LateQuantileCritic(nn.Linear(3, 64), 1, [64, 64]), gamma=0.97, num_quantiles=16)
    optimizer, updater = torch.optim.Adam(loss.parameters(), lr=1e-3), SoftUpdate(loss, tau=0.01)
    replay = TensorDictReplayBuffer(storage=LazyTensorStorage(frames), batch_size=64)
    greedy = TensorDictModule(loss.actor_network, ["observation"], ["action"])
    noise = AdditiveGaussianModule(env.action_spec, sigma_init=LIMIT, sigma_end=0.2, annealing_num_steps=5000)
    exploring, returns = TensorDictSequential(greedy, noise), []
    quiet = {"auto_register_policy_transforms": False}
    for batch in Collector(env, exploring, frames_per_batch=1, total_frames=frames, **quiet):
        noise.step()
        returns += batch["next", "episode_reward"][batch["next", "done"]].tolist()
        replay.extend(batch)
        if len(replay) >= start:
            losses = loss(replay.sample())
            (losses["loss_critic"] + losses["loss_actor"]).backward()
            optimizer.step(), optimizer.zero_grad(), updater.step()
    return returns


if __name__ == "__main__":
    torch.set_num_threads(1)  # more slow down such small networks
    print(f"mean return of the last 20 episodes: {sum(train()[-20:]) / 20:.0f}")
