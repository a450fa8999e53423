"""A world that contains its opponent: one side is shown, the other is driven, the pool hears results, states resume."""

from __future__ import annotations

import json
import pickle
import shutil
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torchrl.envs import check_env_specs

import rlstack
from rlstack import envs
from rlstack.agents import make_agent
from rlstack.config import ConfigError, build, to_plain
from rlstack.config.allowed import sign_copy
from rlstack.envs.foundation import tensors
from rlstack.envs.registry import evaluation_options
from rlstack.envs.rocket.players import SIDES
from rlstack.evaluation.evaluator import evaluate
from rlstack.files.safe_load import from_file, to_file
from rlstack.play.pool import LEARNER, Pool, Standings, make_sampler
from rlstack.play.versus import ScriptedPolicy, SelfPlay, Versus, own_policy
from rlstack.runs.checkpoint import read_checkpoint
from rlstack.training.curriculum import Curriculum
from rlstack.training.stages import CurriculumConfig
from tests.evaluation.scripted import Scripted
from tests.play.duel import NAME, Duel
from tests.refusals import refused
from tests.small_run import begun, composed, logged, reopened

TWELVE = [{"player": "callable:tests.play.test_versus:one", "batched": True}] * 12


def duel(num_worlds: int = 6, opponents: dict[str, Any] | None = None, **options: Any) -> Any:
    return envs.make(NAME, num_worlds=num_worlds, opponents=opponents or {"players": ["high", "low"]}, **options)


def act(env: Any, number: int, steps: int) -> list[Any]:
    """Acts with the same number everywhere; returns every step's tensordict."""
    root, seen = env.reset(), []
    for _ in range(steps):
        root["agents", "action"] = torch.full(env.full_action_spec["agents", "action"].shape, number)
        done, root = env.step_and_maybe_reset(root)
        seen.append(done)
    return seen


@pytest.mark.parametrize("side", ["first", "second", "both"])
def test_it_is_a_world_like_any_other(side: str) -> None:
    env = duel(opponents={"players": ["high", "random"], "side": side}, size=2, absent=True)
    assert env.observation_spec["agents", "observation"].shape == (6, 2, 4)
    assert env.full_action_spec["agents", "action"].shape == (6, 2)
    check_env_specs(env)
    assert ("reward_sum" in env.observation_spec["episode"].keys()) == (side == "first")  # noqa: SIM118


@pytest.fixture(params=["cpu", "gpu"])
def anywhere(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU computes as it does, or as a GPU does: under masks."""
    if request.param == "gpu":
        monkeypatch.setattr(tensors, "FREE", set())


@pytest.mark.usefixtures("anywhere")
def test_the_learner_sees_its_own_side_and_meets_each_opponent() -> None:
    steps = act(duel(num_worlds=64), 1, 3)
    sums = steps[2]["next", "agents", "observation"][::3, 0]
    assert (sums[:, 1] == 3).all()
    assert set(sums[:, 2].tolist()) == {0.0, 6.0}  # those of `low` and `high`, for a whole episode
    assert steps[0]["next", "agents", "reward"].shape == (64, 1, 1)


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("step", [2, 5])  # of the first and the second episode
def test_statistics_are_those_of_the_side_that_learns(step: int) -> None:
    env = duel(num_worlds=33, opponents={"players": ["low"], "side": "both"})
    last = act(env, 1, step + 1)[step]["next"]
    over = last["done"][:, 0]
    episode = last["episode"][over]
    assert 0 < int((env.learners % 2).sum()) < 33 and int(over.sum()) == 11
    assert (episode["success"] == 1).all() and (episode["return"] == 3).all()
    assert (episode["sum_for"] == 3).all() and (episode["sum_against"] == 0).all()
    assert (last["agents", "active"]).all()


@pytest.mark.usefixtures("anywhere")
def test_a_return_is_a_mean_over_the_agents_that_began() -> None:
    env = duel(num_worlds=33, opponents={"players": ["low"], "side": "both"}, size=2)
    root = env.reset()
    for _ in range(3):
        root["agents", "action"] = torch.ones(33, 2, dtype=torch.int64)
        done, root = env.step_and_maybe_reset(root)
        env.inner.present[:, 1::2] = False  # after the first step each side has one agent left
    over = done["next", "done"][:, 0]
    assert 0 < int((env.learners % 2).sum()) < 33 and int(over.sum()) == 11
    assert (done["next", "episode", "return"][over] == (2 + 1 + 1) / 2).all()


def test_a_world_that_begins_anew_when_loaded_counts_returns_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Duel, "saves_episodes", False)  # as Rocket's other backend
    monkeypatch.setattr(Duel, "_load_state", lambda self, state: self._restart(None))
    options = {"players": ["low"], "side": "second"}
    env, copy = duel(opponents=options), duel(opponents=options)
    act(env, 1, 2)
    copy.load_state_dict(from_file(to_file(env.state_dict())))
    last = act(copy, 1, 3)[-1]["next"]
    assert (last["episode", "return"][last["done"]] == 3).all()


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("side", ["first", "second", "both"])
def test_results_reach_the_pool(side: str) -> None:
    env = duel(num_worlds=48, opponents={"players": ["high", "low"], "side": side})
    act(env, 1, 6)
    env.count_results()
    assert env.pool.recent_games == 16 * (2 + 1 + 1)  # worlds of 3, 4 and 5 steps
    high, low = env.pool.entries
    assert high.games > 0 and high.wins == 0
    assert low.games > 0 and low.wins == low.games
    assert env.pool.ratings.rating("low") == 1000  # an anchor
    assert env.pool.ratings.rating("high") > 1500


def test_opponents_are_drawn_by_the_sampler() -> None:
    env = duel(num_worlds=32, opponents={"players": ["high", "low"], "sampler": "pfsp", "refresh": 1, "at_once": 8})
    act(env, 1, 30)
    games = {entry.name: entry.games for entry in env.pool.entries}
    # The learner never beats `high` and always `low`: weights 1 and 0.01.
    assert games["high"] > 2 * games["low"]


def test_few_of_many_opponents_are_met_at_a_time() -> None:
    env = duel(num_worlds=32, opponents={"players": TWELVE, "at_once": 3, "refresh": 40, "memory": 10_000})
    act(env, 1, 3)
    assert 1 <= len(env._seats.players) <= 3
    act(env, 1, 60)
    assert len(env._seats.players) <= 12
    assert sum(entry.games > 0 for entry in env.pool.entries) > 3
    assert [entry.name for entry in env.pool.entries][:2] == ["one", "one-2"]


def one(observation: Any) -> Any:
    return 0 * observation[:, 0].astype(int) + 1


def test_a_saved_world_goes_on_as_it_would_have() -> None:
    options = {"players": ["high", "low", "random"], "side": "both", "refresh": 4}
    env, copy = duel(opponents=options), duel(opponents=options)
    act(env, 1, 4)
    copy.load_state_dict(from_file(to_file(env.state_dict())))
    one, other = env._current(), copy.reset()
    assert torch.equal(one["agents", "observation"], other["agents", "observation"])
    ends = []
    for world, root in ((env, one), (copy, other)):
        torch.manual_seed(3)
        for _ in range(9):
            root["agents", "action"] = torch.ones(6, 1, dtype=torch.int64)
            done, root = world.step_and_maybe_reset(root)
        ends.append((done["next", "agents", "observation"], world.pool.state_dict()))
    assert torch.equal(ends[0][0], ends[1][0])
    assert ends[0][1] == ends[1][1]


def test_an_evaluation_is_held_against_whom_it_names() -> None:
    options = {"opponents": {"players": ["high"], "evaluation": ["low"], "sampler": "pfsp"}}
    assert evaluation_options(options)["opponents"]["players"] == ["low"]
    assert evaluation_options({"length": 3}) == {"length": 3}
    policy = Scripted(lambda root: torch.ones(root["agents"].batch_size, dtype=torch.int64))
    assert evaluate(policy, NAME, options, episodes=4, seed=0).summary()["eval/success"] == 1
    assert evaluate(policy, NAME, {"opponents": {"players": ["high"]}}, 4, 0).summary()["eval/success"] == 0


@pytest.mark.parametrize(
    ("opponents", "message"),
    [
        ({"players": []}, r"players: \[\] names nobody to begin against"),
        ({"players": ["hihg"]}, "opponents: opponent 'hihg' is unknown, did you mean 'high'"),
        ({"plyers": ["high"]}, r"opponents.plyers: unknown key, did you mean 'players'"),
        ({"players": ["high"], "sampler": "psfp"}, "sampler: no option 'psfp', did you mean 'pfsp'"),
        ({"players": ["high"], "sampler": {"name": "elo", "scale": -1}}, r"sampler.scale: -1.0 is outside \(0, inf\)"),
        ({"players": ["high"], "side": "left"}, r"opponents.side"),
        ({"players": ["high"], "at_once": 0}, r"opponents.at_once"),
    ],
)
def test_wrong_options_are_refused_in_one_line(opponents: dict[str, Any], message: str) -> None:
    refused(ConfigError, message, duel, opponents=opponents)


# -- pool --------------------------------------------------------------------------------------------------------


def learner(env: Any, seed: int = 0) -> tuple[Any, dict[str, Any]]:
    torch.manual_seed(seed)
    agent = make_agent("ppo", env, hidden=[8])
    return agent, {"agent": to_plain(agent.config), "env": {"name": NAME, "opponents": {}}, "total_frames": 1000}


def test_snapshots_join_at_intervals_and_play_as_they_were(tmp_path: Path) -> None:
    env = duel(opponents={"players": ["low"], "snapshot_every": 100, "refresh": 1})
    agent, config = learner(env)
    training: Any = SimpleNamespace(env=env, run=SimpleNamespace(path=tmp_path), raw_config=config, agent=agent)
    play = SelfPlay.of(training)
    assert play is not None and SelfPlay.of(SimpleNamespace(env=Duel())) is None  # type: ignore[arg-type]
    assert play.observe(50, agent) is None
    act(env, 1, 5)
    rating = env.pool.ratings.rating(LEARNER)
    assert "joined the opponents (after 120 frames), 2 now" in str(play.observe(120, agent))
    assert play.observe(130, agent) is None
    name = "snapshot_000000000120"
    assert (tmp_path / "opponents" / f"{name}.pt").is_file()
    index = json.loads((tmp_path / "opponents" / "pool.json").read_text())
    assert [entry["name"] for entry in index["entries"]] == ["low", name]
    assert env.pool.ratings.rating(name) == rating > 1500
    # It plays greedily, with the networks of then, whatever becomes of the learner.
    root = Duel(num_worlds=2).reset()
    root["agents", "observation"] = torch.randn(2, 2, 4)
    expected = agent.policy(explore=False)(root.clone())["agents", "action"]
    for parameter in agent.parameters():
        parameter.data.neg_()
    player = env.pool.player(name, env.inner)
    rows = torch.arange(4)
    assert player.act(env.inner, root["agents"].reshape(4, 1), rows).flatten().tolist() == expected.flatten().tolist()
    act(env, 1, 20)
    assert {entry.name: entry.games > 0 for entry in env.pool.entries} == {"low": True, name: True}
    assert play.on_log(training)["play/win_rate_low"] == 1.0


def test_the_share_of_games_won_leaves_out_those_against_itself(tmp_path: Path) -> None:
    env = duel(opponents={"players": ["self", "low"], "evaluation": ["low"], "memory": 1_000_000})
    env.pool.record([("self", 1.0), ("self", 0.0)] * 50 + [("low", 1.0)] * 3 + [("low", 0.0)])
    training: Any = SimpleNamespace()
    row = SelfPlay(env, tmp_path, {"agent": {}, "env": {"name": NAME}}).on_log(training)
    assert row["play/win_rate"] == row["play/win_rate_low"] == pytest.approx(0.75, abs=1e-5)
    assert "play/win_rate_self" not in row


def test_a_promotion_needs_wins_and_games(tmp_path: Path) -> None:
    env = duel(opponents={"players": ["low"], "promotion": 0.6})
    agent, config = learner(env)
    play = SelfPlay(env, tmp_path, config)
    env.pool.record([("low", 1.0)] * 99)
    assert play.observe(10, agent) is None
    env.pool.record([("low", 0.0)])
    assert "won 99% of 100 games" in str(play.observe(10, agent))
    env.pool.record([("low", 0.5)] * 200)
    assert play.observe(20, agent) is None


def test_a_world_s_own_seed_decides_its_side_and_opponent() -> None:
    def drawn(*seeds: int) -> list[tuple[int, str]]:
        env = duel(len(seeds), {"players": ["high", "low"], "side": "both"})
        env.reset(seed=list(seeds))
        names = [env._names[index] for index in env._seats.assignment.amax(-1).tolist()]
        return list(zip((env.learners % 2).tolist(), names))

    together = drawn(*range(16))
    assert together == [drawn(seed)[0] for seed in range(16)] and len(set(together)) == 4


def test_rocket_with_opponents_can_be_pickled() -> None:
    env = envs.make("rocket", num_worlds=2, opponents={"players": ["rule"]})
    root = env.reset()
    copied = pickle.loads(pickle.dumps(env))
    root["agents", "action"] = env.full_action_spec["agents", "action"].zero()
    one, other = (world.step(root.clone())["next", "agents", "observation"] for world in (env, copied))
    assert torch.equal(one, other)


def met(env: Any) -> set[str]:
    """Returns the opponents in episodes that have begun anew."""
    env.reset()
    return {env._names[index] for index in env._seats.assignment.unique().tolist() if index >= 0}


def test_a_stage_names_its_opponents(tmp_path: Path) -> None:
    env = duel(num_worlds=32)
    agent = make_agent("ppo", env, hidden=[4])
    play = SelfPlay(env, tmp_path, {"agent": {}, "env": {"name": NAME}})
    assert met(env) == {"high", "low"} and env.who_can_be_met() == ["random", "high", "low", "self", "checkpoint"]
    env.meet(["random"])
    assert met(env) == {"random"}
    env.meet(["self", "low"])
    assert met(env) == {"self", "low"} and play.observe(10, agent) is None
    env.meet(["checkpoint"])
    assert met(env) == {"self"}, "until there is one"
    assert play.observe(20, agent) == "snapshot_000000000020 joined the opponents (for this stage), 5 now"
    assert play.observe(30, agent) is None
    state, copy = env.state_dict(), duel(num_worlds=32)
    copy.load_state_dict(state)
    assert copy._met == ["checkpoint"] and [env.pool.entries[place].name for place in env.candidates()] == [
        "snapshot_000000000020"
    ]
    assert copy.candidates() == env.candidates()
    env.meet(None)
    assert {env.pool.entries[place].name for place in env.candidates()} == {"high", "low", "snapshot_000000000020"}


def test_a_curriculum_changes_the_opponents() -> None:
    class Staged(Versus):
        """A world whose stages change nothing but the opponent."""

        num_stages = 3

        def _enter_stage(self, stage: int) -> None:
            return

    plain = duel()
    env = Staged(plain.inner, plain.config)
    stages = [
        {"name": "a", "opponents": ["random"], "advance": {"frames": {"min": 10}}},
        {"name": "b", "advance": {"frames": {"min": 20}}},
        {"name": "c", "opponents": ["low", "checkpoint"]},
    ]
    course = Curriculum(build(CurriculumConfig, {"window": 1, "forget": True, "stages": stages}), env)
    assert met(env) == {"random"}
    assert course.check(10) and met(env) <= {"high", "low"}
    assert course.check(20) and met(env) <= {"low", "self"} and env.snapshot_wanted
    stages[0]["opponents"] = ["hihg"]
    with pytest.raises(ConfigError, match=r"stages\[0\].opponents: 'hihg' is unknown, did you mean 'high'\? allowed: "):
        Curriculum(build(CurriculumConfig, {"window": 1, "forget": True, "stages": stages}), env)


def test_the_least_recently_used_make_room_but_not_who_plays() -> None:
    env = Duel()
    pool = Pool(["high", "low", "random"], loaded=2)
    players = {name: pool.player(name, env) for name in ("high", "low")}
    assert pool.player("high", env) is players["high"]
    pool.player("random", env)
    assert pool.player("low", env) is not players["low"]  # it was the one used longest ago
    assert pool.player("random", env, playing=["low"]) is not None
    kept = pool.player("low", env)
    pool.player("high", env, playing=["low", "random"])
    assert pool.player("low", env) is kept


def test_results_that_wait_count_with_those_of_other_processes() -> None:
    shared, alone = Pool(["random"]), Pool(["random"])
    shared.waiting = []
    shared.record([("random", 1.0)])
    shared.record([("random", 0.0)])
    assert not shared.entries[0].games
    shared.settle(lambda own: [own, [("random", 0.5)]])
    alone.record([("random", 1.0), ("random", 0.0), ("random", 0.5)])
    assert shared.state_dict() == alone.state_dict() and shared.waiting == []


def test_old_results_fade() -> None:
    pool = Pool(["a/b"], memory=10)
    pool.record([("b", 0.0)] * 50 + [("b", 1.0)] * 10)
    # After ten of ten wins the old losses count 0.9^10 = 0.349 each of ten.
    assert pool.entries[0].wins / pool.entries[0].games == pytest.approx(1 - 0.9**10, abs=0.01)


def test_too_many_snapshots_drop_the_weakest(tmp_path: Path) -> None:
    env = Duel()
    agent, config = learner(env)
    pool = Pool(["low"], tmp_path, keep=2)
    for frames, rating in ((10, 1400.0), (20, 1300.0), (30, 1200.0)):
        pool.ratings.set(LEARNER, rating)
        pool.add_snapshot({"frames": frames, "agent": agent.state_dict(), "config": config}, frames)
    assert [entry.frames for entry in pool.entries] == [0, 10, 30]
    assert pool.player("snapshot_000000000020", env).name == "snapshot_000000000020"  # still plays in some worlds
    copy = Pool(["low"], tmp_path)
    copy.load_state_dict(json.loads(json.dumps(pool.state_dict())))
    assert copy.state_dict() == pool.state_dict()
    refused(ConfigError, "a folder is needed", Pool(["low"]).add_snapshot, {}, 1)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"opponents\.pool: .*file is a file, but snapshots need a folder"):
        Pool(["low"], tmp_path / "file")


def test_snapshots_of_other_runs_are_opponents_like_any_other(tmp_path: Path) -> None:
    env, ten = Duel(), "snapshot_000000000010"
    agent, config = learner(env)
    state = {"frames": 10, "agent": agent.state_dict(), "config": config}
    Pool(["low"], tmp_path / "one").add_snapshot(state, 10)
    pool = Pool([str(tmp_path / "one" / f"{ten}.pt")], tmp_path / "two", keep=1)
    pool.check(env)
    for frames in (10, 20):
        pool.add_snapshot(state, frames)
    assert [(entry.name, entry.frames) for entry in pool.entries] == [(ten, 0), ("snapshot_000000000020", 20)]
    assert (tmp_path / "two" / f"{ten}-2.pt").exists()
    shutil.rmtree(tmp_path / "two")
    assert pool.player(ten, env).name == ten  # from its own file
    refused(ConfigError, "opponent .* is unknown", Pool([str(tmp_path / "snapshot_1.zip")]).check, env)


# -- samplers ----------------------------------------------------------------------------------------------------

STANDINGS = Standings(
    ratings=torch.tensor([1300.0, 1500.0, 1900.0]),
    own=1500.0,
    frames=torch.tensor([0.0, 1e6, 3e6]),
    wins=torch.tensor([1.0, 0.5, 0.1]),
)


@pytest.mark.parametrize(
    ("sampler", "weights"),
    [
        ("uniform", [1, 1, 1]),
        ("elo", [0.367879, 1, 0.135335]),  # e^-1, 1, e^-2
        ({"name": "recency", "temperature": 2.0}, [0.002479, 0.018316, 1]),  # e^-6, e^-4, 1
        # Expected scores 0.759747, 0.5, 1/11; e^(-0.259747 / 0.5) and e^(-0.409091 / 0.5).
        ("difficulty", [0.594821, 1, 0.441233]),
        ("pfsp", [0.01, 0.25, 0.81]),
        ({"name": "pfsp", "weighting": "variance"}, [0.01, 0.25, 0.09]),
    ],
)
def test_samplers_weigh_by_their_formula(sampler: Any, weights: list[float]) -> None:
    assert make_sampler(sampler)(STANDINGS).tolist() == pytest.approx(weights, abs=1e-5)


def test_rocket_trains_against_its_rules() -> None:
    options = {"players": ["rule", "random"], "side": "both"}
    env: Any = envs.make("rocket", num_worlds=2, observation="compact", blue=1, orange=2, opponents=options)
    assert isinstance(env, Versus)
    check_env_specs(env)


# -- A world's own players as experts for imitation ------------------------------------------------------------------


def test_a_script_drives_both_sides() -> None:
    env = envs.make(NAME, num_worlds=4, size=2)
    policy: Any = own_policy(env, "high")
    assert bool((policy(env.reset())["agents", "action"] == 2).all())
    assert own_policy(env, "unknown") is None
    assert own_policy(envs.make("arena", num_worlds=2), "rule") is None


@pytest.mark.parametrize("side", ["first", "second", "both"])
def test_with_an_opponent_inside_it_drives_the_side_that_learns(side: str) -> None:
    env: Any = envs.make("rocket", num_worlds=6, random_states=1.0, opponents={"players": ["random"], "side": side})
    root = env.reset()
    everyone = SIDES.scripted["rule"](env.inner, torch.arange(6))
    own = everyone.flatten(0, 1)[env.learners]
    shown = ScriptedPolicy(env, "rule")(root)["agents", "action"]
    assert shown.shape == (6, 1, 8) and bool((shown[:, 0] == own).all())


def test_an_agent_learns_what_the_script_does() -> None:
    env: Any = envs.make(NAME, num_worlds=8)
    agent: Any = rlstack.make_agent("ppo", env, 1000, hidden=[16])
    rlstack.imitate(agent, env, "high", frames=400, epochs=20, batch_size=64, lr=1e-2)
    assert bool((agent.policy(explore=False)(env.reset())["agents", "action"] == 2).all())
    refused(ConfigError, "nobody", rlstack.imitate, agent, env, "nobody", frames=10)


# -- the opponent ``self``: the learner's present weights drive the other side -----------------------------------


def against_self(num_worlds: int = 16, **opponents: Any) -> Any:
    return envs.make(NAME, num_worlds=num_worlds, opponents={"evaluation": ["low"], **opponents})


def always(agent: Any, number: int) -> None:
    """Sets the last layer's biases so that the policy names this number."""
    layer = [module for module in agent.actor.modules() if isinstance(module, torch.nn.Linear)][-1]
    layer.weight.data.zero_()
    layer.bias.data.copy_(torch.nn.functional.one_hot(torch.tensor(number), 3) * 100.0)


def their_sum(env: Any) -> list[float]:
    """Returns what the other side named at the end of the first episodes; the learner names 0."""
    return act(env, 0, 3)[-1]["next", "agents", "observation"][::3, 0, 2].tolist()  # worlds of three steps


@pytest.mark.parametrize("recurrent", [None, {"kind": "gru", "size": 8, "layers": 1, "sequence_length": 4}])
def test_it_acts_by_the_weights_of_this_moment(recurrent: Any) -> None:
    env = against_self(players=["self"])
    agent = make_agent("ppo", env, hidden=[8], recurrent=recurrent)
    env.follow(agent.policy(explore=True))
    for number in (2, 1, 0, 2):
        always(agent, number)
        assert set(their_sum(env)) == {3.0 * number}


def test_before_there_is_a_learner_it_acts_at_random() -> None:
    assert len(set(their_sum(against_self(num_worlds=48, players=["self"])))) > 2


def test_it_learns_against_itself_and_says_nothing_of_its_strength() -> None:
    env = against_self(players=["self", "low"], refresh=1)
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
    env, copy = (against_self(players=["self", "random"], refresh=3) for _ in range(2))
    agent = make_agent("ppo", env, hidden=[8])
    always(agent, 2)
    for world in (env, copy):
        world.follow(agent.policy(explore=True))
    their_sum(env)
    copy.load_state_dict(env.state_dict())
    copy.reset()
    assert copy._names == env._names and copy.pool.state_dict() == env.pool.state_dict()
    assert copy._seats.players[copy._names.index("self")] is copy.pool.learner(copy.inner)


def test_evaluations_leave_it_out() -> None:
    assert evaluation_options({"opponents": {"players": ["self", "low"]}})["opponents"]["players"] == ["low"]
    for wrong in ({"players": ["self"], "evaluation": None}, {"players": ["low"], "evaluation": ["self"]}):
        refused(ConfigError, r"evaluation: self exists only during training; name others", against_self, **wrong)
    refused(ConfigError, "opponent 'slf' is unknown, did you mean 'self'", against_self, players=["slf"])
    with pytest.raises(ConfigError, match="opponent 'self' takes no options, got which"):
        against_self(players=[{"player": "self", "which": "best"}])


def test_an_evaluation_meets_all_opponents_that_are_named_for_it() -> None:
    env = duel(100, **evaluation_options({"opponents": {"players": ["low"], "evaluation": TWELVE}}))
    env.reset()
    assert len(env._seats.players) == 12 == len(env._seats.assignment.amax(-1).unique())


# -- A run against its own past: snapshots join during training, and a killed run resumes exactly --------------------


SMALL = [
    *("agent=ppo", "env=gymnasium", "agent.hidden=[8]", "agent.steps_per_batch=16", "agent.epochs=1"),
    *("agent.minibatch_size=64", "total_frames=2000", "log_every=200", "eval.every=1000", "eval.episodes=4"),
    *("checkpoint.every=500", "checkpoint.keep=9", "logger=csv", "threads=1", "device=cpu"),
]
OPPONENTS = {
    "players": ["low", "random"],
    "side": "both",
    "sampler": "pfsp",
    "snapshot_every": 300,
    "refresh": 5,
    "evaluation": ["low"],
}


def plain_config() -> dict[str, Any]:
    return {**composed(*SMALL), "env": {"name": NAME, "num_worlds": 8, "opponents": OPPONENTS}}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "straight"
    begun(folder, plain_config()).execute()
    return folder


@pytest.mark.slow
def test_snapshots_join_and_are_met(finished: Path) -> None:
    index = json.loads((finished / "opponents" / "pool.json").read_text())
    frames = [entry["frames"] for entry in index["entries"]]
    assert frames[:2] == [0, 0] and len(frames) >= 6
    assert all(later - earlier >= 300 for earlier, later in pairwise(frames[1:]))
    assert any(entry["games"] for entry in index["entries"][2:])
    rows = logged(finished)
    assert any(float(row["play/win_rate_low"] or 0) > 0.5 for row in rows)
    assert any(float(row["play/elo"] or 0) for row in rows)


@pytest.mark.slow
def test_a_snapshot_is_a_checkpoint_of_the_world_with_both_sides(finished: Path) -> None:
    loaded = rlstack.load(sorted((finished / "opponents").glob("*.pt"))[0])
    assert loaded.make_env(num_worlds=2).observation_spec["agents"].shape == (2, 2)
    assert rlstack.load(finished).make_env(num_worlds=2).observation_spec["agents"].shape == (2, 1)


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_end(finished: Path, tmp_path: Path) -> None:
    copy = tmp_path / "killed"
    sign_copy(finished, Path(shutil.copytree(finished, copy)))
    checkpoints = sorted((copy / "checkpoints").glob("checkpoint_*.pt"))
    final = read_checkpoint(checkpoints[-1])
    for path in checkpoints[2:]:
        path.unlink()
    torch.manual_seed(54321)
    training = reopened(copy, plain_config())
    training.restore()
    assert training.frames < 1500
    training.execute()
    again = read_checkpoint(sorted((copy / "checkpoints").glob("checkpoint_*.pt"))[-1])
    assert again["env"]["pool"] == final["env"]["pool"]
    assert torch.equal(again["env"]["assignment"], final["env"]["assignment"])
    torch.testing.assert_close(again["agent"]["networks"], final["agent"]["networks"], rtol=0, atol=0)
