"""Players are found by their source, and drive the sides at which they are seated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rlstack import envs
from rlstack.agents import make_agent
from rlstack.config import ConfigError, to_plain
from rlstack.play.players import EMPTY, PolicyPlayer, Seats, half_worlds, make_player, name_of, sides_of
from rlstack.runs.checkpoint import write_checkpoint
from rlstack.runs.loading import load
from tests.play.duel import NAME, Counting, CountingItself, Duel, Watching
from tests.refusals import refused


def seats_of(env: Any, assignment: list[list[int]], *players: Any) -> Seats:
    seats = Seats(env, players)
    seats.seat(torch.ones(len(assignment), dtype=torch.bool), torch.tensor(assignment))
    return seats


def test_half_worlds_are_the_sides_of_one_world_after_another() -> None:
    env = Duel(num_worlds=2, size=2)
    env.sums = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    halves = half_worlds(env._current()["agents"])
    assert halves.batch_size == (4, 2)
    assert halves["observation"][:, :, 1].tolist() == [[1, 1], [2, 2], [3, 3], [4, 4]]


def test_everyone_acts_for_its_own_sides_and_is_asked_once() -> None:
    env = Duel(num_worlds=3, size=2)
    a, b, c = (Watching(name, number) for number, name in enumerate("abc"))
    seats = seats_of(env, [[0, 1], [1, 0], [2, 1]], a, b, c)
    assert seats.act(env.reset()["agents"]).tolist() == [[0, 0, 1, 1], [1, 1, 0, 0], [2, 2, 1, 1]]
    assert [player.seen[0][0] for player in (a, b, c)] == [[0, 3], [1, 2, 5], [4]]
    assert [len(player.seen) for player in (a, b, c)] == [1, 1, 1]


def test_an_empty_seat_keeps_the_action_that_is_given() -> None:
    env = Duel(num_worlds=2)
    seats = seats_of(env, [[EMPTY, 0], [EMPTY, 0]], Watching("a", 1))
    assert seats.act(env.reset()["agents"], torch.tensor([[2, 0], [0, 0]])).tolist() == [[2, 1], [0, 1]]
    assert seats.act(env.reset()["agents"]).tolist() == [[0, 1], [0, 1]]


@pytest.mark.parametrize("policy", [Counting, CountingItself])
def test_a_memory_is_kept_for_each_side_and_forgotten_where_an_episode_begins(policy: Any) -> None:
    env = Duel(num_worlds=2)
    seats = seats_of(env, [[0, 1], [1, 0]], PolicyPlayer(policy(), "counting"), Watching("b", 0))
    agents = env.reset()["agents"]
    assert seats.act(agents).tolist() == [[0, 0], [0, 0]]
    assert seats.act(agents).tolist() == [[1, 0], [0, 1]]
    seats.seat(torch.tensor([False, True]), torch.tensor([[1, 0], [1, 0]]))
    assert seats.act(agents).tolist() == [[2, 0], [0, 0]]
    seats.begin()
    assert seats.act(agents).tolist() == [[0, 0], [0, 0]]


def test_a_memory_can_be_saved() -> None:
    env = Duel(num_worlds=1)
    players = [PolicyPlayer(Counting(), "counting") for _ in range(2)]
    agents = env.reset()["agents"]
    first = seats_of(env, [[0, 0]], players[0])
    first.act(agents)
    second = seats_of(env, [[0, 0]], players[1])
    players[1].load_state_dict(players[0].state_dict())
    assert second.act(agents).tolist() == first.act(agents).tolist() == [[1, 1]]


# -- sources -----------------------------------------------------------------------------------------------------


def test_players_of_the_world_by_name() -> None:
    env = Duel(num_worlds=2)
    seats = seats_of(env, [[0, 1], [1, 2]], *(make_player(name, env) for name in ("high", "low", "random")))
    actions = seats.act(env.reset()["agents"])
    assert actions[0].tolist() == [2, 0] and actions[1, 0] == 0
    assert set(torch.stack([seats.act(env.reset()["agents"])[1, 1] for _ in range(40)]).tolist()) == {0, 1, 2}


def test_a_checkpoint_plays_as_its_greedy_policy(tmp_path: Path) -> None:
    env, agent, path = Duel(num_worlds=3, size=2), make_agent("ppo", Duel(), hidden=[8]), tmp_path / "ppo0.pt"
    config = {"agent": to_plain(agent.config), "env": {"name": NAME}, "total_frames": 1000}
    write_checkpoint(path, {"frames": 7, "agent": agent.state_dict(), "config": config}, 7)
    root = env.reset()
    root["agents", "observation"] = torch.randn(3, 4, 4)
    expected = load(path).agent.policy(explore=False)(root.clone())["agents", "action"]
    for source in (str(path), f"rlstack:{path}", f"checkpoint:{path}", {"player": str(path), "which": "latest"}):
        seats = seats_of(env, [[0, 1]] * 3, make_player(source, env), Watching("b", 0))
        assert seats.act(root["agents"])[:, :2].tolist() == expected[:, :2].tolist()
    sources = (str(path), "sb3:/x/model.zip", "runs/ppo_0.5/")
    assert [name_of(source) for source in sources] == ["ppo0", "model", "ppo_0.5"]


def test_an_adapter_plays() -> None:
    env = Duel(num_worlds=2)
    player = make_player("callable:tests.play.test_players:two_where_time_is_up", env, "mine")
    assert player.name == "mine"
    env.reset()
    env.time = torch.tensor([0.0, 3.0])
    assert seats_of(env, [[0, 0], [0, 0]], player).act(env._current()["agents"]).tolist() == [[0, 0], [2, 2]]


def two_where_time_is_up(observation: Any) -> Any:
    return (observation[:, 0] > 0.5) * 2


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("hihg", "opponent 'hihg' is unknown, did you mean 'high'.*allowed: random, high, low, a run directory"),
        ("sb4:model.zip", "opponent 'sb4:model.zip': kind: no option 'sb4', did you mean 'sb3'"),
        ({"player": "high", "which": "best"}, "opponent 'high' takes no options, got which"),
        ({"name": "x"}, "give a name, a path or kind:path"),
        (3, "give a name, a path or kind:path"),
    ],
)
def test_unknown_players_are_refused_in_one_line(source: Any, message: str) -> None:
    refused(ConfigError, message, make_player, source, Duel())


def test_worlds_without_sides_are_refused() -> None:
    message = "MarineNav does not have two sides that play against each other; known: Echelon, Rocket"
    refused(ConfigError, message, sides_of, envs.make("marinenav", num_worlds=1))


@pytest.mark.parametrize("actions", ["multi", "lookup90", "box8"])
def test_rules_drive_some_of_rockets_cars_as_they_would_drive_all(actions: str) -> None:
    env: Any = envs.make("rocket", num_worlds=4, actions=actions, observation="compact", blue=2, orange=1)
    root = env.reset()
    every = seats_of(env, [[0, 0]] * 4, make_player("rule", env)).act(root["agents"])
    some = seats_of(env, [[0, 1], [1, 0], [1, 1], [0, 0]], make_player("rule", env), make_player("random", env))
    chosen = some.act(root["agents"])
    for world, agents in ((0, slice(0, 2)), (1, slice(2, 4)), (3, slice(0, 4))):
        torch.testing.assert_close(chosen[world, agents], every[world, agents])
    env.full_action_spec["agents", "action"].assert_is_in(chosen)
