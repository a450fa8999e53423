"""Non-finite numbers are named, kept out of the agent, and end the run or not, as the option says."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from rlstack import envs
from rlstack.agents.optimizer import Optimizer
from rlstack.config import ConfigError
from rlstack.config.errors import RunError
from rlstack.data.finite import find
from rlstack.envs.cartpole.env import CartPole
from rlstack.evaluation.evaluator import evaluate
from rlstack.evaluation.results import Evaluation
from rlstack.runs.checkpoint import read_checkpoint
from rlstack.runs.worlds import world_options
from rlstack.training import guard
from rlstack.training.config import ObjectiveConfig
from rlstack.training.guard import BAD_BATCH
from rlstack.training.hooks import Hook
from rlstack.training.loggers import score
from rlstack.training.loop import Training
from rlstack.training.run import train
from tests.conftest import Command
from tests.exhaustive import exhaustive
from tests.refusals import refused
from tests.small_run import begun, composed, logged, reopened
from tests.training.test_failures import TINY, plain

PPO = [*TINY, "agent.epochs=2", "checkpoint.every=256"]
"""Batches of 32 frames, in four steps; a line in the log after every second one."""
EXACT = ["env=cartpole", "env.num_worlds=4", *(word for word in PPO if not word.startswith("env"))]
"""The same in worlds that continue exactly in a resumed run."""


def training(folder: Path, *overrides: str, base: Sequence[str] = PPO) -> Training:
    return (reopened if folder.exists() else begun)(folder, composed(*base, *overrides))


def spoil_data(run: Training, batches: set[int], key: Any = ("next", "observation"), value: float = torch.nan) -> None:
    """Puts a number into world 2, step 5 of some batches (counted from 0) as they arrive."""
    seen = iter(range(10**6))

    class Spoils(Hook):
        def on_start(self, training: Training) -> None:
            collector: Any = training.collector
            plain = collector.rollout

            def spoiled() -> Any:
                batch = plain()
                if next(seen) in batches:
                    batch[key][2, 5, 0] = value
                return batch

            collector.rollout = spoiled

    run.hooks.append(Spoils())


def spoil_loss(run: Training, updates: set[int]) -> None:
    """Makes the value function's gradient infinite in some calls of the loss, counted from 0."""
    loss: Any = run.agent.loss
    plain, seen = loss.value_loss, iter(range(10**6))

    def spoiled(batch: TensorDict, value: Tensor) -> Tensor:
        error = plain(batch, value)
        return error * torch.inf if next(seen) in updates else error

    vars(loss)["value_loss"] = spoiled


def is_finite(run: Training) -> bool:
    return all(torch.isfinite(parameter).all() for parameter in run.agent.parameters())


# -- the search ----------------------------------------------------------------------------------------------------


def test_the_first_one_is_named_and_causes_come_before_consequences() -> None:
    batch = envs.make("marinenav", num_worlds=3).rollout(4, break_when_any_done=False)
    assert find(batch) is None
    batch["next", "agents", "reward"][1, 3, 2] = torch.inf
    batch["agents", "observation", "self"][2, 3, 1, 0] = torch.nan
    batch["episode", "return"][0, 0] = torch.nan  # which no agent learns from
    found = find(batch)
    assert found is not None and (found.step, found.world, found.agent) == (3, 2, 1)
    assert str(found) == "agents.observation.self is nan in world 2, agent 1, step 3 of the batch"
    batch["next", "agents", "reward"][1, 2, 0] = -torch.inf
    assert str(find(batch)) == "next.agents.reward is -inf in world 1, agent 0, step 2 of the batch"


# -- error ---------------------------------------------------------------------------------------------------------


def test_bad_data_ends_the_run_and_is_left_for_inspection(tmp_path: Path) -> None:
    run = training(tmp_path / "run", "checkpoint.every=32")
    spoil_data(run, {3}, ("next", "reward"))
    refused(RunError, r"^not finite: next.reward is nan in world 2, step 5 of the batch, frame 116; ", run.execute)
    # three batches of 4 worlds and 8 steps, and five steps of 4 worlds
    assert is_finite(run)
    saved = run.run.checkpoints.latest()
    assert saved is not None and read_checkpoint(saved)["frames"] == 96
    left = torch.load(tmp_path / "run" / BAD_BATCH, weights_only=True)
    assert left["frames"] == 128 and left["batch"]["next"]["reward"].shape == (4, 8, 1)
    assert left["batch"]["next"]["reward"].isnan().nonzero().tolist() == [[2, 5, 0]]
    assert not list((tmp_path / "run").rglob("*.tmp"))


def test_a_bad_loss_names_its_term_and_the_gradients(tmp_path: Path) -> None:
    run = training(tmp_path / "run")
    spoil_loss(run, {6})  # four steps a batch: in the second one
    message = refused(RunError, r"\(optimiser lr\), in an update at frame 64", run.execute)
    assert "the loss (value) or the gradient of critic." in message and "actor." not in message
    assert is_finite(run)
    assert set(torch.load(tmp_path / "run" / BAD_BATCH, weights_only=True)["batch"]) >= {"advantage", "return"}


def test_networks_that_are_not_finite_are_not_saved(tmp_path: Path) -> None:
    run = training(tmp_path / "run")
    run.save()
    run.frames = 100
    run.agent.networks["critic"].get_parameter("output.bias").data.fill_(torch.nan)
    refused(RunError, r"output.bias of the agent's critic; checkpoints stay as they were", run.save)
    assert [path.name for path in run.run.checkpoints.directory.iterdir()] == ["checkpoint_000000000000.pt"]


@pytest.mark.parametrize("lent", [False, True])
def test_what_a_gpu_finds_is_known_later_but_before_anything_is_saved(
    lent: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sum that, like a GPU's, exists only after somebody waits for it."""

    class Late(guard.Sum):
        def __init__(self, values: list[Tensor], *_: Any) -> None:
            super().__init__(values)
            self.of_gpu = True

        def is_there(self) -> bool:
            return False

    monkeypatch.setattr(guard, "Sum", Late)
    run = training(tmp_path / "run", "checkpoint.every=128", "log_every=1000000")
    spoil_data(run, {5})
    if lent:  # by then another batch has been written into its tensors
        monkeypatch.setattr(guard, "find", lambda _: None)
    told = (
        "something in the batch after frame 160" if lent else "next.observation is nan in world 2, step 5 .*frame 180"
    )
    refused(RunError, rf"not finite: {told}; ", run.execute)
    assert run.frames == 256  # where the next checkpoint was due
    saved = run.run.checkpoints.latest()
    assert saved is not None and read_checkpoint(saved)["frames"] == 128
    if lent:
        return
    left = torch.load(tmp_path / "run" / BAD_BATCH, weights_only=True)
    assert left["batch"]["next"]["observation"].isnan().nonzero().tolist() == [[2, 5, 0]]


# -- skip and rollback ---------------------------------------------------------------------------------------------


def test_skip_leaves_out_and_counts(tmp_path: Path) -> None:
    run = training(tmp_path / "run", "guard.non_finite=skip", "total_frames=384")
    spoil_data(run, {3, 9})
    spoil_loss(run, {6, 7, 8})
    learned: list[int] = []
    plain = run.agent.learn
    vars(run.agent)["learn"] = lambda data, frames: (learned.append(frames), plain(data, frames))[1]
    run.execute()
    assert is_finite(run) and len(learned) == 10 and not {128, 320} & set(learned)
    last = next(row for row in reversed(logged(tmp_path / "run")) if row["guard/dropped_batches"])
    assert (float(last["guard/dropped_batches"]), float(last["guard/refused_steps"])) == (2, 3)
    assert all(row["train/return"] != "nan" for row in logged(tmp_path / "run"))


@pytest.mark.parametrize(
    ("way", "limit", "spoiled", "end", "message"),
    [
        # three in a row are put up with
        ("skip", 3, {0, 1, 2, 4, 5, 6, 7}, 8, r"so were the 3 batches before \(guard.limit\)"),
        ("rollback", 2, {1, 3, 6}, 7, r"the agent has gone back 2 times \(guard.limit\)"),
    ],
)
def test_both_have_a_limit(way: str, limit: int, spoiled: set[int], end: int, message: str, tmp_path: Path) -> None:
    run = training(tmp_path / "run", f"guard.non_finite={way}", f"guard.limit={limit}")
    spoil_data(run, spoiled)
    refused(RunError, message, run.execute)
    assert run.frames == end * 32


@pytest.mark.slow
def test_rollback_goes_back_to_the_last_log_line(tmp_path: Path) -> None:
    run = training(tmp_path / "run", "guard.non_finite=rollback")
    spoil_loss(run, {4 * 4})  # in the fifth batch; the last log line came after the fourth
    seen: dict[int, Any] = {}
    plain = run.agent.learn

    def learn(data: Any, frames: int) -> Any:
        seen[frames] = [parameter.detach().clone() for parameter in run.agent.parameters()]
        return plain(data, frames)

    vars(run.agent)["learn"] = learn
    run.execute()
    assert all(torch.equal(one, other) for one, other in zip(seen[6 * 32], seen[5 * 32]))
    assert not all(torch.equal(one, other) for one, other in zip(seen[7 * 32], seen[6 * 32]))
    assert run.agent.frames == run.frames == 640 and is_finite(run)
    assert float(logged(tmp_path / "run")[-2]["guard/rollbacks"]) == 1


def test_after_a_rollback_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path) -> None:
    ends = []
    for name in ("whole", "parts"):
        rolls, until = ["guard.non_finite=rollback", "total_frames=448"], ["until=256"] if name == "parts" else []
        run = training(tmp_path / name, *rolls, *until, base=EXACT)
        spoil_data(run, {3, 9, 10})
        run.execute()
        if name == "parts":
            run = training(tmp_path / name, *rolls, f"resume={tmp_path / name}", base=EXACT)
            run.restore()
            spoil_data(run, {1, 2})
            run.execute()
        ends.append([parameter.detach().clone() for parameter in run.agent.parameters()])
        assert float(logged(tmp_path / name)[-2]["guard/rollbacks"]) == 3
    assert all(map(torch.equal, *ends))


# -- the optimiser ---------------------------------------------------------------------------------------------------


def factor(parameter: nn.Parameter, factors: list[float]) -> Any:
    left = iter(factors)
    return lambda part: (next(left) * parameter.sum() * part["x"].mean(), {})


@pytest.mark.parametrize("max_grad_norm", [None, 1.0])
@pytest.mark.parametrize("kind", ["adam", "rmsprop"])
@pytest.mark.parametrize("on_gpu", [False, True])
def test_a_step_that_is_not_finite_changes_nothing(kind: Any, max_grad_norm: float | None, on_gpu: bool) -> None:
    """``on_gpu`` selects the path that does not wait for the device, which also runs on a CPU."""
    pair = [nn.Parameter(torch.ones(3)) for _ in range(2)]
    whole, spoiled = (Optimizer([[one]], 0.1, max_grad_norm, kind=kind) for one in pair)
    if on_gpu:
        spoiled._device = "cuda"
    batch = TensorDict({"x": torch.ones(4)}, [4])
    losses = factor(pair[0], [1.0, 2.0, 3.0]), factor(pair[1], [torch.nan, 1.0, torch.inf, 2.0, torch.nan, 3.0])
    for _ in range(3):
        whole.minimize(losses[0], batch)
    for step in range(6):
        before = pair[1].detach().clone()
        spoiled.minimize(losses[1], batch)
        assert torch.equal(pair[1].detach(), before) == (step % 2 == 0)
    assert float(spoiled.refused) == 3 and float(whole.refused) == 0
    if kind == "adam" or not on_gpu:  # RMSprop's mean square goes on without gradients
        assert torch.equal(*(one.detach() for one in pair))


def test_overflows_of_float16_are_none() -> None:
    parameter = nn.Parameter(torch.ones(3))
    optimizer = Optimizer([[parameter]], 0.1, max_grad_norm=1.0, precision="float16")
    batch = TensorDict({"x": torch.ones(4)}, [4])
    loss = factor(parameter, [1e38, 1.0, torch.nan])
    optimizer.minimize(loss, batch)
    optimizer.minimize(loss, batch)
    assert float(optimizer.refused) == 0
    optimizer.minimize(loss, batch)
    assert float(optimizer.refused) == 1


# -- Evaluations with non-finite numbers are reported; they end no run, and are never the best -----------------------


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


def evaluated(folder: Path) -> list[dict[str, str]]:
    return [row for row in logged(folder) if row.get("eval/non_finite")]


@exhaustive("reaction", ["error", "skip"])
def test_a_run_goes_on_and_can_be_resumed(
    reaction: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], rlstack_command: Command
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
    assert [float(row["eval/non_finite"]) for row in evaluated(folder)] == [1, 1]
    assert math.isnan(score(folder, ObjectiveConfig()))
    train({**options, "resume": str(folder), "total_frames": 96})
    assert [int(row["frames"]) for row in evaluated(folder)] == [32, 64, 96]
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
