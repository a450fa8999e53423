"""The environment: specs, agents, observations, rewards, how episodes begin and end."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from rlstack import envs
from rlstack.envs.echelon import rules
from rlstack.envs.echelon.actions import chosen_for, orders_of
from rlstack.envs.echelon.env import Echelon
from rlstack.envs.echelon.observation import size
from rlstack.envs.echelon.rewards import TERMS
from tests.exhaustive import exhaustive

FEW = {"maps": 8}
HEAVY, LIGHT, SCOUT = 0, 3, 4


def build(worlds: int = 4, **options: Any) -> Echelon:
    return envs.make("echelon", num_worlds=worlds, **FEW | options)  # type: ignore[return-value]


def act(env: Echelon, root: TensorDict, **pressed: float) -> TensorDict:
    """Takes one step in which every agent does the same, as ``primary=1``, and red's bot acts by its rules."""
    orders = torch.zeros(env._teams, rules.ORDERS, env.tables.mechs, env.num_worlds)
    orders[:, rules.TARGET] = -1
    for name, value in pressed.items():
        orders[:, getattr(rules, name.upper())] = value
    root["agents", "action"] = as_data(chosen_for(env._actions, orders))
    return env.step(root)["next"]


def as_data(action: Any) -> Any:
    return action if isinstance(action, Tensor) else TensorDict(action, [])


def face_each_other(env: Echelon, slot: int = 1, distance: float = 6.0) -> None:
    """Puts blue's and red's mech of a slot face to face in the start corner, which is always free."""
    state = env.worlds.state
    corner = state.position[:2].mean(2)[:, 0]
    out = torch.sign(32 - corner)
    for team, away in ((0, 0.0), (1, distance)):
        state.position[0, team, slot] = corner[0] + out[0] * away
        state.position[1, team, slot] = corner[1] - out[1] * 3
        state.yaw[team, slot] = torch.where((out[0] > 0) == (team == 0), 0.0, torch.pi)
        others = [k for k in range(env.tables.mechs) if k != slot]
        state.hp[team, others] = 0.0


@exhaustive(("blue", "slots"), [(3, [0, 1, 4]), (7, [0, 1, 2, 3, 4, 5, 6]), (1, [1]), (5, [0, 1, 2, 3, 4])], quick=2)
def test_small_teams_fill_some_slots(blue: int, slots: list[int]) -> None:
    env = build(3, blue=blue, red=blue)
    root = env.reset()
    assert all(active.nonzero()[:, 0].tolist() == slots for active in root["agents", "active"])
    assert root["agents", "observation"].shape[-1] == size(env.tables.mechs) == (346 if blue <= 5 else 586)
    absent = ~root["agents", "active"]
    assert not root["agents", "observation"][absent].any()
    step = act(env, root)
    assert step["agents", "done"][absent].all() and not step["agents", "done"][~absent].any()


def test_an_observation_tells_who_one_is_and_where_everyone_is() -> None:
    env = build(16)
    seen = env.reset()["agents", "observation"]
    state = env.worlds.state
    assert (seen[:, SCOUT, :4] == torch.tensor([1.0, 0, 0, 0])).all()
    assert (seen[:, HEAVY, :4] == torch.tensor([0.0, 0, 0, 1])).all()
    assert (seen[..., 9] == 1).all() and not seen[..., 10].any()  # hp, heat
    zone = (state.zone[:2, None] - state.position[:2, 0]).norm(dim=0).T / 64
    torch.testing.assert_close(seen[..., 29:31].norm(dim=-1), zone)
    assert (seen[..., 29] > 0.3).all()  # everyone looks at the zone
    enemies = seen[..., 136:256].view(16, 5, 5, 24)
    apart = (state.position[:, 1, None] - state.position[:, 0, :, None])[:2].norm(dim=0).permute(2, 0, 1) / 64
    torch.testing.assert_close(enemies[..., :2].norm(dim=-1), apart)
    assert (enemies[..., 13] == 1).all() and not enemies[..., 14].any() and (enemies[..., 20] == 1).all()
    mates = seen[..., 40:136].view(16, 5, 4, 24)
    assert (mates[:, 1:, 0, 18] == 1).all() and (mates[:, HEAVY, :2, 17] == 1).all()  # the heavy, and its mediums
    assert (seen[..., 256:337].view(16, 5, 9, 9)[..., 4, 4] == 0).all()
    torch.testing.assert_close(seen[..., 337:339].norm(dim=-1), torch.ones(16, 5))


def test_choices_that_a_class_lacks_are_masked() -> None:
    mask = build(2).reset()["agents", "action_mask"][0]
    forward, strafe, jet, turn, primary, vent, secondary, tertiary, smoke, target = mask.split(
        [5, 5, 2, 7, 2, 2, 3, 2, 2, 6], -1
    )
    for always in (forward, strafe, turn, primary, vent, smoke, target):
        assert always.all()
    assert jet.tolist() == [[True, slot in (LIGHT, SCOUT)] for slot in range(5)]
    assert secondary.tolist() == [[True, slot not in (1, 2), slot == SCOUT] for slot in range(5)]
    assert tertiary.tolist() == [[True, slot != SCOUT] for slot in range(5)]


@pytest.mark.parametrize("kind", ["hybrid", "box", "multi"])
def test_actions_are_read_as_they_are_written(kind: str) -> None:
    orders = torch.zeros(2, rules.ORDERS, 5, 3)
    orders[:, : rules.PRIMARY] = torch.tensor([0.5, -1.0, 1.0, 0.4]).view(4, 1, 1)
    orders[0, rules.PRIMARY, 1] = orders[1, rules.VENT, 2] = orders[0, rules.SPECIAL, 0] = 1
    orders[:, rules.SECONDARY, SCOUT] = torch.tensor([0.0, 1.0, 2.0])
    orders[:, rules.TARGET] = torch.tensor([-1.0, 0.0, 4.0])
    torch.testing.assert_close(orders_of(kind, as_data(chosen_for(kind, orders)), 2, 5), orders)


def test_damage_pays_and_a_kill_ends_the_episode_of_who_dies() -> None:
    env = build(2, opponent="policy", reward_scale=1.0)
    env.reset()
    face_each_other(env)
    env.worlds.state.hp[1, 1, 0] = 10.0
    root = env._current()
    step = act(env, root, primary=1)  # both fire lasers at each other
    reward = step["agents", "reward"][..., 0]
    episode = step["episode"]
    expected = 0.05 * 10 + 10 - 0.0
    approach = episode["reward_approach"][0] * 5
    assert float(reward[0, 1] - approach) == pytest.approx(expected, abs=1e-4)
    assert step["agents", "terminated"][0, 6] and not step["agents", "done"][1, 1]
    assert float(reward[0, 6]) == pytest.approx(0.05 * 14 - 1, abs=0.02)
    assert episode["kills_blue"][0] == 1 and episode["deaths_red"][0] == 1 and episode["damage_blue"][0] == 10
    # The only one left: red is gone.
    assert step["terminated"][0] and episode["success"][0] == 1 and not step["done"][1]
    assert not reward[:, [0, 2, 3, 4]].any()


def test_the_zone_pays_scores_and_ends_the_match() -> None:
    env = build(2, opponent="policy", reward_scale=1.0, max_steps=16)
    root = env.reset()
    env.worlds.state.position[:2, 0, HEAVY] = env.worlds.state.zone[:2]
    for step in range(8):
        after = act(env, root)
        assert (after["agents", "reward"][:, HEAVY, 0] - 3).abs().max() < 1e-5
        assert after["terminated"].all() == (step == 7)
    assert (after["episode", "score_blue"] == 2).all() and (after["episode", "success"] == 1).all()
    assert not after["truncated"].any()


def test_a_contested_zone_is_shared_by_weight() -> None:
    env = build(2, opponent="policy", reward_scale=1.0)
    root = env.reset()
    state = env.worlds.state
    state.position[:2, 0, HEAVY] = state.zone[:2]
    state.position[:2, 1, 1] = state.zone[:2] + torch.tensor([[3.5], [0.0]])
    after = act(env, root)
    margin = (85 - 55) / (85 + 55)
    heavy, medium = after["agents", "reward"][:, HEAVY, 0], after["agents", "reward"][:, 6, 0]
    assert (heavy - 3 * (0.25 + 0.75 * margin)).abs().max() < 1e-5
    assert (medium - 3 * 0.25).abs().max() < 1e-5


@pytest.mark.parametrize(("place", "cost"), [(0.0, -0.5), (12.0, -1.0)])
def test_a_death_in_a_contested_zone_costs_half(place: float, cost: float) -> None:
    env = build(2, opponent="policy", reward_scale=1.0)
    root = env.reset()
    state = env.worlds.state
    for team, side in ((0, -2.0), (1, 2.0)):  # only these two are in the zone, or both are outside
        state.position[:2, team, 1] = state.zone[:2] + torch.tensor([[side], [place]])
        state.yaw[team, 1] = 0.0 if team == 0 else torch.pi
    state.hp[1, 1] = 10.0
    state.sight.fill_(1.0)
    act(env, root, primary=1)
    assert (env.worlds.state.hp[1, 1] <= 0).all()
    assert (env.worlds.terms[list(TERMS).index("death"), 1, 1] == cost).all()


def test_time_truncates_and_the_score_decides() -> None:
    env = build(3, opponent="policy", max_steps=4)
    root = env.reset()
    env.worlds.state.score[0, 0], env.worlds.state.score[1, 1] = 0.1, 0.1
    env.worlds.state.hp[1, HEAVY, 2] = 5.0
    for step in range(4):
        after = act(env, root)
        assert after["truncated"].all() == (step == 3)
    assert not after["terminated"].any() and after["agents", "truncated"].all()
    results = [after["episode", name][:, 0].tolist() for name in ("success", "lost", "draw")]
    assert results == [[1, 0, 1], [0, 1, 0], [0, 0, 0]]
    assert after["episode", "hp_margin"][2] == 195 and (after["episode", "time"] == 1).all()


@pytest.mark.slow
def test_terms_add_up_to_the_return() -> None:
    env = build(6)
    root, total = env.reset(), torch.zeros(6)
    for _ in range(40):
        root["agents", "action"] = env.full_action_spec["agents", "action"].rand()
        root, following = env.step_and_maybe_reset(root)
        total += root["next", "agents", "reward"].mean((1, 2))
        episode = root["next", "episode"]
        summed = torch.stack([episode[f"reward_{name}"] for name in TERMS]).sum(0)
        torch.testing.assert_close(summed, episode["return"], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(episode["return"][:, 0], total, rtol=1e-4, atol=1e-5)
        total[root["next", "done"][:, 0]] = 0
        root = following


def test_partial_sight_remembers_where_an_enemy_was() -> None:
    env = build(2, visibility="partial", opponent="policy", reward_scale=1.0)
    root = env.reset()
    blank = root["agents", "observation"][:, :5, 136:256].view(2, 5, 5, 24)
    unseen = blank[..., 20] == 0
    assert unseen.any() and not blank[unseen][:, :13].any() and (blank[unseen][:, 14] == 1).all()
    face_each_other(env)
    step = act(env, root)
    slot = step["agents", "observation"][0, 1, 136 + 24 : 136 + 48]
    assert slot[20] == 1 and slot[14] == 0 and slot[0] * 64 == pytest.approx(6, abs=0.01)
    assert step["agents", "action_mask"][0, 1, -5:].tolist() == [False, True, False, False, False]
    env.worlds.state.position[:2, 1, 1] = 64 - env.worlds.state.position[:2, 1, 1]  # far away
    for decision in range(1, 3):
        step = act(env, root)
        slot = step["agents", "observation"][0, 1, 136 + 24 : 136 + 48]
        if slot[20] == 0:
            assert slot[14] == pytest.approx(0.025 * decision) and slot[0] * 64 == pytest.approx(6, abs=0.01)


def rollout(env: Echelon, steps: int = 12, seed: int = 0) -> TensorDict:
    torch.manual_seed(seed)
    return env.rollout(steps, break_when_any_done=False)


def test_stages_change_how_often_bots_fire() -> None:
    env = build(2, fire_stages=[0.2, 0.7, [0.3, 0.4]], max_steps=2)
    assert env.num_stages == 3
    rollout(env, 3)
    assert (env.worlds.state.fire_prob - 0.2).abs().max() < 1e-6
    env.set_stage(1)
    rollout(env, 3)
    assert (env.worlds.state.fire_prob - 0.7).abs().max() < 1e-6
    env.set_stage(2)
    for _ in range(2):
        assert (
            env.worlds.state.fire_prob - 0.35
        ).abs().max() < 0.05 and env.worlds.state.fire_prob.unique().numel() == 2
        rollout(env, 3)
    drawn = build(64, fire_probability=[0.2, 1.0])
    drawn.reset()
    chance = drawn.worlds.state.fire_prob
    assert 0.2 <= chance.min() < 0.35 and 0.85 < chance.max() <= 1


@pytest.mark.slow
def test_compiled_worlds_play_the_same() -> None:
    plain, fast = (build(8, compiled=compiled, dtype=torch.float64, seed=3) for compiled in (False, True))
    roots = [plain.reset(), fast.reset()]
    torch.manual_seed(0)
    for _ in range(60):
        action = plain.full_action_spec["agents", "action"].rand()
        action[..., :2] = torch.tensor([4, 2])  # everyone goes on
        roots = [
            env.step_and_maybe_reset(root.set(("agents", "action"), action)) for env, root in zip((plain, fast), roots)
        ]
        ours, theirs = (step["next", "agents"] for step, _ in roots)
        for name in ("observation", "reward"):
            torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=1e-6)
        roots = [following for _, following in roots]
