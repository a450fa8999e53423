"""The world in envs/README.md is complete: it is checked, trained and drawn as printed there."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Categorical, Composite
from torchrl.envs import check_env_specs

from rlstack import envs
from rlstack.agents import make_agent
from rlstack.data.flatten import flatten_agents
from rlstack.evaluation.evaluator import evaluate
from rlstack.evaluation.pictures import save_pictures
from rlstack.train import _completed
from rlstack.training.run import train
from tests.small_run import composed

README = Path(envs.__file__).with_name("README.md")


@pytest.fixture
def reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    _, section = README.read_text(encoding="utf-8").split("\n## Adding a world\n")
    (source,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    (tmp_path / "reach.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield importlib.import_module("reach").PointMass
    del sys.modules["reach"]


def test_its_specs_hold(reach: Any) -> None:
    check_env_specs(reach(num_worlds=3))


def test_pushing_towards_the_goal_reaches_it(reach: Any) -> None:
    world = reach(num_worlds=8)
    root = world.reset()
    way = root["observation"][:, :2]
    for _ in range(100):
        step = world.step(root.set("action", root["observation"][:, :2].sign()))
        if bool(step["next", "done"].all()):
            break
        root = world.step_mdp(step)
    assert bool((world.state[:, 6] == 1).all())
    assert (world.state[:, 4] - way.norm(dim=-1)).abs().max() < 0.2  # the rest of the way is less than its reach


def test_a_saved_world_goes_on_as_it_was(reach: Any) -> None:
    one, two = reach(num_worlds=4), reach(num_worlds=4, seed=5)
    one.reset()
    two.load_state_dict(one.state_dict())
    assert torch.equal(two.reset()["observation"], one._current()["observation"])


def test_its_picture_shows_goal_and_point(reach: Any) -> None:
    world = reach(num_worlds=1)
    world.reset()
    picture, (x, y) = world.render(), (-64 * world.state[0, :2] + 128).round().int().tolist()
    assert picture.dtype == np.uint8 and picture[128, 128, 1] > 100 and picture[y, x, 2] > 200


def test_its_pictures_make_the_film_of_the_first_episode(reach: Any, tmp_path: Path) -> None:
    def towards(tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict.set("action", tensordict["observation"][:, :2].sign())

    evaluation = evaluate(towards, "reach:PointMass", {}, 3, seed=0, record=2)
    animation = evaluation.recordings[0].animation()
    world = reach(num_worlds=3)
    world.set_seed(int(np.random.SeedSequence((0, 0)).generate_state(1)[0]))  # the seed of the evaluation's first turn
    world.reset()
    assert np.array_equal(animation.draw(0.0), world.render())
    assert animation.span == (0.0, float(evaluation.episodes["length"][0]))  # one picture per step, and the first
    last = animation.draw(animation.span[1])
    assert last[128, 128, 1] > 100 and not np.array_equal(last, animation.draw(0.0))
    assert [path.name for path in save_pictures(evaluation, tmp_path)] == ["trajectories.png", "first.mp4"]
    assert (tmp_path / "first.mp4").stat().st_size > 1000
    course = evaluation.recordings[0].overview()  # six moments in two rows
    assert course.shape == (2 * 256, 3 * 256, 3)
    assert np.array_equal(course[:256, :256], animation.draw(0.0)) and np.array_equal(course[256:, 512:], last)


def test_a_single_agent_may_have_an_action_of_several_parts(reach: Any) -> None:
    """The push, and whether it is made."""

    class Held(reach):  # type: ignore[misc]
        def declare_specs(self, shown: Any, action: Any, **options: Any) -> None:
            made = Categorical(2, shape=(self.num_worlds,))
            super().declare_specs(shown, Composite({"push": action, "made": made}, shape=(self.num_worlds,)), **options)

        def _chosen(self, tensordict: TensorDictBase) -> Any:
            chosen = super()._chosen(tensordict)
            return chosen["push"] * chosen["made"].unsqueeze(-1)

    world = Held(num_worlds=3)
    check_env_specs(world)
    root = world.reset()
    action = TensorDict({"push": torch.ones(3, 2), "made": torch.tensor([0, 1, 1])}, [3])
    moved = world.step(root.set("action", action))["next", "observation"][:, 2]
    assert moved.tolist() == pytest.approx([0, 0.02, 0.02])
    agent = make_agent("ppo", world, hidden=[8], steps_per_batch=4)
    rollout = flatten_agents(world.rollout(4, agent.policy(explore=True), break_when_any_done=False))
    assert agent.interface.hybrid.counts == (2,) and agent.learn(rollout, 12)["loss/total"].isfinite()


def test_it_trains_by_its_path(reach: Any, tmp_path: Path) -> None:
    train_it = ["agent=ppo", "env=own", "env.name=reach:PointMass", "++env.num_worlds=4", "total_frames=64"]
    small = ["agent.hidden=[8]", "agent.steps_per_batch=8", "eval.episodes=2", "logger=csv", "device=cpu"]
    made = train(_completed(composed(*train_it, *small, f"run_dir={tmp_path / 'run'}")))
    assert made is not None and "eval/success" in (made.path / "metrics.csv").read_text(encoding="utf-8")
