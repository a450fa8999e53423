"""The comparison with peers, at tiny sizes."""

from __future__ import annotations

import importlib.util
import json
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from experiments import tables
from experiments.benchmarks import equal_ppo, peers, speed, timing
from experiments.benchmarks.reference_ppo import ReferencePPO
from rlstack import envs
from rlstack.training.environment import processor
from tests.refusals import refused


def test_everyone_is_measured_in_turns_and_who_is_absent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(peers.PACKAGES, "vmas", "no_such_module")
    calls: list[tuple[str, int]] = []

    def way(name: str) -> Callable[[], peers.Train]:
        def train(steps: int) -> None:
            calls.append((name, steps))
            sum(range(100_000))

        return lambda: train

    work = peers.Work("play", 8, {"rlstack": way("rlstack"), "other": way("other"), "vmas": way("vmas")})
    result = peers.compare(work, rounds=2)
    assert calls == [("rlstack", 2), ("other", 2), ("other", 8), ("rlstack", 8), ("rlstack", 8), ("other", 8)]
    assert result["absent"] == ["vmas"]
    assert set(result["speeds"]) == {"rlstack", "other"} and set(result["ratios"]) == {"other"}
    ratio = result["ratios"]["other"]
    assert ratio["least"] <= ratio["median"] <= ratio["most"]


def test_unknown_work_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        peers.main(["chess"])
    assert "unknown work chess; known: ppo, ppo_compiled, dqn" in capsys.readouterr().err


@pytest.mark.parametrize("way", [peers.our_steps, peers.gymnasium_steps])
def test_worlds_are_stepped(way: Callable[[], peers.Train]) -> None:
    way()(2 * peers.WORLDS)


@pytest.mark.slow
def test_the_reference_learns() -> None:
    """It has correct advantages for a rollout of one long episode, and its policy improves."""
    torch.manual_seed(0)
    reference = ReferencePPO("CartPole-v1", num_envs=4, steps=64, epochs=4, lr=2e-3)
    seen, _, _, advantage, target = reference.collect()
    assert seen.shape == (256, 4) and advantage.shape == target.shape == (256,)
    lengths = []
    for _ in range(12):
        _, _, _, _, target = (rollout := reference.collect())
        reference.learn(*rollout)
        lengths.append(float(target.mean()))
    assert lengths[-1] > lengths[0] + 10


# -- PPO of rlstack and of Stable-Baselines3: the statistics of the comparison, and a few batches of both ------------


def test_returns_are_those_of_the_part_in_which_an_episode_ends() -> None:
    found = equal_ppo.parts([(1, 10.0), (100, 20.0), (101, 30.0), (2100, 40.0)], frames=2000)
    assert found == [15.0, 30.0, *[None] * (equal_ppo.PARTS - 3), 40.0]


def test_the_end_is_the_last_quarter() -> None:
    late = equal_ppo.PARTS // 4
    curve = [None, *[0.0] * (equal_ppo.PARTS - late - 1), *[8.0] * late]
    told = equal_ppo.means([curve, [4.0] * equal_ppo.PARTS])
    assert told["end"] == [8.0, 4.0]
    assert told["area"] == [pytest.approx(8.0 * late / (equal_ppo.PARTS - 1)), 4.0]


@pytest.mark.parametrize("library", list(equal_ppo.LIBRARIES))
def test_episodes_have_the_length_of_their_return(library: str) -> None:
    if library == "stable-baselines3" and importlib.util.find_spec("stable_baselines3") is None:
        pytest.skip("needs the extra sb3")
    settings = equal_ppo.Settings(frames=256, num_envs=2, steps=64, epochs=1, hidden=(8,))
    episodes = equal_ppo.LIBRARIES[library]("CartPole-v1", settings, 0)
    frames = [when for when, _ in episodes]
    assert frames == sorted(frames) and frames[0] > 0 and frames[-1] <= 256
    # Each step has a reward of 1, so the sum is at most the number of frames; only two unfinished episodes are missing.
    assert 256 - 2 * 100 <= sum(value for _, value in episodes) <= 256


def test_curves_are_measured_once_for_the_same_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[tuple[str, int]] = []

    def train(task: str, settings: equal_ppo.Settings, seed: int) -> equal_ppo.Episodes:
        trained.append((task, seed))
        return [(part * settings.frames // equal_ppo.PARTS, 1.0) for part in range(1, equal_ppo.PARTS + 1)]

    monkeypatch.setattr(equal_ppo, "LIBRARIES", {"one": train})

    def run(frames: int, task: str, seeds: str) -> None:
        monkeypatch.setattr(equal_ppo, "SETTINGS", dict.fromkeys("ab", equal_ppo.Settings(frames, 1, 1)))
        monkeypatch.setattr(sys, "argv", ["equal_ppo", task, "--seeds", *seeds, "--out", str(tmp_path)])
        equal_ppo.main()

    for task, seeds in [("a", "0"), ("b", "0"), ("a", "01")]:
        run(100, task, seeds)
    refused(SystemExit, "has curves of a with other settings", run, 200, "a", "0")
    assert trained == [("a", 0), ("b", 0), ("a", 1)]
    tasks = json.loads((tmp_path / "equal_ppo.json").read_text())["tasks"]
    assert {task: list(entry["curves"]["one"]) for task, entry in tasks.items()} == {"a": ["0", "1"], "b": ["0"]}


@pytest.mark.parametrize(("task", "limit"), [("CartPole-v1", 14), ("Pendulum-v1", 25)])
def test_estimates_and_updates_equal_those_of_stable_baselines3(task: str, limit: int) -> None:
    """Over three batches; poles fall after eight steps at the earliest: some episodes end and others are cut."""
    pytest.importorskip("stable_baselines3", reason="needs the extra sb3")
    settings = equal_ppo.Settings(700, 4, 60, minibatch=48, epochs=2, gamma=0.97, gae_lambda=0.9, entropy=0.01)
    told = list(equal_ppo.same_data(task, settings, 0, max_steps=limit))
    assert [difference.frames for difference in told] == [240, 480, 720]
    assert all(difference.estimates < 1e-4 and difference.parameters < 1e-6 for difference in told), told


@pytest.mark.parametrize("task", ["CartPole-v1", "Pendulum-v1"])
def test_environments_of_both_libraries_are_the_same(task: str) -> None:
    """From equal seeds with equal actions, over episodes that end (CartPole) and that are cut (Pendulum)."""
    pytest.importorskip("stable_baselines3", reason="needs the extra sb3")
    from stable_baselines3.common.env_util import make_vec_env

    theirs = make_vec_env(task, 3, seed=4, env_kwargs={"max_episode_steps": 30})
    ours = envs.make("gymnasium", id=task, num_envs=3, max_steps=30)
    seen, root = theirs.reset(), ours.reset(seed=[4, 5, 6])
    np.testing.assert_array_equal(root["observation"], seen)
    ended = 0
    for actions in ours.action_spec.expand(100, *ours.action_spec.shape).rand():
        seen, reward, done, infos = theirs.step(actions.numpy())
        step, root = ours.step_and_maybe_reset(root.set("action", actions))
        last = [info.get("terminal_observation", new) for info, new in zip(infos, seen)]
        np.testing.assert_array_equal(root["observation"], seen)
        np.testing.assert_array_equal(step["next", "observation"], np.stack(last))
        np.testing.assert_allclose(step["next", "reward"].squeeze(-1), reward, rtol=1e-6)
        np.testing.assert_array_equal(step["next", "done"].squeeze(-1), done)
        cut = [info["TimeLimit.truncated"] for info in infos]
        np.testing.assert_array_equal(step["next", "done"].squeeze(-1) & ~step["next", "terminated"].squeeze(-1), cut)
        returns = [info["episode"]["r"] for info in infos if "episode" in info]
        np.testing.assert_allclose(step["next", "episode", "return"].squeeze(-1)[done], returns, rtol=1e-4)
        ended += int(done.sum())
    assert ended >= 9


# -- Results that are compared with earlier ones, and the tables of the pages ----------------------------------------


def _row(name: str, median: float, least: float, most: float) -> dict[str, Any]:
    return {"name": name, "num_worlds": 64, "median": median, "least": least, "most": most}


THEN = {"cpu": "one", "rows": [_row(name, 100, 90, 110) for name in ("same", "noisy", "slow", "a little slower")]}
NOW = {
    "cpu": "one",
    "rows": [
        _row("same", 99, 91, 109),
        _row("noisy", 80, 60, 95),  # the ranges overlap
        _row("slow", 80, 75, 85),
        _row("a little slower", 96, 95, 97),
        _row("new", 1, 1, 1),
    ],
}


def test_a_figure_is_slower_by_more_than_the_tolerance_and_outside_of_both_ranges(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "then.json"
    file.write_text(json.dumps(THEN))
    before = timing.earlier(Namespace(compare=file))
    assert timing.verdict(NOW, before, fail=True) == 1
    assert capsys.readouterr().out == "slower: slow, 64 worlds: 100.00 -> 80.00 (-20%)\n"
    assert timing.verdict(NOW, before, fail=False) == 0
    assert timing.verdict(THEN, before, fail=True) == 0
    assert "nothing got slower among 4 figures" in capsys.readouterr().out


def test_a_small_change_outside_of_both_ranges_is_not_named() -> None:
    exact = {"x": {"median": 100.0, "least": 99.9, "most": 100.1}}
    assert timing.slower({"x": {"median": 96.0, "least": 95.9, "most": 96.1}}, exact) == []
    assert len(timing.slower({"x": {"median": 94.0, "least": 93.9, "most": 94.1}}, exact)) == 1


def test_peers_are_compared_by_their_ratios() -> None:
    ratio = {"median": 2.0, "least": 1.9, "most": 2.1}
    result = {"work": {"ppo": {"speeds": {"rlstack": ratio}, "ratios": {"other": ratio}}}}
    assert timing.figures(result) == {"ppo beside other": ratio}


def test_another_cpu_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    timing.verdict({**THEN, "cpu": "two"}, THEN, fail=True)
    assert "figures of another CPU: one, now two" in capsys.readouterr().out


@pytest.mark.parametrize("content", [None, "no json", "[]", "{}", '{"rows": [{"name": "x"}]}', '{"work": {"x": 1}}'])
def test_a_file_that_is_no_result_is_refused_in_one_line(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "file.json"
    if content is not None:
        file.write_text(content)
    refused(SystemExit, "not the result of a benchmark", timing.earlier, Namespace(compare=file))


def test_the_speed_of_worlds_is_compared_with_the_file_that_it_replaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        speed, "SUBJECTS", [speed.Subject("tiny", lambda worlds: lambda steps: sum(range(9999)), (64,))]
    )
    file = tmp_path / "speed.json"
    file.write_text(json.dumps({"cpu": processor(), "rows": [_row("tiny", 1e15, 1e15, 1e15)]}))
    arguments = ["--only", "tiny", "--out", str(file), "--compare", str(file), "--fail-if-slower"]
    assert speed.main(arguments) == 1 and "slower: tiny, 64 worlds" in capsys.readouterr().out
    assert json.loads(file.read_text())["rows"][0]["median"] < 1e15
    monkeypatch.setattr(speed, "measure", lambda *_: _row("tiny", 1e15, 1e15, 1e15))
    assert speed.main(arguments) == 0


# -- The tables of the experiments' pages agree with their result files ----------------------------------------------


def test_every_table_is_that_of_its_result_file() -> None:
    assert tables.main(["--check"]) == 0


def test_every_known_table_stands_on_one_page_once() -> None:
    pages = "".join(page.read_text() for page in tables.PAGES)
    assert sorted(name for name, _ in tables.MARKED.findall(pages)) == sorted(tables.TABLES)


def test_a_stale_table_is_named_and_rewritten(tmp_path, monkeypatch, capsys) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- table: soak -->\n| typed by hand |\n<!-- end -->\nafter\n")
    monkeypatch.setattr(tables, "PAGES", [page])
    assert tables.main(["--check"]) == 1 and "soak" in capsys.readouterr().out
    assert tables.main([]) == 0
    lines = page.read_text().splitlines()
    assert lines[0] == "before" and lines[-1] == "after" and lines[2].startswith("| world | frames |")


def test_a_table_nobody_makes_is_refused() -> None:
    refused(KeyError, "nothing", tables.rewritten, "<!-- table: nothing -->\n<!-- end -->")
