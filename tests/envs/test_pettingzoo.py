"""Parallel PettingZoo environments as worlds: slots, deaths, masks, ends, seeds, and data for the learner."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDictBase
from torchrl.envs import EnvBase
from torchrl.envs.utils import check_env_specs

from rlstack import envs
from rlstack.envs.foundation.processes import EnvironmentFailed, EnvironmentRaised
from rlstack.evaluation.evaluator import evaluate
from tests.evaluation.scripted import Scripted
from tests.refusals import refused

pettingzoo = pytest.importorskip("pettingzoo")

NAMES = ["late", "early", "absent"]


class March(pettingzoo.ParallelEnv):
    """Agent "early" dies after 2 steps, "late" is truncated after 4, "absent" never appears.

    Each observes [5 + steps, its previous action]; per step, "late" receives 1 and "early" 10. With ``masks``, only the
    action equal to the parity of the steps is allowed.
    """

    metadata = {"name": "march"}
    continuous = False

    def __init__(self, masks: str | None = None, start: int = 0) -> None:
        if not isinstance(start, int):
            raise ArithmeticError(f"{start!r}: no number")
        self.possible_agents = list(NAMES)
        self.agents: list[str] = []
        self.masks, self.start = masks, start
        self.seeds: list[int | None] = []

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        own = spaces.Box(np.array([5.0, -5.0], np.float32), 100.0, (2,), np.float32)
        mask = spaces.Box(0, 1, (2,), np.int8)
        return spaces.Dict({"observation": own, "action_mask": mask}) if self.masks == "observation" else own

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-2.0, 2.0, (1,), np.float32) if self.continuous else spaces.Discrete(2, start=self.start)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        self.seeds.append(seed)
        self.steps, self.agents = 0, ["early", "late"]
        return self._see(self.agents, {}), self._inform(self.agents)

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        assert self.agents and set(actions) == set(self.agents)
        assert all(self.action_space(agent).contains(action) for agent, action in actions.items())
        self.steps += 1
        acting = self.agents
        ends = {"early": self.steps == 2, "late": False}, {"early": False, "late": self.steps == 4}
        terminations, truncations = ({agent: kind[agent] for agent in acting} for kind in ends)
        self.agents = [agent for agent in acting if not terminations[agent] and not truncations[agent]]
        rewards = {agent: {"early": 10.0, "late": 1.0}[agent] for agent in acting}
        return self._see(acting, actions), rewards, terminations, truncations, self._inform(acting)

    def _mask(self) -> Any:
        return np.eye(2, dtype=np.int8)[self.steps % 2]

    def _see(self, agents: list[str], actions: dict[str, Any]) -> dict[str, Any]:
        seen = {a: np.array([5 + self.steps, np.sum(actions.get(a, 0))], np.float32) for a in agents}
        if self.masks != "observation":
            return seen
        return {agent: {"observation": own, "action_mask": self._mask()} for agent, own in seen.items()}

    def _inform(self, agents: list[str]) -> dict[str, Any]:
        return {agent: {"action_mask": self._mask()} if self.masks == "info" else {} for agent in agents}


class Push(March):
    """The same with continuous actions."""

    continuous = True


class Seeded(March):
    """Agents that see random numbers of their seed at first."""

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        seen, infos = super().reset(seed, options)
        generator = np.random.default_rng(seed)
        return {agent: (6 + generator.random(2)).astype(np.float32) for agent in seen}, infos


class Unequal(March):
    """Agents with different observations."""

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(0, 1, (3 if agent == "absent" else 2,), np.float32)


class Doomed(March):
    """Truncated agents die in the same step."""

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        seen, rewards, over, cut, infos = super().step(actions)
        return seen, rewards, {agent: over[agent] or cut[agent] for agent in over}, cut, infos


class Coming(March):
    """Agent "absent" appears in the second step, for one step."""

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        leaving = self.agents and "absent" in self.agents
        self.agents = [agent for agent in self.agents if agent != "absent"]
        seen, rewards, over, cut, infos = super().step({a: v for a, v in actions.items() if a != "absent"})
        if leaving:
            seen["absent"], rewards["absent"], over["absent"] = np.array([50, 0], np.float32), 100.0, True
        elif self.steps == 2:
            self.agents.append("absent")
            seen["absent"] = np.array([40, 0], np.float32)
        return seen, rewards, over, cut, infos


class Turns(March):
    """Only the agent whose turn it is is listed, without an observation of the other one."""

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        self.steps += 1
        before, self.agents = self.agents, [] if self.steps == 4 else [["early", "late"][self.steps % 2]]
        seen = {agent: np.array([5 + self.steps, 1], np.float32) for agent in self.agents}
        flags = dict.fromkeys(before, self.steps == 4)
        return seen, dict.fromkeys(before, 1.0), flags, dict.fromkeys(before, False), {agent: {} for agent in before}


class Wrong(March):
    """Answers with what it is given, in ``reset`` or in step ``at``."""

    def __init__(self, at: int = 1, reset: Any = None, raises: Any = None, info: Any = None, **parts: Any) -> None:
        super().__init__()
        self.at, self.wrong_reset, self.parts, self.raises, self.info = at, reset, parts, raises, info

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        answer = super().reset(seed, options)
        return answer if self.wrong_reset is None else self.wrong_reset

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        seen, rewards, over, cut, infos = super().step(actions)
        if self.steps == self.at:
            if self.raises is not None:
                raise self.raises
            for name, part in (("seen", seen), ("reward", rewards), ("over", over)):
                part.update({"late": self.parts[name]} if name in self.parts else {})
            infos["late"] = self.info or {}
        return seen, rewards, over, cut, infos


def make(world: str = "March", **options: Any) -> EnvBase:
    return envs.make("pettingzoo", id=f"{__name__}:{world}", **options)


def ones(env: EnvBase, td: TensorDictBase) -> TensorDictBase:
    return td.set(("agents", "action"), torch.ones_like(env.full_action_spec.zero()["agents", "action"]))


def run(env: EnvBase, steps: int) -> TensorDictBase:
    """Makes ``steps`` steps with actions of ones, by the fast path."""
    td, taken = env.reset(), []
    for _ in range(steps):
        step, td = env.step_and_maybe_reset(ones(env, td))
        taken.append(step)
    return torch.stack(taken, 1)


def test_agents_keep_their_slots_and_the_dead_are_silent() -> None:
    rollout = run(make(num_envs=2), 4)
    active = rollout["agents", "active"]
    assert active[0].tolist() == [[True, True, False]] * 2 + [[True, False, False]] * 2
    following = rollout["next", "agents"]
    there = [[True, True, False], [True, False, False], [True, False, False], [False] * 3]
    assert following["active"][0].tolist() == there
    assert following["reward"][0, ..., 0].tolist() == [[1, 10, 0], [1, 10, 0], [1, 0, 0], [1, 0, 0]]
    assert following["observation"][0, 1].tolist() == [[7, 1], [7, 1], [0, 0]]  # the true last observation of "early"
    assert following["observation"][0, 2].tolist() == [[8, 1], [0, 0], [0, 0]]
    assert following["observation"][0, 3, 0].tolist() == [9, 1]
    assert following["terminated"][0, :, 1, 0].tolist() == [False, True, True, True]
    assert not following["truncated"][0, :, 1].any()
    assert following["truncated"][0, :, 0, 0].tolist() == [False, False, False, True]
    assert not following["terminated"][0, :, 0].any()
    assert torch.equal(following["done"], following["terminated"] | following["truncated"])


def test_the_world_ends_with_its_last_agent() -> None:
    rollout = run(make(), 9)
    ends = [False, False, False, True] * 2 + [False]
    assert rollout["next", "done"].flatten().tolist() == rollout["next", "truncated"].flatten().tolist() == ends
    assert not rollout["next", "terminated"].any()
    episode = rollout["next", "episode"]
    assert episode["length"].flatten().tolist() == [1, 2, 3, 4] * 2 + [1]
    assert episode["return"].flatten().tolist() == [5.5, 11, 11.5, 12] * 2 + [5.5]  # mean over the two present agents
    assert rollout["agents", "observation"][0, 4, :, 0].tolist() == [5, 5, 0]
    assert rollout["agents", "active"][0, 4].tolist() == [True, True, False]


def test_a_time_limit_cuts_short_and_deaths_terminate() -> None:
    rollout = run(make(max_steps=2), 2)
    agents = rollout["next", "agents"]
    assert agents["terminated"][0, 1, :, 0].tolist() == [False, True, True]
    assert agents["truncated"][0, 1, :, 0].tolist() == [True, False, False]
    assert rollout["next", "truncated"][0, :, 0].tolist() == [False, True]
    rollout = run(make("Doomed"), 4)
    assert rollout["next", "terminated"][0, :, 0].tolist() == [False, False, False, True]
    assert not rollout["next", "truncated"].any() and not rollout["next", "agents", "truncated"].any()


def test_an_agent_that_waits_for_its_turn_has_not_terminated() -> None:
    rollout = run(make("Turns"), 4)
    assert rollout["agents", "active"][0, 1:, :2].tolist() == [[True, False], [False, True], [True, False]]
    following = rollout["next", "agents"]
    assert following["terminated"][0, :, :2, 0].tolist() == [[False, False]] * 3 + [[True, False]]
    assert following["truncated"][0, 0, :2, 0].tolist() == [False, True]
    assert following["observation"][0, 0, 1].tolist() == [5, 0], "its last one"
    assert rollout["next", "terminated"][0, :, 0].tolist() == [False, False, False, True]


@pytest.mark.parametrize(
    ("kwargs", "told"),
    [
        ({"reset": {"late": 1}}, r"reset returns one dict; PettingZoo's reset\(seed=, options=\) returns \(obser"),
        ({"reset": ({"late": [1, 1]}, {})}, "reset: agent 'early': it is listed, but has no observation"),
        ({"seen": [7.0]}, r"step 1 .*: agent 'late': the observation does not fit .* shape \[1\], but the space"),
        ({"reward": [0.5], "at": 2}, r"step 2 of an episode: agent 'late': the reward is \[0.5\], it must be a number"),
        ({"over": "no", "at": 2}, "step 2 of an episode: agent 'late': terminated is 'no', it must be True or False"),
        ({"info": {"action_mask": [1, 1]}}, "step 1 .*: its info has an action mask, but none had one at the first"),
        ({"raises": KeyError("x"), "at": 2}, r"step 2 .* raised KeyError: 'x' \(test_pettingzoo.py, line \d+\)"),
    ],
)
def test_an_answer_that_does_not_fit_is_one_line(kwargs: dict[str, Any], told: str) -> None:
    with pytest.raises((EnvironmentFailed, EnvironmentRaised), match=rf"^{__name__}:Wrong: {told}[^\n]*$"):
        run(make("Wrong", kwargs=kwargs), 2)


def test_an_ended_world_can_be_stepped_on() -> None:
    env = make(action_repeat=3)
    step, td = env.step_and_maybe_reset(ones(env, env.reset()))
    step, td = env.step_and_maybe_reset(ones(env, td))  # the environment refuses a fifth step
    assert step["next", "agents", "reward"][0, 0].item() == 1 and step["next", "episode", "length"].item() == 4
    assert step["next", "agents", "observation"][0, 0].tolist() == [9, 1]
    assert step["next", "truncated"].all() and td["agents", "observation"][0, 0].tolist() == [5, 0]


def test_an_agent_may_come_later() -> None:
    following = run(make("Coming"), 4)["next", "agents"]
    assert following["active"][0, :, 2].tolist() == [False, True, False, False]
    assert following["observation"][0, 1:3, 2, 0].tolist() == [40, 50]
    assert following["reward"][0, :, 2, 0].tolist() == [0, 0, 100, 0]
    assert following["done"][0, :, 2, 0].tolist() == [True, False, True, True]


@pytest.mark.parametrize("masks", ["observation", "info"])
def test_masks_are_true_for_what_is_allowed(masks: str) -> None:
    env = make(kwargs={"masks": masks})
    td = env.reset()
    assert td["agents", "action_mask"].tolist() == [[[True, False], [True, False], [True, True]]]
    assert td["agents", "observation"].shape == (1, 3, 2)
    step, td = env.step_and_maybe_reset(ones(env, td))
    assert step["next", "agents", "action_mask"].tolist() == [[[False, True], [False, True], [True, True]]]
    assert torch.equal(td["agents", "action_mask"], step["next", "agents", "action_mask"])


@pytest.mark.parametrize("wrappers", [{}, {"frame_stack": 2}])
def test_random_actions_are_allowed_ones(wrappers: dict[str, int]) -> None:
    rollout = make(num_envs=4, kwargs={"masks": "info"}, **wrappers).rollout(20, break_when_any_done=False)
    action, mask = rollout["agents", "action"], rollout["agents", "action_mask"]
    assert mask.gather(-1, action[..., None]).all() and 0 < action.float().mean() < 1


def test_actions_reach_the_environment_in_its_own_terms() -> None:
    env = make(kwargs={"start": 3})
    td = env.rand_action(env.reset())
    assert td["agents", "action"].shape == (1, 3) and td["agents", "action"].max() <= 1
    step, _ = env.step_and_maybe_reset(ones(env, td))
    assert step["next", "agents", "observation"][0, 0, 1].item() == 4
    env = make("Push")
    td = env.reset()
    td["agents", "action"] = torch.tensor([[[9.0], [-0.5], [0.0]]])
    step, _ = env.step_and_maybe_reset(td)
    assert step["next", "agents", "observation"][0, :2, 1].tolist() == [2, -0.5]  # clipped to the space
    assert ("agents", "action_mask") not in make("Push", kwargs={"masks": "info"}).reset().keys(True)


def test_seeds_come_from_the_worlds_generator() -> None:
    def seeds(env: Any) -> list[Any]:
        run(env, 9)
        return [inner.seeds[-3:] for inner in env._envs]

    first, again, other = (seeds(make(num_envs=2, seed=seed)) for seed in (1, 1, 2))
    assert first == again != other
    assert len({seed for world in first for seed in world}) == 6


def test_processes_that_divide_the_worlds_play_different_episodes() -> None:
    seeds = []
    for first, seed in ((0, 1), (2, 1), (0, 3), (2, 3)):  # of two runs
        env: Any = make(num_envs=2)
        env.share(first, 4, seed=seed)
        env.reset()
        seeds += [inner.seeds[-1] for inner in env._envs]
    assert len(set(seeds)) == 8


def test_it_is_evaluated() -> None:
    policy, options = Scripted(lambda td: td["agents", "active"].long()), {"id": f"{__name__}:March", "num_envs": 2}
    result = evaluate(policy, "pettingzoo", options, 3, 1)
    assert result.episodes["return"].tolist() == [12] * 3 and result.episodes["length"].tolist() == [4] * 3


def test_each_environment_is_closed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Any] = []
    monkeypatch.setattr(March, "close", lambda env: closed.append(env))
    env = envs.make("pettingzoo", id=f"{__name__}:March", num_envs=2)
    env.reset()
    env.close()
    env.close()
    refused(ValueError, "all agents must share one", envs.make, "pettingzoo", id=f"{__name__}:Unequal")
    assert [type(env) for env in closed] == [March, March, Unequal]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"id": f"{__name__}:Unequal"}, r"all agents must share one observation space; late has .*, but absent Box"),
        ({"id": f"{__name__}:Nobody"}, "has no 'Nobody'; it has"),
        ({"id": "gymnasium.envs.classic_control:CartPoleEnv"}, "environments of gymnasium, use env=gymnasium env.id="),
        ({}, "id: missing, such as"),
        ({"id": "nowhere/nothing_v0"}, "id: nowhere/nothing_v0 cannot be imported: No module named"),
        ({"id": "classic/rps_v1"}, r"did you mean 'pettingzoo\.classic\.rps_v2'"),
        ({"id": "mpe2.simple_spread_v3"}, "is not one of PettingZoo's own; name others as package.module:parallel_env"),
        ({"id": "pettingzoo.utils.env"}, "has no 'parallel_env'"),
        ({"id": f"{__name__}:March", "kwargs": {"speed": 1}}, "with kwargs .*'speed'"),
        ({"id": f"{__name__}:March", "kwargs": {"start": "a"}}, r"'a': no number \(test_pettingzoo.py, line \d+\)"),
        ({"id": f"{__name__}:March", "num_envs": 0}, "num_envs: 0 is not a positive number"),
    ],
)
def test_a_mistake_is_one_clear_line(options: dict[str, Any], message: str) -> None:
    refused(ValueError, message, envs.make, "pettingzoo", **options)


def test_agents_that_take_turns_are_refused() -> None:
    pytest.importorskip("pygame")
    refused(ValueError, "its agents take turns", envs.make, "pettingzoo", id="classic/tictactoe_v3")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("id", "module"),
    [("classic/rps_v2", "pygame"), ("sisl/multiwalker_v9", "Box2D"), ("mpe2.simple_spread_v3:parallel_env", "mpe2")],
)
def test_real_environments_keep_to_their_specs(id: str, module: str) -> None:
    pytest.importorskip(module)
    env = envs.make("pettingzoo", id=id, num_envs=2, max_steps=5)
    check_env_specs(env, seed=1)
    rollout = env.rollout(11, break_when_any_done=False)
    assert rollout["next", "done"].sum() >= 4
    env.close()
