"""PPO in plain PyTorch on MarineNav as Gymnasium has it: ``python -m experiments.plain_torchrl.gymnasium_ppo``."""

import gymnasium
import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal

GAMMA, LAMBDA, CLIP, EPOCHS, MINIBATCH = 0.99, 0.95, 0.2, 4, 512


def flat(seen: dict[str, Tensor]) -> Tensor:
    """The robot's own state and the objects that it perceives, ``[worlds, features]``."""
    return torch.cat((seen["self"], (seen["objects"] * seen["mask"].unsqueeze(-1)).flatten(-2)), -1).float() / 10


class ActorCritic(nn.Module):
    """A normal distribution of actions, and the value of an observation."""

    def __init__(self, features: int, actions: int) -> None:
        super().__init__()
        self.actor, self.critic = (
            nn.Sequential(nn.Linear(features, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, size))
            for size in (actions, 1)
        )
        self.log_scale = nn.Parameter(torch.full((actions,), -0.5))

    def forward(self, observation: Tensor) -> tuple[Independent, Tensor]:
        return Independent(Normal(self.actor(observation), self.log_scale.exp()), 1), self.critic(observation)[..., 0]


def train(batches: int = 300, worlds: int = 64, steps: int = 64, seed: int = 0) -> list[float]:
    """Trains a policy, and returns the mean reward of a step in each batch."""
    torch.manual_seed(seed)
    env = gymnasium.make_vec("envs:rlstack/MarineNav-v0", num_envs=worlds, output="torch")
    observation = flat(env.reset(seed=seed)[0])
    model = ActorCritic(observation.shape[-1], env.single_action_space.shape[0])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    waiting, rewards = torch.zeros(worlds, dtype=torch.bool), []
    for _ in range(batches):
        rows: list[tuple[Tensor, ...]] = []
        with torch.no_grad():
            for _ in range(steps):
                distribution, value = model(observation)
                action = distribution.sample()
                seen, reward, terminated, truncated, _ = env.step(action.clamp(-1, 1))
                following = flat(seen)  # of an episode that has ended its last one; the next step begins another
                target = reward.float() + GAMMA * model(following)[1] * ~terminated
                over = terminated | truncated
                rows.append((observation, action, distribution.log_prob(action), value, target, reward, over, ~waiting))
                observation, waiting = following, over
        seen_, actions, log_probs, values, targets, gained, overs, valid = map(torch.stack, zip(*rows))
        advantages, last = torch.zeros_like(values), torch.zeros(worlds)
        for step in reversed(range(steps)):  # Schulman et al. 2016, equation 16
            advantages[step] = last = targets[step] - values[step] + GAMMA * LAMBDA * ~overs[step] * last
        rewards.append(gained[valid].mean().item())
        parts = [part[valid] for part in (seen_, actions, log_probs, advantages, advantages + values)]
        for index in [index for _ in range(EPOCHS) for index in torch.randperm(len(parts[0])).split(MINIBATCH)]:
            inputs, action, log_prob, advantage, returns = (part[index] for part in parts)
            distribution, value = model(inputs)
            ratio = (distribution.log_prob(action) - log_prob).exp()
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            gain = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage).mean()
            optimizer.zero_grad()
            (0.5 * (value - returns).square().mean() - gain).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
    env.close()
    return rewards


if __name__ == "__main__":
    torch.set_num_threads(1)  # more slow down such small networks
    rewards = train()
    print(f"mean reward of a step: {rewards[0]:.2f} at first, {sum(rewards[-10:]) / 10:.2f} at last")
