"""``agent.symmetry=augment``: which mirror images are learned from, and envs that declare none."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.data import Bounded, Categorical, Composite, TensorSpec

from rlstack import envs
from rlstack.agents import make_agent
from rlstack.config import ConfigError
from rlstack.envs.world import Mirror
from rlstack.training.preflight import check_buildable, few_worlds
from tests.agents.small_agents import Decisions, small
from tests.refusals import refused
from tests.training.test_cadence import config

ROWS, FRAMES = 4, 16


def last_first(action: Tensor) -> Tensor:
    return 3 - action


def turned_round(mask: Tensor) -> Tensor:
    return mask.flip(-1)


class Mirrored(Decisions):
    """A world whose observations and actions change sign in the mirror, or whose choices change order."""

    def __init__(self, action: TensorSpec) -> None:
        self.discrete = isinstance(action, Categorical)
        super().__init__(Bounded(-2.0, 2.0, shape=(3,)), action, masked=self.discrete)

    def mirror(self) -> Mirror:
        return Mirror(operator.neg, last_first if self.discrete else operator.neg, turned_round)


def world(discrete: bool) -> Mirrored:
    # The bounds are not the agent's own, [-1, 1]: the mirror is of the world's actions.
    return Mirrored(Categorical(4, shape=()) if discrete else Bounded(-3.0, 3.0, shape=(2,)))


def image(entries: Any, env: Mirrored, agent: Any) -> dict[str, Tensor]:
    """Returns the mirror image of raw entries, with the observation as the networks see it."""
    found = {"observation": agent.normalized(-entries["observation"])}
    if "action" in entries.keys():  # noqa: SIM118
        found["action"] = 3 - entries["action"] if env.discrete else -entries["action"]
    if env.discrete:
        found["action_mask"] = entries["action_mask"].flip(-1)
    return found


@pytest.mark.parametrize(("name", "discrete"), [("dqn", True), ("td3", False), ("sac", True)])
def test_half_of_what_is_drawn_from_memory_is_mirrored(name: str, discrete: bool) -> None:
    env = world(discrete)
    agent = small(env, name=name, symmetry="augment", normalize_observations=True, n_step=1, batch_size=64)
    agent.learn(env.experience(agent, ROWS, FRAMES), ROWS * FRAMES)
    batch = agent.sample()
    told = agent.prepared(batch)
    shown = torch.zeros(len(batch), dtype=torch.bool)
    for part, drawn in ((told, batch), (told["next"], batch["next"])):
        plain = {**{key: drawn[key] for key in image(drawn, env, agent)}}
        plain["observation"] = agent.normalized(plain["observation"])
        for key, other in image(drawn, env, agent).items():
            rows = [entry.flatten(1) if entry.dim() > 1 else entry[:, None] for entry in (part[key], plain[key], other)]
            as_is, mirrored = (torch.isclose(rows[0].double(), entry.double()).all(-1) for entry in rows[1:])
            assert (as_is | mirrored).all(), key
            if key == "observation" and part is told:
                shown = mirrored
            assert (mirrored | ~shown).all() and (as_is | shown).all(), "a transition is mirrored as a whole"
    assert 16 < shown.sum() < 48
    for key in ("reward", "terminated", "done"):
        assert torch.equal(told["next", key], batch["next", key])
    before = [parameter.clone() for parameter in agent.parameters()]
    agent.learn(env.experience(agent, ROWS, FRAMES), 3 * ROWS * FRAMES)
    assert any(not torch.equal(old, new) for old, new in zip(before, agent.parameters()))


@pytest.mark.parametrize(("name", "discrete"), [("ppo", True), ("ppo", False), ("a2c", False), ("pqn", True)])
def test_a_minibatch_of_fresh_data_comes_with_its_mirror_image(name: str, discrete: bool) -> None:
    env = world(discrete)
    agent = small(env, name=name, symmetry="augment", normalize_observations=True)
    sequences = env.experience(agent, ROWS, FRAMES)
    agent.finish(sequences)  # a mean that is not zero
    batch = agent.rollout(sequences)
    step = agent.for_step(batch)
    assert len(step) == 2 * len(batch) and "image" not in step.keys()  # noqa: SIM118
    plain, mirrored = step.split(len(batch))
    raw = sequences.reshape(-1)
    for key, expected in image({**raw, "action": batch["action"]}, env, agent).items():
        if key in plain.keys():  # noqa: SIM118
            torch.testing.assert_close(mirrored[key], expected)
    for key in {"log_prob", "value", "return", "value_target"} & set(step.keys()):
        assert torch.equal(plain[key], mirrored[key]) and torch.equal(plain[key], batch[key])
    metrics = agent.update(batch)
    assert metrics and all(torch.isfinite(torch.as_tensor(value)) for value in metrics.values())


def test_ppo_takes_the_image_to_be_as_probable_as_what_was_done() -> None:
    """A policy that ignores the mirror keeps the probabilities of its own actions, and not those of their images."""
    env = world(False)
    agent = small(env, name="ppo", symmetry="augment", policy_gain=1.0)
    torch.nn.init.normal_(agent.actor.output.bias)  # without any it is as symmetric as its activations
    step = agent.for_step(agent.rollout(env.experience(agent, ROWS, FRAMES)))
    with torch.no_grad():
        ratio = agent.distribution(step["observation"]).log_prob(step["action"]) - step["log_prob"]
    own, images = ratio.chunk(2)
    assert own.abs().max() < 1e-5 < images.abs().max()


def test_a_world_without_a_mirror_can_be_acted_in_but_not_learned_in() -> None:
    env = Decisions(Bounded(-2.0, 2.0, shape=(3,)), Bounded(-1.0, 1.0, shape=(2,)))
    agent = small(env, name="sac", symmetry="augment")
    agent.policy(explore=False)(TensorDict({"observation": torch.zeros(1, 3)}, [1]))
    message = r"^agent\.symmetry=augment needs a world that has a mirror: it declares no mirror$"
    refused(ConfigError, message, agent.check_learning)


def test_training_is_refused_before_it_starts() -> None:
    """The check before training refuses a world whose rules have no mirror image."""
    mirrored = config("agent=sac", "env=marinenav", env__num_worlds=2, agent__symmetry="augment")
    with few_worlds(mirrored) as env, pytest.raises(ConfigError, match=r"set env\.colregs_penalty=0") as error:
        check_buildable(mirrored, env)
    assert "\n" not in str(error.value)
    make_agent("sac", envs.make("marinenav", num_worlds=2, colregs_penalty=0.0), symmetry="augment").check_learning()


def test_what_has_no_image_is_refused() -> None:
    hybrid = Composite({"axes": Bounded(-1.0, 1.0, shape=(2,)), "button": Categorical(3, shape=())})
    with pytest.raises(ConfigError, match=r"agent\.symmetry=augment: of hybrid actions"):
        make_agent("ppo", Mirrored(hybrid), symmetry="augment").check_learning()
    env = envs.make("cartpole", num_worlds=2)
    refused(ConfigError, "symmetry=augment is for data=replay here", make_agent, "torchrl_ppo", env, symmetry="augment")
