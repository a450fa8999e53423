"""Echelon's teams as sides: its bots, games, and opponents while training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rlstack import envs
from rlstack.config import ConfigError
from rlstack.envs.echelon.actions import orders_of
from rlstack.envs.echelon.players import HEURISTIC, bot_orders
from rlstack.play.games import pairing
from rlstack.play.matches import GameRunner
from rlstack.play.players import half_worlds, make_player, sides_of
from tests.play.duel import seated
from tests.refusals import refused
from tests.small_run import begun, composed

SMALL: dict[str, Any] = {"blue": 2, "red": 2, "maps": 2, "max_steps": 100}
TRAINING = [
    *("agent=ppo", "env=echelon", "env.num_worlds=4", "env.blue=1", "env.red=1", "env.maps=2", "env.max_steps=6"),
    *("agent.hidden=[8]", "agent.steps_per_batch=8", "agent.epochs=1", "agent.minibatch_size=32", "total_frames=120"),
    *("log_every=20", "eval.every=60", "eval.episodes=2", "logger=csv", "threads=1", "device=cpu"),
]


@pytest.mark.slow
def test_the_heuristic_beats_random_from_both_sides() -> None:
    arena = seated(GameRunner("echelon", SMALL, num_worlds=8), "heuristic", "random")
    games = arena.play(pairing("heuristic", "random", 8), seed=1)
    points = [game.seen_by("heuristic")[2:4] for game in games]
    assert sum(ours > theirs for ours, theirs in points) >= 7
    assert {game.first for game in games} == {"heuristic", "random"}
    assert all(pair in ((1, 0), (0, 1), (0, 0)) for pair in points)


def test_both_teams_are_agents_in_games_whatever_the_options_say() -> None:
    options = {**SMALL, "opponent": "heuristic", "opponent_mix": {"rush": 1.0}, "fire_probability": 0.2, "map_seed": 4}
    env: Any = GameRunner("echelon", options).build(2, 0)
    env.reset()
    assert env.observation_spec["agents"].shape[1] == 10 and env.match_options.teams == 2
    assert env.options["map_seed"] == 1_000_003 and env.worlds.state.fire_prob.min() == 1


@pytest.mark.parametrize("actions", ["multi", "box"])
def test_a_bot_drives_either_team_as_the_world_would(actions: str) -> None:
    env: Any = envs.make("echelon", num_worlds=3, **SMALL, opponent="policy", actions=actions)
    env.reset()
    worlds = torch.tensor([0, 2])
    action = sides_of(env).scripted["heuristic"](env, worlds).actions
    state = env.worlds.state
    for team in range(2):
        meant = bot_orders(state, env.tables, team, torch.full_like(state.rival, HEURISTIC))[..., worlds]
        written = orders_of(actions, action, 2, 5)[team]
        torch.testing.assert_close(written[4:9].double(), meant[4:9].double())  # buttons are exact in both
        torch.testing.assert_close(written[9].double(), meant[9].double())
        if actions == "box":
            torch.testing.assert_close(written[:4].double(), meant[:4].clamp(-1, 1).double())


def test_opponents_take_the_place_of_the_bot() -> None:
    env: Any = envs.make("echelon", num_worlds=2, **SMALL, opponents={"players": ["veteran"], "side": "both"})
    assert env.observation_spec["agents"].shape == (2, 5) and env.inner.match_options.teams == 2
    rolled = env.rollout(3, break_when_any_done=False)
    assert rolled["next", "agents", "reward"].shape == (2, 3, 5, 1)
    names = set(rolled["next", "episode"].keys())
    assert {"success", "lost", "score_blue", "kills_red"} <= names and "hp_margin" not in names


def test_actions_of_several_tensors_are_one_line() -> None:
    message = r"Echelon: actions of several parts \(axes, buttons, target\) are not possible in games"
    refused(ConfigError, message, GameRunner, "echelon", {**SMALL, "actions": "hybrid"}, num_worlds=1)
    opponents = {"players": ["random"]}
    refused(ConfigError, message, envs.make, "echelon", num_worlds=1, **SMALL, actions="hybrid", opponents=opponents)


@pytest.mark.slow
def test_blue_learns_against_bots_and_itself(tmp_path: Path) -> None:
    plain = composed(*TRAINING, "env.opponents={players: [heuristic, self], evaluation: [random]}")
    training = begun(tmp_path / "run", plain)
    training.execute()
    env: Any = training.env
    assert env.inner.match_options.teams == 2 and env.observation_spec["agents"].shape[1] == 5
    assert {"heuristic", "self"} >= {entry.name for entry in env.pool.entries}
    rows = (tmp_path / "run" / "metrics.csv").read_text().splitlines()
    assert len(rows) > 1 and list((tmp_path / "run" / "evaluations").glob("*.json"))


def test_bots_play_as_the_world_plays_them() -> None:
    """Bots give continuous orders, which are carried out exactly rather than in bins."""
    env: Any = envs.make("echelon", num_worlds=4, blue=2, red=2, opponent="policy", maps=4)
    env.reset()
    rows = torch.tensor([1, 2, 3, 6])  # red of the first world, both of the second, blue of the fourth
    player = make_player("heuristic", env)
    action = env.rand_action()
    player.act(env, half_worlds(env.reset()["agents"]), rows)
    state = env.worlds.state
    kinds = torch.full_like(state.rival, HEURISTIC)
    exact = torch.stack([bot_orders(state, env.tables, team, kinds, True, (HEURISTIC,)) for team in range(2)])
    env._advance(action)
    given = env.orders.permute(3, 0, 1, 2).flatten(0, 1)
    wanted = exact.permute(3, 0, 1, 2).flatten(0, 1)
    torch.testing.assert_close(given[rows], wanted[rows], rtol=0, atol=1e-5)  # half of the worlds round otherwise
    written = orders_of("multi", action["agents", "action"], 2, env.tables.mechs).permute(3, 0, 1, 2).flatten(0, 1)
    others = torch.tensor([0, 4, 5, 7])
    assert torch.equal(given[others], written[others])
    env._advance(action)  # and of that decision alone
    assert torch.equal(env.orders.permute(3, 0, 1, 2).flatten(0, 1), written)


def test_exact_orders_are_repeated_like_actions() -> None:
    env: Any = envs.make("echelon", num_worlds=2, blue=1, red=1, opponent="policy", maps=2, action_repeat=3)
    root = env.reset()
    medium, orders = 1, torch.zeros(1, 10, 5)
    orders[0, 3] = 0.3  # yaw, which is no bin
    before = env.innermost.worlds.state.yaw[0, medium].clone()
    env.tell(torch.tensor([0]), orders)  # blue of the first world
    root["agents", "action"] = env.full_action_spec["agents", "action"].zero()
    root["agents", "action"][..., 3] = 3  # straight on
    for _ in range(2):  # only the first time is it told anything
        env.step(root)
        turned = env.innermost.worlds.state.yaw[0, medium] - before
        # 1 rad/s, in 3 decisions of 0.25 s
        torch.testing.assert_close(turned, torch.tensor([0.3 * 0.75, 0.0]), rtol=0, atol=1e-5)


def test_random_actions_of_the_learning_side_are_legal() -> None:
    options = {"num_worlds": 8, "blue": 2, "red": 2, "actions": "multi", "maps": 4}
    env: Any = envs.make("echelon", **options, opponents={"players": ["random"]})
    policy, illegal = env.rand_action, 0
    tensordict = env.reset()
    for _ in range(10):
        mask = tensordict["agents", "action_mask"]
        parts = policy(tensordict)["agents", "action"].split(1, -1)
        chosen = [own.gather(-1, part) for own, part in zip(mask.split(list(env.inner.choices), -1), parts)]
        assert all(bool(own.all()) for own in chosen)
        illegal += int((~mask).sum())
        _, tensordict = env.step_and_maybe_reset(tensordict)
    assert illegal > 0, "some choices were illegal"
