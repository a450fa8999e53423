"""Evaluation: the published definition by hand, and the published actor's published numbers."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase
from torch import Tensor

import rlstack
from rlstack import envs
from rlstack.data.recordings import TransitionRecorder
from rlstack.envs.marinenav.env import MarineNav
from rlstack.envs.marinenav.episodes import evaluation_set
from rlstack.evaluation import evaluator
from rlstack.evaluation.evaluator import EpisodeSet, evaluate
from rlstack.evaluation.pictures import save_pictures
from tests.adapters.test_marinenav_published import column, configs_of, published_noise, without_noise
from tests.envs.marinenav.recorded import actor, load_json
from tests.evaluation.scripted import Scripted, full_ahead, play, straight_run
from tests.exhaustive import exhaustive
from tests.refusals import refused
from tests.rehearsal import rehearsing

EXACT: dict[str, Any] = {"dtype": torch.float64}
COUNTDOWN = "tests.evaluation.scripted:Countdown"
ALONE = "tests.evaluation.scripted:AgentsAlone"
DRAWN = "tests.envs.gymnasium_toys:Drawn"


def discounted(rewards: list[float]) -> float:
    return sum(0.99**step * reward for step, reward in enumerate(rewards))


# --- the published definition


def test_an_arrival() -> None:
    gained, energy = straight_run(18.0)
    rewards = [metres - 0.1 for metres in gained]
    rewards[-1] += 10.0
    found = {name: float(value) for name, value in play(["arrives"]).episodes.items()}
    assert found == pytest.approx(
        {
            "return": sum(rewards),
            "discounted_return": discounted(rewards),
            "length": len(gained),
            "time": 0.5 * len(gained),
            "energy": sum(energy),
            "success": 1.0,
            "path": sum(gained),
            "closest": 20.0,  # nobody is in sight, which ends there
            **dict.fromkeys(("collision", "near_miss", "rule_time", "violation_time"), 0.0),
        }
    )


def test_the_first_collision_of_any_robot_ends_the_episode() -> None:
    gained, _ = straight_run(6.0)
    rewards = [metres - 0.1 for metres in gained]
    rewards[-1] -= 5.0
    both = (discounted(rewards) + discounted([-0.1] * len(gained))) / 2  # the other robot rests, far from its goal
    found = play(["collides"]).episodes
    assert int(found["length"]) == len(gained)
    assert (bool(found["success"]), bool(found["collision"])) == (False, True)
    assert float(found["discounted_return"]) == pytest.approx(both)


def test_a_robot_that_reaches_its_goal_and_collides_has_reached_it() -> None:
    found = play(["both"]).episodes
    assert int(found["length"]) == len(straight_run(6.0)[0])
    assert (bool(found["success"]), bool(found["collision"])) == (True, True)


@pytest.mark.slow
def test_a_thousand_steps_are_the_limit() -> None:
    found = play(["rests"]).episodes
    assert (int(found["length"]), float(found["time"])) == (1000, 500.0)
    cut = play(["rests", "arrives"])
    assert (cut.cut, cut.max_steps) == (1, 1000) and play(["arrives"]).cut == 0
    assert play(["rests"]).in_words().endswith("; no episode ended within 1,000 steps") and "; " not in cut.in_words()
    assert (bool(found["success"]), bool(found["collision"])) == (False, False)
    assert float(found["discounted_return"]) == pytest.approx(discounted([-0.1] * 1000))


# --- the published actor


@pytest.mark.slow
def test_published_episodes_in_chunks(fixtures_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fixtures_dir / "marinenav"
    records = load_json(folder / "AC_IQN_episodes_253.json.gz")["noisy"]
    configs = configs_of(load_json(folder / "eval_configs_253.json.gz"), records)
    chosen = EpisodeSet(configs, [str(record["level"]) for record in records])
    monkeypatch.setattr(evaluator, "MAX_WORLDS", 7)
    policy = Scripted(actor(folder / "AC_IQN_params.npz"))
    found = evaluate(policy, "marinenav", EXACT, 1, 0, noise_source=published_noise, episode_set=chosen)
    for ours, theirs in (("success", "success"), ("collision", "collision"), ("length", "length")):
        assert torch.equal(found.episodes[ours], column(records, theirs))
    for ours, theirs in (("discounted_return", "ret"), ("time", "time"), ("energy", "energy")):
        torch.testing.assert_close(found.episodes[ours], column(records, theirs), rtol=1e-6, atol=1e-6)
    assert [row["level"] for row in found.table()] == ["0", "1", "2", "3", "4", "5", "all"]


@pytest.mark.slow
@pytest.mark.shared
def test_published_success_rate(shared_dir: Path) -> None:
    """Seeds 253 to 264, ten episodes a level: with the published noise streams the very figures."""
    facts = load_json(shared_dir / "facts/marinenav_pretrained_eval.json")["agents"]["AC_IQN"]
    sets = [evaluation_set(10, seed) for seed in facts["seeds"]]
    chosen = EpisodeSet([c for configs, _ in sets for c in configs], [label for _, labels in sets for label in labels])
    policy = Scripted(actor(shared_dir / "weights/marinenav/AC_IQN_params.npz"))
    found = evaluate(policy, "marinenav", EXACT, 1, 0, noise_source=published_noise, episode_set=chosen)
    overall, summary = facts["overall"], found.summary()
    assert summary["eval/success"] == overall["success_rate"]
    assert summary["eval/collision"] == overall["collision_rate"]
    assert (summary["eval/success_low"], summary["eval/success_high"]) == pytest.approx(
        overall["success_ci95"], abs=1e-5
    )
    names = {"return": "return", "length": "length", "time": "time_success", "energy": "energy_success"}
    for ours, theirs in names.items():
        assert summary[f"eval/{ours}"] == pytest.approx(overall[f"mean_{theirs}"], rel=1e-6)
    rates = {level: summary[f"eval/success_level{level}"] for level in facts["levels"]}
    assert rates == {level: row["success_rate"] for level, row in facts["levels"].items()}


# --- on a GPU


@exhaustive(("agent", "world", "count"), [("ppo", "cartpole", 3), ("acqn", "marinenav", 1)], quick=1)
def test_recorded_steps_are_those_that_are_computed(
    agent: str, world: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluator, "AHEAD", 4)
    steppers: list[Any] = []

    class Listed(evaluator._StepsAhead):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            steppers.append(self)

    monkeypatch.setattr(evaluator, "_StepsAhead", Listed)
    results = []
    for records in (False, True):
        torch.manual_seed(0)
        policy = rlstack.make_agent(agent, envs.make(world, num_worlds=1)).policy(explore=False)
        with rehearsing(monkeypatch) if records else nullcontext():
            results.append(evaluate(policy, world, {}, count, seed=1, max_steps=60))
    assert [stepper._recorded.replays for stepper in steppers] == [True]
    computed, recorded = results
    assert computed.episodes.keys() == recorded.episodes.keys() and computed.cut == recorded.cut
    for name, values in computed.episodes.items():
        torch.testing.assert_close(recorded.episodes[name], values, rtol=0, atol=0, equal_nan=True)


# --- what a result depends on


@pytest.mark.slow
@pytest.mark.parametrize("most", [1, 5])
def test_episodes_do_not_depend_on_their_company(
    fixtures_dir: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    policy = Scripted(actor(fixtures_dir / "marinenav/AC_IQN_params.npz"))
    configs, levels = evaluation_set(2, 5)
    configs = [without_noise(config) for config in configs]

    def results() -> dict[str, Tensor]:
        return evaluate(policy, "marinenav", EXACT, 1, 0, episode_set=EpisodeSet(configs, levels)).episodes

    together = results()
    monkeypatch.setattr(evaluator, "MAX_WORLDS", most)
    apart = results()
    assert len(together["length"]) == 12 and torch.equal(together["length"], apart["length"])
    for name, values in together.items():
        torch.testing.assert_close(apart[name], values, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_the_seed_decides_and_global_randomness_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluator, "MAX_WORLDS", 4)

    def results(seed: int) -> dict[str, Tensor]:
        drunk = Scripted(lambda td: torch.rand(*td["agents"].shape, 2) * 2 - 1)
        return evaluate(drunk, "marinenav", {}, 1, seed, max_steps=20).episodes

    torch.manual_seed(3)
    before = torch.get_rng_state()
    first = results(1)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(4)
    again, other = results(1), results(2)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["discounted_return"], other["discounted_return"])


def test_random_worlds_of_different_turns_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MarineNav, "evaluation_set", staticmethod(lambda per_level, seed: None))
    monkeypatch.setattr(evaluator, "MAX_WORLDS", 2)
    found = evaluate(Scripted(full_ahead), "marinenav", {"num_robots": 2}, 5, 0, max_steps=5)
    assert len(found.episodes["return"].unique()) == 5 and found.levels == ["all"] * 5
    assert [row["level"] for row in found.table()] == ["all"]


# --- any world


def test_a_policy_that_keeps_its_recurrent_state_forgets_it_before_each_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluator, "MAX_WORLDS", 2)

    class Counting(Scripted):
        calls = 0

        def reset(self) -> None:
            begun.append(self.calls)
            self.calls = 0

        def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
            self.calls += 1
            return super().forward(tensordict)

    begun: list[int] = []
    evaluate(Counting(lambda td: torch.zeros(*td.batch_size, 1), "action"), COUNTDOWN, {}, 6, 0)
    assert begun == [0, 2, 2]  # calls of the turn before; episodes take one step and two


@pytest.mark.parametrize(
    ("world", "options", "reward"), [(COUNTDOWN, {}, 1.0), (COUNTDOWN, {"agents": 3}, 2.0), (ALONE, {}, 2.0)]
)
def test_worlds_without_statistics(
    monkeypatch: pytest.MonkeyPatch, world: str, options: dict[str, int], reward: float
) -> None:
    monkeypatch.setattr(evaluator, "MAX_WORLDS", 6)
    size, key = ([], "action") if reward == 1 else ([3], ("agents", "action"))
    policy = Scripted(lambda td: torch.zeros(*td.batch_size, *size, 1), key)
    found = evaluate(policy, world, options, 8, 0, max_steps=9)
    lengths = [1, 2, 3, 4, 1, 2, 1, 2]
    assert found.episodes["length"].tolist() == lengths
    assert found.episodes["return"].tolist() == [reward * length for length in lengths]
    assert found.summary() == pytest.approx({"eval/return": 2 * reward, "eval/length": 2.0})


def test_worlds_beyond_the_last_episode_are_not_recorded() -> None:
    recorder = TransitionRecorder(None)
    policy = Scripted(lambda td: torch.zeros(*td.batch_size, 1), "action")
    found = evaluate(policy, "tests.evaluation.scripted:Four", {}, 6, 0, transitions=recorder)
    assert found.episodes["length"].tolist() == [1, 2, 3, 4, 1, 2] and len(recorder.transitions()) == 13


def test_episodes_of_other_worlds_end_by_their_own_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Scripted(lambda td: torch.zeros(*td.batch_size, 1), "action")
    # More than a thousand steps, which are the limit of MarineNav alone.
    found = evaluate(policy, COUNTDOWN, {"last": 1003}, 2, 0)
    assert found.episodes["length"].tolist() == [1003, 1004] and found.cut == 0
    monkeypatch.setattr(evaluator, "MOST_STEPS", 13)
    found = evaluate(policy, COUNTDOWN, {"last": 13}, 2, 0)
    assert found.episodes["length"].tolist() == [13, 13] and (found.cut, found.max_steps) == (1, 13)


def test_an_outside_env_of_one_world() -> None:
    policy = Scripted(lambda td: torch.tensor([0, 1]), "action")
    found = evaluate(policy, "torchrl.envs:GymEnv", {"env_name": "CartPole-v1"}, 3, 0)
    assert torch.equal(found.episodes["return"], found.episodes["length"])
    assert all(5 < length < 20 for length in found.episodes["length"])
    assert len(found.episodes["length"]) == 3


@pytest.mark.parametrize(
    ("world", "count", "configs", "message"),
    [
        ("marinenav", 0, None, "at least one episode"),
        ("marinenav", 1, [], "at least one episode"),
        ("marinenav", 1, [{"env": {}}], r"config lacks \['robots'\]"),
        ("marinenv", 1, None, "unknown world 'marinenv', did you mean 'marinenav'"),
    ],
)
def test_errors(world: str, count: int, configs: list[Any] | None, message: str) -> None:
    chosen = None if configs is None else EpisodeSet(configs, ["all"] * len(configs))
    refused(ValueError, message, evaluate, Scripted(full_ahead), world, {}, count, 0, episode_set=chosen)


# --- recordings


def test_recordings_are_the_first_of_each_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluator, "MAX_WORLDS", 3)
    names = ["arrives", "arrives", "both", "arrives", "both", "both"]
    found = play(names, max_steps=40, record=2)
    assert list(found.recordings) == [0, 1, 2, 4]
    for index, recording in found.recordings.items():
        assert len(recording.pose) == found.episodes["length"][index] + 1
        assert recording.success == bool(found.episodes["success"][index])
        assert recording.title == f"level {names[index]}, episode {index}"


# --- films of Gymnasium's tasks


def judged_cart_pole(**options: Any) -> Any:
    policy = Scripted(lambda seen: torch.zeros(len(seen), dtype=torch.int64), "action")
    return evaluate(policy, "gymnasium", {"id": "CartPole-v1", "num_envs": 1, **options}, 1, seed=0, record=1)


def test_a_task_that_can_draw_is_recorded() -> None:
    pytest.importorskip("pygame")
    found = judged_cart_pole()
    assert len(found.recordings) == 1 and "render_mode" not in str(found.options)


def test_a_task_that_cannot_draw_here_is_evaluated_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pygame", None)
    with pytest.warns(UserWarning, match="no film of this world: "):
        found = judged_cart_pole()
    assert not found.recordings and len(found.levels) == 1


@pytest.mark.parametrize("kind", ["human", "text"])
def test_a_task_without_pictures_of_its_own_is_evaluated(kind: str) -> None:
    found = judged_cart_pole(id=DRAWN, kwargs={"kind": kind})
    assert not found.recordings and found.episodes["return"].tolist() == [5.0]


@pytest.mark.parametrize("kind", ["colours", "fractions", "floats", "grey", "one channel", "grows"])
def test_pictures_of_any_form_become_a_film(kind: str, tmp_path: Path) -> None:
    found = judged_cart_pole(id=DRAWN, kwargs={"kind": kind})
    animation = found.recordings[0].animation()
    drawn = [animation.draw(time) for time in range(5)]
    assert all((picture == 51 * (step + 1)).all() for step, picture in enumerate(drawn))
    assert {(picture.shape, str(picture.dtype)) for picture in drawn} == {((20, 16, 3), "uint8")}
    assert [path.name for path in save_pictures(found, tmp_path)] == ["trajectories.png", "best.mp4"]


@pytest.mark.parametrize(
    ("kind", "message", "pictures"),
    [
        ("breaks", r"ends at step 3: ArithmeticError: the lamp broke \(gymnasium_toys.py, line \d+\)", 3),
        ("vector", r"no film of this world: .*render\(\) returns float64 \[7\] in place of a picture", 0),
    ],
)
def test_a_fault_in_render_costs_only_pictures(kind: str, message: str, pictures: int) -> None:
    with pytest.warns(UserWarning, match=message):
        found = judged_cart_pole(id=DRAWN, kwargs={"kind": kind})
    assert found.episodes["return"].tolist() == [5.0]
    assert [recording.animation().span[1] + 1 for recording in found.recordings.values()] == [pictures][:pictures]
