"""Hooks of worlds: envs of other libraries use the defaults, wrapped worlds answer as the inner worlds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torchrl.envs import EnvBase, RewardSum, SerialEnv, StepCounter, TransformedEnv

from rlstack import envs
from rlstack.envs.cartpole.env import CartPole
from rlstack.envs.world import WorldHooks, hooks_of
from rlstack.envs.wrappers import ActionRepeat, FrameStack, KeepObservation, Wrapper
from tests.agents.small_agents import Detour

ASKED_OF_THE_CLASS = {
    *("evaluation_options", "two_sided_options", "drawing_options", "tie_breaker", "observing", "replay_ending"),
    *("evaluation_set", "episode_options", "decided_by_episodes", "load_episodes", "load_replay", "replaces"),
}
OF_THE_ENV_ITSELF = {"carries_memory", "collect"}
"""Hooks that each env defines for itself: whether it carries recurrent states and collects many steps at once."""


class Talkative(CartPole):
    """A world whose hooks differ from the defaults."""

    evaluation_steps, num_stages, stage_names, pictures_per_second = 7, 2, ("low", "high"), 3.0
    saves_episodes = False
    total_steps, worker_failures = 12, 4  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__(num_worlds=2)
        self.input_features, self.nearest_obstacle = torch.nn.Identity, torch.norm
        self.told: list[Any] = []

    def reset_to(self, configs: Sequence[Any]) -> TensorDict:
        self.told.append(configs)
        return TensorDict(self.reset(), [2])

    def _enter_stage(self, stage: int) -> None:
        self.told.append(f"stage {stage}")


def test_a_wrapped_world_answers_as_the_world_within() -> None:
    world = Talkative()
    env = ActionRepeat(world, 2)
    assert env.innermost is world
    assert not env.saves_episodes and CartPole(num_worlds=1).saves_episodes
    assert env.pictures_per_second == 1.5, "a film has a picture for each action, which lasts two steps"
    assert FrameStack(env, 2).pictures_per_second == 1.5 and FrameStack(world, 2).pictures_per_second == 3.0
    plain = ("evaluation_steps", "num_stages", "stage_names")
    for name in (*plain, "total_steps", "worker_failures", "input_features", "nearest_obstacle"):
        assert getattr(env, name) == getattr(world, name) != getattr(WorldHooks(), name), name
    asked = ("count_on_from", "mirror", "players", "rand_action", "render", "set_noise_source", "sides")
    for name in asked:
        assert getattr(env, name) == getattr(world, name), f"{name} is a method of the world within"
    assert FrameStack(world, 2).nearest_obstacle is None
    assert env.told is world.told and not hasattr(env, "colour")
    assert KeepObservation(world, [1]).tell == world.tell  # which repeated actions repeat
    env.reset_to(["config"])
    env.set_stage(1)
    assert world.told == [["config"], "stage 1"]


@pytest.mark.parametrize("wrapper", [FrameStack, KeepObservation])
def test_a_mirror_knows_the_whole_observation_of_a_step(wrapper: Any) -> None:
    reason = wrapper(CartPole(num_worlds=1), [1] if wrapper is KeepObservation else 2).mirror()
    assert isinstance(reason, str) and "its mirror knows" in reason


def test_no_hook_is_forgotten_by_wrappers() -> None:
    """Each hook is forwarded by the wrapper, or read from the class, or defined by each env for itself."""
    hooks = {name for name in vars(WorldHooks) if not name.startswith("_")}
    own = set(vars(Wrapper)) | set(vars(ActionRepeat(CartPole(num_worlds=1), 2))) | {"set_stage"}
    assert hooks - own == ASKED_OF_THE_CLASS | OF_THE_ENV_ITSELF


def test_transforms_are_looked_through() -> None:
    world = Talkative()
    env = TransformedEnv(TransformedEnv(world, StepCounter()), RewardSum())
    assert hooks_of(env) is world


@pytest.mark.parametrize("make", [lambda: Detour(2, discrete=True), lambda: SerialEnv(1, lambda: Talkative())])
def test_envs_of_other_makes_have_the_defaults(make: Any) -> None:
    hooks = hooks_of(make())
    assert type(hooks) is WorldHooks
    assert (hooks.num_stages, hooks.saves_episodes, hooks.carries_memory) == (0, False, False)
    assert hooks.mirror() == "it declares no mirror"
    assert hooks.sides() is None and hooks.recorder([0]) is None and hooks.collect is None
    with pytest.raises(ValueError, match="has no stage 1"):
        hooks.set_stage(1)
    for ask in (lambda: hooks.reset_to([]), lambda: hooks.tell(torch.ones(1), torch.ones(1)), hooks.render):
        with pytest.raises(NotImplementedError):
            ask()


def made_by_a_function(num_worlds: int = 1) -> Talkative:
    return Talkative()


def of_another_make(num_worlds: int = 1) -> EnvBase:
    return Detour(num_worlds, discrete=True)


def test_a_world_is_asked_by_its_name_too() -> None:
    assert envs.world_hooks("cartpole") is CartPole
    assert envs.world_hooks(f"{__name__}:made_by_a_function") is Talkative
    assert envs.world_hooks(f"{__name__}:of_another_make") is WorldHooks
    assert WorldHooks.evaluation_set(3, 0) is None and WorldHooks.load_episodes("x") is None
