"""The opponent ``self``: the learner's present weights drive the other side."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import rlstack
from rlstack import envs
from rlstack.agents import make_agent
from rlstack.config import ConfigError
from rlstack.envs.registry import evaluation_options
from rlstack.play.pool import LEARNER, Pool, Standings
from tests.play.duel import NAME
from tests.refusals import refused


def duel(num_worlds: int = 16, **opponents: Any) -> Any:
    return envs.make(NAME, num_worlds=num_worlds, opponents={"evaluation": ["low"], **opponents})


def always(agent: Any, number: int) -> None:
    """Sets the last layer's biases so that the policy names this number."""
    layer = [module for module in agent.actor.modules() if isinstance(module, torch.nn.Linear)][-1]
    layer.weight.data.zero_()
    layer.bias.data.copy_(torch.nn.functional.one_hot(torch.tensor(number), 3) * 100.0)


def their_sum(env: Any, steps: int = 3) -> list[float]:
    """Returns what the other side named at the end of the first episodes; the learner names 0."""
    root = env.reset()
    for _ in range(steps):
        root["agents", "action"] = torch.zeros(env.num_worlds, 1, dtype=torch.int64)
        done, root = env.step_and_maybe_reset(root)
    return done["next", "agents", "observation"][::3, 0, 2].tolist()  # worlds of three steps


@pytest.mark.parametrize("recurrent", [None, {"kind": "gru", "size": 8, "layers": 1, "sequence_length": 4}])
def test_it_acts_by_the_weights_of_this_moment(recurrent: Any) -> None:
    env = duel(players=["self"])
    agent = make_agent("ppo", env, hidden=[8], recurrent=recurrent)
    env.follow(agent.policy(explore=True))
    for number in (2, 1, 0, 2):
        always(agent, number)
        assert set(their_sum(env)) == {3.0 * number}


def test_before_there_is_a_learner_it_acts_at_random() -> None:
    assert len(set(their_sum(duel(num_worlds=48, players=["self"])))) > 2


def test_it_learns_against_itself_and_says_nothing_of_its_strength() -> None:
    env = duel(players=["self", "low"], refresh=1)
    agent = make_agent("ppo", env, hidden=[8])
    env.follow(agent.policy(explore=True))
    always(agent, 1)
    batch = next(iter(rlstack.make_collector(env, agent.policy(explore=True), steps_per_batch=32)))
    agent.learn(rlstack.flatten_agents(batch), 512)
    itself, low = env.pool.entries
    assert itself.games > 10 and low.games > 10
    assert abs(itself.wins / itself.games - 0.5) < 0.2 and low.wins == low.games
    assert env.pool.recent_games == pytest.approx(env.pool.recent_wins)  # those against `low` alone, all won
    assert env.pool.ratings.rating("self") == 1500 and env.pool.ratings.rating(LEARNER) > 1500


def test_samplers_take_it_for_the_newest_and_an_equal() -> None:
    pool = Pool(["low", "self"])
    pool.record([("low", 1.0)] * 30)
    standings: Standings = pool.standings()
    assert standings.ratings[1] == standings.own > 1600 and standings.frames.tolist() == [0, 0]


def test_a_saved_world_goes_on_with_it() -> None:
    env, copy = (duel(players=["self", "random"], refresh=3) for _ in range(2))
    agent = make_agent("ppo", env, hidden=[8])
    always(agent, 2)
    for world in (env, copy):
        world.follow(agent.policy(explore=True))
    their_sum(env)
    copy.load_state_dict(env.state_dict())
    copy.reset()
    assert copy._names == env._names and copy.pool.state_dict() == env.pool.state_dict()
    player = copy._seats.players[copy._names.index("self")]
    assert player is copy.pool.learner(copy.inner)


def test_evaluations_leave_it_out() -> None:
    assert evaluation_options({"opponents": {"players": ["self", "low"]}})["opponents"]["players"] == ["low"]
    assert evaluation_options({"opponents": {"players": ["self"], "evaluation": ["low"]}})["opponents"]["players"] == [
        "low"
    ]
    for wrong in ({"players": ["self"], "evaluation": None}, {"players": ["low"], "evaluation": ["self"]}):
        refused(ConfigError, r"evaluation: self exists only during training; name others", duel, **wrong)
    refused(ConfigError, "opponent 'slf' is unknown, did you mean 'self'", duel, players=["slf"])
    with pytest.raises(ConfigError, match="opponent 'self' takes no options, got which"):
        duel(players=[{"player": "self", "which": "best"}])
