"""MarineNav, a world of several robots, with TorchRL's own PPO: ``python -m experiments.plain_torchrl.marinenav``."""

import torch
from tensordict import TensorDict
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import Tensor, nn
from torchrl.collectors import Collector
from torchrl.modules import ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from rlstack import envs

SEEN = [("agents", "observation", name) for name in ("self", "objects", "mask")]


class Perception(nn.Sequential):
    """An MLP over a robot's own state and the objects that it perceives."""

    def __init__(self, *head: nn.Module) -> None:
        super().__init__(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), *head)

    def forward(self, own: Tensor, objects: Tensor, mask: Tensor) -> Tensor:
        return super().forward(torch.cat((own, (objects * mask.unsqueeze(-1)).flatten(-2)), -1) / 10)


def train(batches: int = 500, worlds: int = 64, steps: int = 32, seed: int = 0) -> list[float]:
    """Trains one policy for all robots, and returns the mean reward of a decision in each batch."""
    torch.set_num_threads(1), torch.manual_seed(seed)  # more threads slow down such small networks
    env = envs.make("marinenav", num_worlds=worlds)
    env.set_seed(seed)
    normal = [("agents", "loc"), ("agents", "scale")]
    scores = TensorDictModule(Perception(nn.Linear(128, 4), NormalParamExtractor()), SEEN, normal)
    options = {"distribution_class": TanhNormal, "return_log_prob": True, "log_prob_key": ("agents", "log_prob")}
    actor = ProbabilisticActor(scores, {key[1]: key for key in normal}, [("agents", "action")], **options)
    critic = ValueOperator(Perception(nn.Linear(128, 1)), SEEN, [("agents", "value")])
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic, vectorized=False, differentiable=False)
    loss = ClipPPOLoss(actor, critic, entropy_coeff=0.0, critic_coeff=0.5, normalize_advantage=True)
    names = {name: ("agents", name) for name in ("reward", "done", "terminated", "value", "advantage", "value_target")}
    advantage.set_keys(**names)
    loss.set_keys(action=("agents", "action"), sample_log_prob=("agents", "log_prob"), **names)
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-3)
    rewards, size = [], worlds * steps
    quiet = {"auto_register_policy_transforms": False}
    for batch in Collector(env, actor, frames_per_batch=size, total_frames=batches * size, **quiet):
        advantage(batch)
        active = batch["agents", "active"]  # a robot that has arrived decides no more
        rewards.append(batch["next", "agents", "reward"][active].mean().item())
        decisions = batch["agents"][active]
        for part in [part for _ in range(4) for part in torch.randperm(len(decisions)).split(2048)]:
            losses = loss(TensorDict(agents=decisions[part], batch_size=[len(part)]))
            sum(value for name, value in losses.items() if name.startswith("loss_")).backward()
            nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
            optimizer.step(), optimizer.zero_grad()
    return rewards


if __name__ == "__main__":
    rewards = train()
    print(f"mean reward of a decision: {rewards[0]:.2f} at first, {sum(rewards[-10:]) / 10:.2f} at last")
