"""Evaluations with non-finite numbers are reported; they end no run, and are never the best."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rlstack.config import ConfigError
from rlstack.envs.cartpole.env import CartPole
from rlstack.evaluation.evaluator import evaluate
from rlstack.evaluation.results import Evaluation
from rlstack.runs.worlds import world_options
from rlstack.training.config import ObjectiveConfig
from rlstack.training.loggers import score
from rlstack.training.run import train
from tests.conftest import Ended
from tests.training.test_failures import plain

HERE = f"{__name__}:Spoiled"
SPOILED, AT = 1, 4


class Spoiled(CartPole):
    """Makes something non-finite in the fifth step of the second evaluation world."""

    evaluation_options: ClassVar[dict[str, Any]] = {"spoils": True}

    def __init__(
        self,
        num_worlds: int = 4,
        spoils: bool = False,
        what: Literal["reward", "observation", "nothing"] = "reward",
        value: Literal["nan", "inf", "-inf"] = "nan",
        device: torch.device | str = "cpu",
        seed: int | None = 0,
    ) -> None:
        super().__init__(num_worlds, max_steps=6, device=device, seed=seed)
        self.spoils, self.what, self.value = spoils, what, float(value)

    def _current(self, **more: Tensor) -> TensorDict:
        shown = super()._current(**more)
        if self.spoils and self.what in shown.keys():  # noqa: SIM118
            there = (self.length == AT + 1) & (torch.arange(self.num_worlds) == SPOILED)[:, None]
            shown[self.what] = shown[self.what].masked_fill(there, self.value)
            if self.what == "reward":
                shown["episode", "return"] = shown["episode", "return"].masked_fill(there, self.value)
        return shown


def push(tensordict: TensorDictBase) -> TensorDictBase:
    """A policy that fails on non-finite numbers."""
    assert torch.isfinite(tensordict["observation"]).all()
    return tensordict.set("action", torch.arange(len(tensordict)) % 2)


@pytest.mark.parametrize(
    ("what", "value", "returned"),
    [("reward", "nan", None), ("reward", "inf", None), ("observation", "nan", 17 / 3), ("observation", "-inf", 17 / 3)],
)
def test_what_is_not_finite_is_found_and_named(what: str, value: str, returned: float | None) -> None:
    policy: Any = push
    judged = evaluate(policy, HERE, {"what": what, "value": value}, episodes=3, seed=0)
    line = f"not finite in 1 of 3 episodes: next.{what} is {value} in step {AT} of episode {SPOILED}"
    assert judged.trouble() == line
    summary = judged.summary()
    assert summary["eval/non_finite"] == 1 and summary.get("eval/return") == returned  # it ends there
    assert judged.episodes["return"][[0, 2]].tolist() == [6.0, 6.0]
    assert judged.rank() == [-math.inf]
    assert Evaluation.from_json(judged.to_json()).trouble().replace("the return is nan", "") == line
    whole = evaluate(policy, HERE, {"what": "nothing"}, episodes=3, seed=0)
    assert whole.rank() == [6.0] and whole.trouble() == "" and "eval/non_finite" not in whole.summary()


def rows(folder: Path) -> list[dict[str, str]]:
    with open(folder / "metrics.csv", newline="") as file:
        return [row for row in csv.DictReader(file) if row.get("eval/non_finite")]


@pytest.mark.parametrize("reaction", ["error", "skip"])
def test_a_run_goes_on_and_can_be_resumed(
    reaction: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], rlstack_command: Callable[..., Ended]
) -> None:
    folder = tmp_path / "run"
    options = plain(folder, f"guard.non_finite={reaction}", "total_frames=64", "eval.every=32", "eval.episodes=2")
    options["env"] = {"name": HERE, "num_worlds": 4}
    train(options)
    assert (
        "64 frames: no return; not finite in 1 of 2 episodes: next.reward is nan in step 4" in capsys.readouterr().out
    )
    checkpoints = {path.name for path in (folder / "checkpoints").glob("*.pt")}
    assert checkpoints == {"checkpoint_000000000064.pt"}  # and no best.pt
    assert [float(row["eval/non_finite"]) for row in rows(folder)] == [1, 1]
    assert math.isnan(score(folder, ObjectiveConfig()))
    if reaction == "error":
        return
    train({**options, "resume": str(folder), "total_frames": 96})
    assert [int(row["frames"]) for row in rows(folder)] == [32, 64, 96]
    ended = rlstack_command("evaluate", f"checkpoint={folder}", "episodes=2")
    assert ended.status == 0 and "\nnot finite in 1 of 2 episodes: next.reward is nan in step 4" in ended.out
    written = next((folder / "evaluations").rglob("evaluation.json"))
    assert json.loads(written.read_text())["summary"]["eval/non_finite"] == 1


@pytest.mark.parametrize("value", [math.nan, {"deep": [1.0, {"er": math.inf}]}, [1, -math.inf]])
def test_options_of_options_are_finite_too(value: Any) -> None:
    """The details of an evaluation are written as JSON, which has no such numbers."""
    with pytest.raises(ConfigError, match=r"^env.kwargs.x.*: -?(nan|inf) is not a finite number$"):
        world_options({"name": "gymnasium", "id": "CartPole-v1", "kwargs": {"x": value}})


def test_whole_numbers_in_options_are_no_larger_than_a_float_can_tell() -> None:
    with pytest.raises(ConfigError, match=r"^env.workers: 9223372036854775808 is larger than 2\*\*53$"):
        world_options({"name": "gymnasium", "id": "CartPole-v1", "workers": 2**63})
