"""The published AC-IQN actor on published episodes has the results of the public environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rlstack.envs.marinenav.env import MarineNav
from rlstack.envs.marinenav.noise import PublishedNoise, perception_seeds
from rlstack.envs.marinenav.recording import MarineNavRecorder
from tests.envs.marinenav.recorded import actor, assert_close, build, load_json, play
from tests.exhaustive import exhaustive

Results = list[dict[str, Any]]


def configs_of(records: Results, published: Results) -> Results:
    found = {(r["set_seed"], r["level"], r["index"]): r["config"] for r in records}
    return [found[r["set_seed"], r["level"], r["index"]] for r in published]


def check(published: Results, configs: Results, weights: Path, noisy: bool) -> None:
    """Checks all episodes in one batch, by the rules of the published evaluation.

    Lengths and flags are exact. The closed loop amplifies rounding, in one noisy episode most of all: moving its
    robots by 1e-15 m changes its return by 1e-4, while the median over episodes is 1e-14. Positions are rounded to
    1e-14 m, so that this episode ends some millimetres or centimetres elsewhere by another instruction set.
    """
    env = build(len(configs), 5, **MarineNav.evaluation_options | {"perception_noise": noisy})
    if noisy:
        env.set_noise_source(PublishedNoise([perception_seeds(c) for c in configs], dtype=torch.float64))
    td = env.reset_to(configs)
    recorder = MarineNavRecorder(env, range(len(configs)))
    recorder.add()
    ends = play(env, td, actor(weights), watch=recorder.add)
    errors = []
    for result, end, recording in zip(published, ends, recorder.recordings(), strict=True):
        name = f"set {result['set_seed']} level {result['level']} index {result['index']}"
        episode = end["episode"]
        assert int(episode["length"]) == result["length"] == len(recording.pose) - 1, name
        assert bool(episode["success"]) is recording.success is result["success"], name
        assert bool(episode["collision"]) is recording.collision is result["collision"], name
        assert recording.reached is not None
        assert recording.reached[-1, recording.robots].tolist() == result["robot_reach"], name
        assert recording.dt == pytest.approx(0.5)
        assert_close(episode["time"], [result["time"]], f"time, {name}")
        moved = torch.as_tensor(recording.pose[-1, recording.robots]) - torch.tensor(
            result["final_pose"], dtype=torch.float64
        )
        turned = torch.remainder(moved[:, 2] + torch.pi, 2 * torch.pi) - torch.pi
        errors.append(
            [
                abs(float(episode["discounted_return"]) - result["ret"]),
                abs(float(episode["energy"]) / result["energy"] - 1),
                float(moved[:, :2].abs().max()),
                float(turned.abs().max()),
            ]
        )
    worst = torch.tensor(errors, dtype=torch.float64).sort(0).values
    assert (worst[-2 if noisy else -1] < torch.tensor([1e-5, 1e-6, 1e-4, 1e-4])).all(), worst[-3:]
    assert (worst[-1] < 0.1).all(), worst[-3:]
    assert (worst.median(0).values < 1e-9).all()


@pytest.mark.parametrize("kind", ["noise_free", "noisy"])
def test_published_actor(fixtures_dir: Path, kind: str) -> None:
    folder = fixtures_dir / "marinenav"
    published = load_json(folder / "AC_IQN_episodes_253.json.gz")[kind]
    configs = configs_of(load_json(folder / "eval_configs_253.json.gz"), published)
    assert len(published) == 30 and (kind == "noise_free" or any(r["collision"] for r in published))
    check(published, configs, folder / "AC_IQN_params.npz", noisy=kind == "noisy")


@pytest.mark.shared
@exhaustive(
    ("file", "noisy"), [("public_eval_noisefree.json", False), ("pretrained_eval_episodes_public.json.gz", True)]
)
def test_published_actor_on_all_episodes(shared_dir: Path, file: str, noisy: bool) -> None:
    folder = shared_dir / "golden/marinenav"
    published = [record for record in load_json(folder / file) if record["agent"] == "AC_IQN"]
    configs = configs_of(load_json(folder / "eval_configs_public.json.gz"), published)
    check(published, configs, shared_dir / "weights/marinenav/AC_IQN_params.npz", noisy)
