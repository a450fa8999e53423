"""Gymnasium environments as a world: the numbers of the plain environments, in TorchRL's form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torchrl.data import Bounded
from torchrl.envs.utils import check_env_specs

import rlstack
from rlstack import envs
from rlstack.data.collector import LeanCollector
from rlstack.envs.foundation.processes import EnvironmentFailed
from rlstack.envs.gymnasium import Gymnasium
from rlstack.envs.gymnasium.simulators import AtariSimulators, Codec, Recipe
from tests.envs.gymnasium_toys import TOYS, rolled
from tests.exhaustive import exhaustive
from tests.refusals import refused

CARTPOLE = "CartPole-v1"


def test_what_comes_out_is_what_plain_gymnasium_gives() -> None:
    """Terminal observations, terminated and truncated, and statistics agree with environments stepped by hand."""
    env = Gymnasium(CARTPOLE, num_envs=3, max_steps=25, seed=4)
    seeds = dict(env._seeds)
    torch.manual_seed(1)
    action = (torch.rand(150, 3) < torch.tensor([0.5, 0.5, 0.2])).long()
    action[:, 0] = torch.arange(150) % 2  # stays up until the time limit
    batch = rolled(env, 150, action)
    ends = []
    for row in range(3):
        plain = gymnasium.make(CARTPOLE, max_episode_steps=25)
        observation, _ = plain.reset(seed=seeds[row])
        total, length = 0.0, 0
        for step in range(150):
            now = batch[row, step]
            following = now["next"]
            torch.testing.assert_close(now["observation"], torch.from_numpy(observation))
            assert now["episode", "length"] == length and not now["done"].any()
            observation, reward, terminated, truncated, _ = plain.step(int(action[step, row]))
            total, length = total + float(reward), length + 1
            torch.testing.assert_close(following["observation"], torch.from_numpy(observation))
            expected = [reward, terminated, truncated, terminated or truncated, total, length]
            flags = [following[key].item() for key in ("reward", "terminated", "truncated", "done")]
            assert [*flags, *(following["episode", key].item() for key in ("return", "length"))] == expected
            if terminated or truncated:
                ends.append((row, truncated))
                observation, _ = plain.reset()
                total, length = 0.0, 0
    assert {truncated for _, truncated in ends} == {True, False} and len(ends) > 10


def test_a_world_that_ended_waits_for_its_reset() -> None:
    env = Gymnasium(f"{TOYS}:Structured", num_envs=2)
    tensordict = env.reset()
    for _ in range(4):
        end = env.step(env.rand_action(tensordict))["next"]
    assert end["terminated"].all() and (end["episode", "return"] == 1 + 2 + 3 + 4).all()
    later = env.step(env.rand_action(tensordict))["next"]
    assert (later["reward"] == 0).all()
    assert (later.exclude("reward") == end.exclude("reward")).all()
    only_first = env.step_mdp(tensordict.set("next", later)).set("_reset", torch.tensor([[True], [False]]))
    assert env.reset(only_first)["episode", "length"].tolist() == [[0.0], [4.0]]


def test_continuous_actions_are_clipped_and_belong_to_the_batch() -> None:
    env = Gymnasium(f"{TOYS}:Noisy", num_envs=1)
    assert isinstance(env.action_spec, Bounded) and env.action_spec.shape == (1, 4)
    action = torch.tensor([[1.0, -9.0, 9.0, 0.5]])
    assert env.step(env.reset().set("action", action))["next", "reward"].item() == 1.0 - 2.0 + 3.0 + 0.5
    assert action.tolist() == [[1.0, -9.0, 9.0, 0.5]], "what the environment does to its action stays there"


@pytest.mark.parametrize("form", ["info", "observation", "plural", "below", "by method"])
@pytest.mark.parametrize("max_steps", [None, 9])
def test_action_masks_follow_the_environment(form: str, max_steps: int | None) -> None:
    """In every form in which an environment may tell them, also inside a wrapper."""
    toy, kwargs = ("MaskedByMethod", {}) if form == "by method" else ("Masked", {"form": form})
    env = Gymnasium(f"{TOYS}:{toy}", num_envs=2, max_steps=max_steps, kwargs=kwargs)
    batch = rolled(env, 10)  # an illegal action is an error there
    key = ("observation", "ship", "speed") if form == "below" else "observation"
    assert env.observation_spec[key].shape == (2, 1)
    torch.testing.assert_close(batch["action"][0], torch.tensor([0, 1, 2, 0, 1, 2, 0, 0, 1, 2]))
    torch.testing.assert_close(batch["action_mask"].long().argmax(-1), batch["action"])
    assert batch["next", "action_mask"][0, 6].tolist() == [False, True, False], "after seven steps"


@pytest.mark.parametrize(
    ("form", "told"),
    [
        ("at first", "step 1 of an episode: its info has no action mask, but that of the first reset had one"),
        ("numbers", r"reset: action mask \[0\.0, -inf, -inf\] has other numbers than 0 and 1"),
    ],
)
def test_masks_that_would_allow_everything_are_refused(form: str, told: str) -> None:
    env = Gymnasium(f"{TOYS}:Masked", 1, kwargs={"form": form})
    refused(EnvironmentFailed, rf"^{TOYS}:Masked: {told}$", rolled, env, 1)


def test_the_remedy_for_actions_without_bounds_is_one() -> None:
    with Gymnasium(f"{TOYS}:bounded", 1) as env:
        assert env.action_spec.shape == (1, 2) and rolled(env, 3)["action"].abs().max() <= 1


@exhaustive("workers", [0, 1])
def test_success_is_what_the_environment_says(workers: int) -> None:
    action = torch.tensor([[0, 1], [1, 0], [1, 0]] * 2)
    with Gymnasium(f"{TOYS}:Landing", 2, workers=workers, success=True) as env:
        check_env_specs(env)
        success = rolled(env, 6, action)["next", "episode", "success"][..., 0]
        assert success.tolist() == [[0, 0, 1] * 2, [0, 0, 0] * 2]
        chosen = iter(action.repeat(2, 1))
        env.reset()
        collected = env.collect(lambda seen, mask: {"action": next(chosen)}, 6)
        assert torch.equal(collected["next", "episode", "success"][..., 0], success)
    with pytest.warns(RuntimeWarning, match=r"info\['is_success'\] is not logged; env.success=true logs it"):
        rolled(Gymnasium(f"{TOYS}:Landing", 2, workers=workers), 3, action)


def test_seeds_decide_everything() -> None:
    def observations(seed: int, num_envs: int = 3) -> torch.Tensor:
        action = torch.zeros(30, num_envs, 4)
        return rolled(Gymnasium(f"{TOYS}:Noisy", num_envs=num_envs, seed=seed), 30, action)["observation"]

    first = observations(1)
    assert (first == observations(1)).all() and (first[:2] == observations(1, 2)).all()
    assert (first != observations(2)).all() and (first[0] != first[1]).all()
    env = Gymnasium(f"{TOYS}:Noisy", num_envs=3, seed=7)
    env.set_seed(1)
    assert (env.reset()["observation"] == first[:, 0]).all()


def test_own_environments_outside_of_the_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "harbour_of_mine.py").write_text(
        "import gymnasium\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "class Harbour(CartPoleEnv):\n"
        "    def __init__(self, gravity=9.8):\n"
        "        super().__init__()\n"
        "        self.gravity = gravity\n"
        "gymnasium.register('Harbour-v3', entry_point='harbour_of_mine:Harbour', max_episode_steps=9)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    for id, limit in (("harbour_of_mine:Harbour-v3", 9), ("harbour_of_mine:Harbour", None)):
        env = envs.make("gymnasium", id=id, num_envs=1, kwargs={"gravity": 0.0})
        assert env._first.unwrapped.gravity == 0.0
        assert getattr(env._first.spec, "max_episode_steps", None) == limit
        env = envs.make("gymnasium", id=id, num_envs=1, max_steps=5)
        action = torch.tensor([[0], [1]] * 3)
        assert rolled(env, 6, action)["next", "truncated"][0, :, 0].tolist() == [False] * 4 + [True, False]
    del gymnasium.registry["Harbour-v3"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "id: missing, give an environment such as CartPole-v1"),
        ({"id": "cartpol-v1"}, "id: unknown environment 'cartpol-v1', did you mean CartPole-v1"),
        ({"id": "no_such_module:Some-v0"}, "id: no_such_module:Some-v0 cannot be imported: No module named"),
        ({"id": "no_such_module:Some"}, "id: no_such_module:Some cannot be imported: No module"),
        ({"id": f"{TOYS}:Maskd"}, "has no 'Maskd'; it has .*; did you mean 'Masked'"),
        ({"id": "builtins:dict"}, "builtins:dict is neither a gymnasium.Env class nor a function"),
        ({"id": CARTPOLE, "kwargs": {"colour": 1}}, "CartPole-v1 cannot be made with kwargs {'colour': 1}"),
        ({"id": CARTPOLE, "num_envs": 0}, "num_envs: 0 is not"),
        ({"id": CARTPOLE, "workers": -1}, "workers: -1 is not"),
        ({"id": CARTPOLE, "worker_timeout": 0}, "worker_timeout: 0 is not a positive number"),
    ],
)
def test_wrong_options_say_what_is_right(options: dict[str, Any], message: str) -> None:
    refused(ValueError, message, envs.make, "gymnasium", **options)


def test_a_missing_package_is_named_by_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any, **__: Any) -> None:
        raise gymnasium.error.DependencyNotInstalled("no such package")

    monkeypatch.setattr(gymnasium, "make", missing)
    for id, extra in (("LunarLander-v3", "box2d"), ("HalfCheetah-v5", "mujoco"), ("ALE/Pong-v5", "atari")):
        with pytest.raises(ValueError, match=rf"{id} needs the extra '{extra}': pip install ") as error:
            Gymnasium(id)
        assert "no such package" not in str(error.value)


@pytest.mark.parametrize(("id", "package"), [("LunarLander-v3", "Box2D"), ("HalfCheetah-v5", "mujoco")])
def test_environments_of_the_extras(id: str, package: str) -> None:
    pytest.importorskip(package)
    with Gymnasium(id, num_envs=2) as env:
        assert rolled(env, 5)["next", "reward"].isfinite().all()


def test_atari_games_show_the_last_four_grey_pictures() -> None:
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    with Gymnasium("ALE/Pong-v5", num_envs=2, max_steps=7, kwargs={"repeat_action_probability": 0.0}) as env:
        steps = rolled(env, 7)
        seen, following = steps["observation"], steps["next", "observation"]
        assert seen.dtype == torch.uint8 and seen.shape == (2, 7, 4, 84, 84)
        assert (following[:, :, :-1] == seen[:, :, 1:]).all() and (following[:, -1, -1] != seen[:, 0, -1]).any()
        assert steps["next", "truncated"][:, -1].all() and not steps["next", "truncated"][:, :-1].any()
        refused(RuntimeError, "set kwargs: .render_mode: rgb_array", env.render)
    with Gymnasium("ALE/Pong", num_envs=1, max_steps=2) as env:  # without a version, the last one
        assert rolled(env, 2)["next", "truncated"][0, :, 0].tolist() == [False, True]
    for kwargs, shape in (({"obs_type": "ram"}, (128,)), ({"frameskip": 2}, (210, 160, 3))):
        with Gymnasium("ALE/Pong-v5", num_envs=1, kwargs=kwargs) as env:
            assert env.observation_spec["observation"].shape == (1, *shape)
            refused(RuntimeError, "renders no picture", env.render)


@exhaustive("game", ["Breakout", "Pong"])
def test_a_batch_of_atari_games_plays_like_single_ones(game: str) -> None:
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    recipe = Recipe(f"ALE/{game}-v5", {"repeat_action_probability": 0.0}, max_steps=30)
    codec, first = Codec.of_first(recipe, "float32")
    first.close()
    arrays = codec.arrays(3)
    batch = AtariSimulators(recipe, arrays, threads=2, idle=0)
    singles = [gymnasium.make(recipe.id, frameskip=1, disable_env_checker=True, **recipe.kwargs) for _ in range(3)]
    singles = [
        gymnasium.wrappers.TimeLimit(
            gymnasium.wrappers.FrameStackObservation(gymnasium.wrappers.AtariPreprocessing(single, noop_max=0), 4), 30
        )
        for single in singles
    ]
    batch.reset(range(3), (1, 2, 3))
    for single, seed in zip(singles, (1, 2, 3)):
        single.reset(seed=seed)
    generator, before = np.random.default_rng(0), arrays.observations[0].copy()
    for t in range(30):
        arrays.action[:] = generator.integers(0, 4, 3)
        batch.step()
        answers = [single.step(int(action)) for single, action in zip(singles, arrays.action)]
        pictures = np.stack([answer[0] for answer in answers])
        if 3 <= t < 29:  # single games fill up their first pictures with copies
            assert (arrays.observations[0] == pictures).all()
        assert (arrays.reward == [answer[1] for answer in answers]).all()
        assert ([answer[2:4] for answer in answers] == arrays.flags[1:, :, 0].T).all()
    assert arrays.flags[0].all() and arrays.flags[2].all() and not arrays.flags[1].any()
    # Where the limit cuts, the last one is of other frames.
    assert (arrays.observations[0][:, :3] == pictures[:, :3]).all()

    ended = arrays.observations[0].copy()
    batch.reset([1], [None])
    assert (arrays.observations[0][[0, 2]] == ended[[0, 2]]).all() and (arrays.observations[0][1] == before[1]).all()
    assert arrays.flags[:, 1].sum() == 0 and arrays.flags[0, [0, 2]].all()
    batch.step()
    assert (arrays.observations[0][[0, 2]] == ended[[0, 2]]).all() and not arrays.reward[[0, 2]].any()
    assert (arrays.observations[0][1, :-1] == before[1, 1:]).all()
    batch.close()


def test_pictures() -> None:
    pytest.importorskip("pygame")
    with Gymnasium(CARTPOLE, num_envs=2, kwargs={"render_mode": "rgb_array"}) as env:
        picture = env.render()
        assert picture.dtype == torch.uint8 and picture.shape == (400, 600, 3) and picture.float().std() > 0
    refused(RuntimeError, "renders no picture", Gymnasium(CARTPOLE).render)


def test_a_closed_world_says_so() -> None:
    with Gymnasium(CARTPOLE, num_envs=2) as env:
        root = env.rand_action(env.reset())
    env.close()
    refused(RuntimeError, "closed", env.step, root)
    refused(RuntimeError, "reset", Gymnasium(CARTPOLE, num_envs=2).step, root)


def test_evaluation_brings_its_own_size_and_seeds() -> None:
    from rlstack.evaluation.evaluator import evaluate

    def policy(tensordict: Any) -> Any:
        return tensordict.set("action", (tensordict["observation"][:, 0] > 0).long())  # which soon falls

    options = {"id": CARTPOLE, "num_envs": 2, "workers": 3}
    results = [evaluate(policy, "gymnasium", options, 12, seed) for seed in (0, 0, 1)]  # type: ignore[arg-type]
    returns = [np.asarray(result.episodes["return"]) for result in results]
    assert returns[0].shape == (12,) and (returns[0] == np.asarray(results[0].episodes["length"])).all()
    assert (returns[0] == returns[1]).all() and (returns[0] != returns[2]).any()


# -- Collecting many steps at once equals single steps that are stacked ----------------------------------------------


CASES: list[tuple[dict[str, Any], str]] = [
    ({"id": "CartPole-v1", "num_envs": 3}, "ppo"),
    ({"id": "CartPole-v1", "num_envs": 1, "max_steps": 15}, "dqn"),
    ({"id": "Pendulum-v1", "num_envs": 2, "max_steps": 20}, "sac"),
    ({"id": f"{TOYS}:Masked", "kwargs": {"form": "below"}, "num_envs": 3}, "ppo"),
    ({"id": f"{TOYS}:Masked", "kwargs": {"form": "below"}, "num_envs": 2, "workers": 2}, "dqn"),
]


def batches(options: dict[str, Any], agent: str, **collector: Any) -> tuple[Any, list[Any]]:
    """Returns six batches of eight steps."""
    torch.manual_seed(1)
    with envs.make("gymnasium", seed=1, **options) as env:  # type: ignore[attr-defined]
        policy = rlstack.make_agent(agent, env).policy(explore=True)
        gathering = rlstack.make_collector(env, policy, 8, **collector)
        torch.manual_seed(3)
        batch = iter(gathering)
        return gathering, [next(batch) for _ in range(6)]


@exhaustive(("options", "agent"), CASES)
def test_in_one_go_is_as_step_by_step(options: dict[str, Any], agent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    quick, one = batches(options, agent)
    slow, other = batches(options, agent, storing_device="cpu")
    assert isinstance(quick, LeanCollector) and quick.env.collect is not None and not isinstance(slow, LeanCollector)
    ends = 0
    for got, wanted in zip(one, other):
        keys = set(wanted.keys(True, True))
        assert set(got.keys(True, True)) == keys and got.batch_size == wanted.batch_size
        for key in keys:
            assert got[key].dtype == wanted[key].dtype
            assert torch.equal(got[key], wanted[key]), key
        ends += int(got["next", "done"].sum())
    assert ends > 1, "episodes must have ended for this to prove anything"


def test_a_wrapper_does_not_pass_it_on() -> None:
    env = envs.make("gymnasium", id="CartPole-v1", num_envs=2, frame_stack=2)
    policy = rlstack.make_agent("ppo", env).policy(explore=True)
    batch = next(iter(rlstack.make_collector(env, policy, 4)))
    assert batch["observation"].shape == (2, 4, 8)
