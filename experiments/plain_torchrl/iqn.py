"""IQN with prioritised replay on CartPole in plain TorchRL: ``python -m experiments.plain_torchrl.iqn``."""

import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.collectors import Collector
from torchrl.envs import Compose, GymEnv, InitTracker, RewardSum, TransformedEnv
from torchrl.modules import EGreedyModule
from torchrl.objectives import SoftUpdate

from rlstack.data import Replay, SumTreeSampler, TensorRows
from rlstack.losses import IQNLoss
from rlstack.networks.quantile import QuantileNetwork


def train(frames: int = 30_000, start: int = 1000, seed: int = 0) -> list[float]:
    """Trains an agent, and returns the returns of its episodes in their order."""
    torch.set_num_threads(1), torch.manual_seed(seed)  # more threads slow down such small networks
    env = TransformedEnv(GymEnv("CartPole-v1", categorical_action_encoding=True), Compose(RewardSum(), InitTracker()))
    env.set_seed(seed)
    loss = IQNLoss(QuantileNetwork(torch.nn.Linear(4, 64), 2, [64]), double=True)
    optimizer, updater = torch.optim.Adam(loss.parameters(), lr=1e-3), SoftUpdate(loss, tau=0.01)
    replay = Replay(storage=TensorRows(50_000), sampler=SumTreeSampler(50_000), batch_size=64)
    best = TensorDictModule(
        lambda seen: loss.network(seen, torch.rand(32)).mean(-2).argmax(-1), ["observation"], ["action"]
    )
    greedy = EGreedyModule(env.action_spec, eps_init=1.0, eps_end=0.05, annealing_num_steps=frames // 5)
    quiet, returns = {"auto_register_policy_transforms": False}, []
    for batch in Collector(env, TensorDictSequential(best, greedy), frames_per_batch=4, total_frames=frames, **quiet):
        greedy.step(batch.numel())
        returns += batch["next", "episode_reward"][batch["next", "done"]].tolist()
        replay.extend(batch)
        for _ in range(2 if len(replay) >= start else 0):
            loss(sample := replay.sample())["loss_critic"].backward()
            optimizer.step(), optimizer.zero_grad(), updater.step()
            replay.update_tensordict_priority(sample)
    return returns


if __name__ == "__main__":
    print(f"mean return of the last 20 episodes: {sum(train()[-20:]) / 20:.0f}")
