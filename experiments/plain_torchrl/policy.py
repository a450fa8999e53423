"""The policy of a run in TorchRL's own loop: ``python -m experiments.plain_torchrl.policy runs/<run>``."""

import sys

import torch
from tensordict import TensorDictBase
from torchrl.envs.utils import ExplorationType, set_exploration_type

import rlstack


def play(run: str, worlds: int = 8, steps: int = 500, explore: bool = False, seed: int = 0) -> TensorDictBase:
    """Steps of a run's agent in its world ``[worlds, steps]``, episodes following one another."""
    loaded = rlstack.load(run)
    env = loaded.make_env(num_worlds=worlds, seed=seed)
    with torch.no_grad(), set_exploration_type(ExplorationType.RANDOM if explore else ExplorationType.DETERMINISTIC):
        return env.rollout(steps, loaded.agent.policy(explore=explore), break_when_any_done=False)


if __name__ == "__main__":
    batch = play(sys.argv[1])
    returns = batch["next", "episode", "return"][batch["next", "done"]]
    print(f"{len(returns)} episodes, mean return {returns.mean():.1f}")
