"""Small agents, worlds and made-up experience for the tests of agents."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
import yaml
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Binary, Bounded, Categorical, Composite, MultiCategorical, TensorSpec, Unbounded
from torchrl.envs import EnvBase

from rlstack import envs
from rlstack.agents import agent_class, make_agent
from rlstack.agents.interface import Interface
from rlstack.config import ConfigError, conf_dir
from rlstack.data.collector import make_collector
from rlstack.data.flatten import flatten_agents
from rlstack.envs.world import WorldHooks

_SMALL: dict[str, Any] = {
    **{"self_features": 8, "object_features": [4], "hidden": [16, 16], "minibatch_size": 16, "epochs": 2},
    **{"batch_size": 16, "buffer_size": 1000, "random_frames": 0, "learning_starts": 0, "frames_per_update": 10},
    **{"n_step": 2, "num_atoms": 11, "num_quantiles": 8, "num_critics": 2, "actor_every": 1, "candidates": 1},
    **{"cvar": 1.0},
}


def options_of(name: str, **values: Any) -> dict[str, Any]:
    """Returns those of the values that are options of the algorithm."""
    return {
        option: value for option, value in values.items() if option in agent_class(name).Config.__dataclass_fields__
    }


def takes(name: str, action: TensorSpec) -> bool:
    """Returns whether the algorithm can act with this action spec."""
    try:
        agent_class(name).check(Interface.of(cast("EnvBase", Decisions(Unbounded(3), action))), name)
    except ConfigError:
        return False
    return True


class Detour(EnvBase):
    """Two decisions an episode: the first pays its action at once and costs 1.5 times as much after the second.

    Who looks one step ahead chooses 1, who looks to the end chooses -1. Observation ``[phase, debt]``, action
    ``[1]``, or a choice of -1, 0.5 and 1; the second action is best at 0.5.
    """

    def __init__(self, num_worlds: int = 32, low: float = -1.0, discrete: bool = False) -> None:
        super().__init__(batch_size=[num_worlds])
        lead = (num_worlds,)
        self.observation_spec = Composite({"observation": Unbounded((*lead, 2))}, shape=lead)
        action = Categorical(3, shape=lead) if discrete else Bounded(low, 1.0, shape=(*lead, 1))
        self.action_spec = Composite({"action": action}, shape=lead)
        self.reward_spec = Composite({"reward": Unbounded((*lead, 1))}, shape=lead)
        ends = {name: Binary(1, shape=(*lead, 1), dtype=torch.bool) for name in ("done", "terminated", "truncated")}
        self.done_spec = Composite(ends, shape=lead)
        self.phase, self.debt = torch.zeros(lead), torch.zeros(lead)

    def _observe(self) -> TensorDict:
        return TensorDict({"observation": torch.stack((self.phase, self.debt), -1)}, self.batch_size)

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDict:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        chosen = torch.ones_like(self.phase, dtype=torch.bool) if mask is None else mask.reshape(-1)
        self.phase, self.debt = (torch.where(chosen, 0.0, value) for value in (self.phase, self.debt))
        return self._observe()

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        action = tensordict["action"]
        action = action[:, 0] if action.is_floating_point() else torch.tensor([-1.0, 0.5, 1.0])[action]
        first = self.phase == 0
        reward = torch.where(first, action, -1.5 * self.debt - (action - 0.5).square())
        self.phase, self.debt = self.phase + 1, torch.where(first, action, self.debt)
        done = ~first[:, None]
        ends = {"done": done, "terminated": done, "truncated": torch.zeros_like(done)}
        return self._observe().update({"reward": reward[:, None], **ends})

    def _set_seed(self, seed: int | None) -> None:
        pass


def small(env: Any = None, total_frames: int = 1000, name: str = "acqn", **overrides: Any) -> Any:
    torch.manual_seed(0)
    env = Detour() if env is None else env
    return make_agent(name, env, total_frames, **{**SMALL[name], **overrides})


class Decisions(WorldHooks):
    """Stands in for an env with its specs alone, which suffice to build an agent and to make up its experience.

    Args:
        observation, action: specs of one decision.
        masked: with an ``action_mask``; the first option of every choice is always forbidden.
        nearest: distance to the nearest obstacle as a function of the observation.
    """

    def __init__(
        self,
        observation: TensorSpec,
        action: TensorSpec,
        masked: bool = False,
        nearest: Callable[[Any], Tensor] | None = None,
    ) -> None:
        self.batch_size = torch.Size([])
        self.observation_spec = Composite({"observation": observation})
        self.full_action_spec = Composite({"action": action})
        self.masked, self.nearest_obstacle = masked, nearest
        if masked:
            counts = action.nvec.tolist() if isinstance(action, MultiCategorical) else [int(action.n)]
            self.allowed = torch.cat([torch.arange(n) > 0 for n in counts])
            self.observation_spec["action_mask"] = Binary(len(self.allowed), dtype=torch.bool)

    def draw(self, *lead: int) -> TensorDict:
        """Returns what a policy reads, with the leading dimensions ``lead``."""
        seen = self.observation_spec["observation"]
        entries = {"observation": seen.expand(*lead, *seen.shape).rand()}
        if self.masked:
            entries["action_mask"] = self.allowed.expand(*lead, -1)
        return TensorDict(entries, lead)

    def experience(self, agent: Any, rows: int, frames: int) -> TensorDict:
        """Returns ``[rows, frames]`` in the form of ``flatten_agents``, with the exploring agent's own actions."""
        here, following = agent.policy(explore=True)(self.draw(rows, frames)), self.draw(rows, frames)
        dtype = agent.interface.dtype
        following["reward"] = torch.randn(rows, frames, 1, dtype=dtype)
        following["done"] = torch.rand(rows, frames, 1) < 0.2
        following["terminated"] = following["done"] & (torch.rand(rows, frames, 1) < 0.5)
        active = torch.ones(rows, frames, dtype=torch.bool)
        return here.update({"next": following, "active": active})


def plain(discrete: bool, dtype: torch.dtype = torch.float32) -> Decisions:
    """Returns a stand-in that observes three numbers and takes one of four choices, or two numbers in [-1, 1]."""
    action = Categorical(4, shape=()) if discrete else Bounded(-1.0, 1.0, shape=(2,), dtype=dtype)
    return Decisions(Bounded(-2.0, 2.0, shape=(3,), dtype=dtype), action)


YAMLS = {path.stem: yaml.safe_load(path.read_text()) for path in sorted((conf_dir() / "agent").glob("*.yaml"))}
"""Every shipped configuration of an agent."""
ALGORITHMS = [
    name
    for name, options in YAMLS.items()
    if options.get("algorithm") == name and name != "legacy" and not name.endswith("_published")
]
"""Those that learn, but for those around TorchRL's losses: a new one is in every list of the tests from here on."""
SMALL: dict[str, dict[str, Any]] = {name: options_of(name, **_SMALL) for name in ALGORITHMS}
for _name in ("sac", "tqc"):
    del SMALL[_name]["num_atoms"]  # of categorical critics alone
SMALL["ppo_published"] = {key: _SMALL[key] for key in ("self_features", "object_features", "hidden")}
SMALL["ppo_published"] |= {"shared_layers": 0, "normalize_observations": False, "normalize_rewards": False}
SMALL["rainbow_published"] = SMALL["rainbow"]
FRESH = [name for name in ALGORITHMS if not options_of(name, buffer_size=0)]
"""Those that learn from the data their present policy has gathered."""
ON_POLICY = [name for name in FRESH if takes(name, MultiCategorical([3, 2]))]
REMEMBERING = [name for name in ALGORITHMS if options_of(name, recurrent=None)]
"""Those that may have a memory."""
CONTINUOUS = [name for name in ALGORITHMS if takes(name, Bounded(-1.0, 1.0, shape=(2,)))]
DISCRETE = [name for name in ALGORITHMS if takes(name, Categorical(4, shape=()))]
CASES = [(name, False) for name in CONTINUOUS] + [(name, True) for name in DISCRETE]
"""Every agent with the kinds of action it takes: name, discrete."""


def sequences(frames: int) -> TensorDict:
    """Returns ``frames`` made-up decisions of one world."""
    following = {
        "observation": torch.randn(1, frames, 2),
        "reward": torch.randn(1, frames, 1),
        "terminated": torch.zeros(1, frames, 1, dtype=torch.bool),
        "done": torch.zeros(1, frames, 1, dtype=torch.bool),
    }
    entries = {
        "observation": torch.randn(1, frames, 2),
        "action": torch.rand(1, frames, 1) * 2 - 1,
        "active": torch.ones(1, frames, dtype=torch.bool),
        "next": following,
    }
    return TensorDict(entries, [1, frames])


def copies(values: list[Tensor]) -> list[Tensor]:
    return [value.detach().clone() for value in values]


def equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(map(torch.equal, a, b))


def learn(agent: Any, env: Decisions, rounds: int = 2) -> dict[str, Any]:
    """Makes some updates on made-up experience, which must change something and stay finite; returns the metrics."""
    before, metrics = copies(agent.parameters()), {}
    for _ in range(rounds):
        metrics = agent.learn(env.experience(agent, 3, 16), agent.frames + 48)
    assert agent.updates > 0 and not equal(before, copies(agent.parameters()))
    assert all(torch.isfinite(parameter).all() for parameter in agent.parameters())
    assert metrics and all(torch.isfinite(torch.as_tensor(value)).all() for value in metrics.values())
    return metrics


def batches(env: Any, agent: Any, steps: int = 8) -> Iterator[TensorDict]:
    """Yields what an agent that explores has met in ``steps`` steps of a world."""
    for batch in make_collector(env, agent.policy(explore=True), steps):
        yield flatten_agents(batch, agent.interface.group)


def some_arrive(robots: int = 3, num_worlds: int = 3) -> Any:
    """Makes MarineNav with one robot less in half of the worlds; some robots arrive, or collide, before the others."""
    curriculum = {
        "timesteps": None,
        "num_robots": [max(robots - 1, 1), robots],
        "num_cores": [0, 0],
        "num_obstacles": [1, 3],
        "min_start_goal_dis": [5.0, 5.0],
    }
    options = {"max_steps": 12, "curriculum": curriculum, "perception_noise": False}
    return envs.make("marinenav", num_worlds=num_worlds, seed=1, **options)


def take_empty_masks(agent: Any, env: Decisions) -> None:
    """Lets an agent learn and act where nothing is allowed at the end of an episode, and while others go on."""
    data = env.experience(agent, 3, 20)
    over = data["next", "terminated"][..., 0]
    data["next", "action_mask"] = data["next", "action_mask"] & ~over[..., None]
    assert over.any()
    metrics = agent.learn(data, 60)
    assert all(torch.isfinite(torch.as_tensor(value)).all() for value in metrics.values())
    assert all(torch.isfinite(parameter).all() for parameter in agent.parameters())
    assert not any(optimizer.refused for optimizer in agent.optimizers.values())
    waiting = env.draw(50)
    waiting["action_mask"] = torch.zeros(50, 4, dtype=torch.bool)
    for explore in (True, False):
        assert agent.policy(explore)(waiting.clone())["action"].shape == (50,)
