"""Commands as functions: their results, the arguments of callbacks, and no other changes of the process."""

from __future__ import annotations

import inspect
import json
import os
import random
import re
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir, version
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from torch.distributions import Categorical

import rlstack
from rlstack.agents.ppo import PPOConfig
from rlstack.config import build, conf_dir, to_plain
from rlstack.config.options import EncoderConfig
from rlstack.config.overrides import assign_again, readable
from rlstack.help import COMMANDS
from rlstack.training.hooks import Hook
from rlstack.training.loggers import read_metrics
from rlstack.training.run import TrainedRun
from tests.conftest import REPO
from tests.exhaustive import exhaustive
from tests.refusals import refused
from tests.small_run import CARTPOLE_RUN, composed, python


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    return rlstack.train(*CARTPOLE_RUN, run_dir=tmp_path_factory.mktemp("runs") / "run", quiet=True)


def test_a_script_may_use_the_run_of_its_own_network_again(tmp_path: Path) -> None:
    network = "agent.network=tests.agents.own_network:Net"
    own = rlstack.train(*CARTPOLE_RUN, network, run_dir=tmp_path / "own", quiet=True)
    assert type(own.load().agent.actor.network).__name__ == "Net"
    for run in (own, str(own.path)):
        found = rlstack.evaluate(run, episodes=2, plots=False, video=False, quiet=True)
        assert found.episodes["length"].numel() == 2


# -- training ------------------------------------------------------------------------------------------------------


def test_a_run_is_what_the_command_leaves(run: TrainedRun) -> None:
    assert run.metrics == read_metrics(run.path / "metrics.csv")
    newest = json.loads((run.path / "evaluations" / "000000000128.json").read_text())
    assert run.evaluation.summary() == newest["summary"] and run.score == newest["summary"]["eval/return"]
    assert run.load("best").frames in (64, 128)


def test_callbacks_and_hooks_see_frames_metrics_and_agent() -> None:
    class Ends(Hook):
        def on_end(self, training: Any) -> None:
            ended.append(training.frames)

    ended: list[int] = []
    batches: list[tuple[int, dict[str, float], Any]] = []
    evaluations: list[tuple[int, dict[str, float], Any]] = []
    rlstack.train(
        *CARTPOLE_RUN,
        on_batch=lambda *seen: batches.append(seen),
        on_evaluation=lambda *seen: evaluations.append(seen),
        hooks=[Ends()],
    )
    assert ended == [128]
    assert [frames for frames, _, _ in batches] == [32, 64, 96, 128]
    assert [frames for frames, _, _ in evaluations] == [64, 128]
    _, metrics, agent = batches[-1]
    assert all(type(value) is float for value in metrics.values()) and {"loss/policy", "train/return"} <= set(metrics)
    assert set(evaluations[0][1]) == {"eval/return", "eval/length"}
    assert agent.interface.choices == (2,) and evaluations[0][2] is agent


@exhaustive(("event", "last"), [("on_batch", 96), ("on_evaluation", 64)])
def test_a_callback_that_returns_false_ends_the_run_with_a_checkpoint(event: str, last: int) -> None:
    done = rlstack.train(*CARTPOLE_RUN, quiet=True, **{event: lambda frames, *_: frames < last})
    assert done.load().frames == last and done.metrics[-1]["frames"] == last
    assert rlstack.train(resume=done.path, quiet=True).load().frames == 128


@pytest.mark.parametrize("kind", [np.bool_, torch.tensor])
def test_false_of_numpy_or_torch_ends_the_run_too(kind: Any) -> None:
    done = rlstack.train(*CARTPOLE_RUN, quiet=True, on_evaluation=lambda frames, *_: kind(frames < 64))
    assert done.load().frames == 64


def test_what_a_callback_raises_is_raised() -> None:
    def fail(*_: Any) -> None:
        raise LookupError("mine")

    refused(LookupError, "mine", rlstack.train, *CARTPOLE_RUN, on_batch=fail, quiet=True)


# -- evaluating ----------------------------------------------------------------------------------------------------


def test_an_agent_is_judged_alike_in_whatever_form_it_is_given(run: TrainedRun) -> None:
    loaded = run.load()
    forms = [str(run.path), run, loaded, loaded.agent, loaded.agent.policy(explore=False)]
    short: Any = ("env.max_steps=60",)
    keys: Any = {"episodes": 3, "plots": False, "video": False, "quiet": True}
    results = [rlstack.evaluate(form, "cartpole", *short, **keys) for form in forms]
    assert all(torch.equal(result.episodes["return"], results[0].episodes["return"]) for result in results)
    own = rlstack.evaluate(loaded, None, *short, **keys)  # in its own world
    assert own.summary() == results[0].summary()
    exploring = rlstack.evaluate(loaded.agent, "cartpole", *short, policy="explore", **keys)
    assert not torch.equal(exploring.episodes["return"], results[0].episodes["return"])


def test_an_agent_from_elsewhere_is_named_as_a_checkpoint(tmp_path: Path) -> None:
    source = "tests.small_run:still"
    (tmp_path / "own").mkdir()
    keys = {"env": "cartpole", "episodes": 2, "plots": False, "video": False, "quiet": True}
    as_agent = rlstack.evaluate(agent="legacy", **{"agent.kind": "callable", "agent.path": source}, **keys)
    assert rlstack.evaluate(checkpoint=f"callable:{source}", **keys).summary() == as_agent.summary()
    with pytest.raises(rlstack.ConfigError, match=r"^agent: .*'sb33:x': kind|^'sb33:x': kind: no option 'sb33', did"):
        rlstack.evaluate(checkpoint="sb33:x", **keys)


@pytest.mark.parametrize("env", [gymnasium.make("CartPole-v1"), "cartpole", None], ids=str)
def test_what_is_no_world_is_told_in_one_line(env: Any) -> None:
    for needs_a_world in (rlstack.make_agent, rlstack.load_policy):
        refused(rlstack.ConfigError, r"^env: expected a world as TorchRL has them, such as", needs_a_world, "ppo", env)


def test_a_function_of_observations_is_judged() -> None:
    """A pole that is pushed in one direction only falls within twelve steps."""
    evaluation = rlstack.evaluate(lambda observation: np.zeros(len(observation), int), "cartpole", episodes=6)
    assert bool((evaluation.episodes["return"] < 12).all()) and Path("runs").exists() is False


def test_what_is_printed_is_what_is_returned(run: TrainedRun, capsys: pytest.CaptureFixture[str]) -> None:
    evaluation = rlstack.evaluate(run.load(), episodes=2)
    assert capsys.readouterr().out == f"PPO (greedy) in cartpole, seed 1000\n{evaluation}\n"
    rlstack.evaluate(run.load(), episodes=2, quiet=True)
    assert capsys.readouterr().out == ""


def test_of_what_acts_itself_files_are_written_where_it_is_said(run: TrainedRun, tmp_path: Path) -> None:
    before = rlstack.evaluate(
        run.load(), "plots=false", "video=false", episodes=2, output=tmp_path / "judged", quiet=True
    )
    assert json.loads((tmp_path / "judged" / "evaluation.json").read_text())["summary"] == before.summary()


@pytest.mark.parametrize(
    ("acting", "keys", "message"),
    [
        (lambda observation: observation, {"env": "cartpole"}, "fractions as actions, the env takes indices below 2"),
        (lambda observation: observation, {}, "env: missing, which world to act in"),
        (3, {"env": "cartpole"}, "int: neither a run nor a policy"),
        ("nowhere", {}, "nowhere does not exist"),
        ("sb3:nowhere.zip", {"env": "cartpole"}, "nowhere.zip"),
        (lambda observation: observation, {"env": "cartpole", "checkpoint": "x"}, "checkpoint, agent: the agent is"),
        (torch.nn.Linear(3, 2), {"env": "cartpole"}, "Linear: fails on a vector of shape (4,)"),
    ],
)
def test_what_cannot_act_is_told_in_one_line(acting: Any, keys: dict[str, Any], message: str) -> None:
    assert message in refused(rlstack.ConfigError, ".", rlstack.evaluate, acting, quiet=True, **keys)


def test_a_policy_of_torchrl_acts() -> None:
    network = TensorDictModule(torch.nn.Linear(4, 2), ["observation"], ["logits"])
    head = ProbabilisticTensorDictModule(["logits"], ["action"], distribution_class=Categorical)
    policy = ProbabilisticTensorDictSequential(network, head)
    with torch.no_grad():
        network.module.weight.zero_()
        network.module.bias.copy_(torch.tensor([0.0, 1.0]))
    # The greedy policy always pushes to the right; with sampled actions it does in 73 of 100 steps.
    assert rlstack.evaluate(policy, "cartpole", episodes=20, quiet=True).summary()["eval/return"] < 12
    drawn = rlstack.evaluate(policy, "cartpole", episodes=20, policy="explore", quiet=True)
    assert drawn.summary()["eval/return"] > 12
    with pytest.raises(rlstack.ConfigError, match="writes logits, the world takes 'action'"):
        rlstack.evaluate(network, "cartpole", quiet=True)


# -- every command --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_a_function(command: str) -> None:
    assert command in rlstack.__all__ and callable(getattr(rlstack, command))
    assert {"words", "keys", "quiet"} <= set(inspect.signature(getattr(rlstack, command)).parameters)


def test_a_run_stands_for_its_folder(run: TrainedRun) -> None:
    assert rlstack.load(run).path == run.load().path
    for which in (run, run.path, str(run.path)):
        assert [row["score"] for row in rlstack.report(which, page=False, quiet=True)] == [run.score]
        refused(rlstack.ConfigError, "a run is given twice", rlstack.report, which, run, quiet=True)
    assert rlstack.evaluate(checkpoint=run, episodes=2, plots=False, video=False, quiet=True).summary()
    refused(rlstack.ConfigError, "expected words as on the command line, or paths, got int: 3", rlstack.report, run, 3)  # type: ignore[arg-type]


def test_the_worlds_of_a_run_have_the_options_that_a_script_gives(run: TrainedRun) -> None:
    env = run.load().make_env(3, max_steps=2)
    ends = env.rollout(4, break_when_any_done=False)["next", "truncated"]
    assert ends[..., 0].tolist() == 3 * [[False, True, False, True]]
    refused(rlstack.ConfigError, "^env.max_step: unknown key, did you mean 'max_s", run.load().make_env, max_step=2)


def test_what_commands_print_they_return(run: TrainedRun, capsys: pytest.CaptureFixture[str]) -> None:
    episodes = rlstack.watch(checkpoint=run.path, show="numbers", episodes=2)
    assert len(episodes) == 2 and capsys.readouterr().out.splitlines()[-2:] == episodes
    page = rlstack.report(str(run.path), output=Path.cwd() / "page.html")
    assert page.is_file() and str(page) in capsys.readouterr().out
    assert [row["score"] for row in rlstack.report(str(run.path), json=True, quiet=True)] == [run.score]


# -- keys and mistakes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "keys", "message"),
    [
        ([], {"agent": "ppoo"}, "agent: no option 'ppoo', did you mean 'ppo'?"),
        ([], {"sed": 1}, "sed: unknown key, did you mean 'seed'?"),
        ([], {"agent.lrr": 1}, "agent.lrr: unknown key, did you mean"),
        (["agent.lr"], {}, "agent.lr: expected key=value"),
        ([], {"env": lambda: None}, "env: <lambda> has no name that a file could hold; define it outside"),
        ([], {"env": object()}, "env: expected a class or what a configuration file can hold, got object"),
        ([], {"agent": "bc", "total_frames": 100}, "agent: it only clones recorded data; set data="),
        ([], {"agent": "dqn", "total_frames": 500}, "agent.learning_starts: 1,000 frames, but the run ends at total_"),
        ([], {"seed": 10**400}, "seed: 100000000000000000...0000000000000000000 is outside"),
        ([], {"eval": {"evry": 3}}, "eval.evry: unknown key, did you mean 'every'?"),
        (["-m"], {"seed": 1}, "-m: a flag of the command line; in Python, several runs are a loop"),
        (["--config-dir=none"], {}, "--config-dir: none is not a folder"),
    ],
)
def test_mistakes_are_those_of_the_command_line(words: list[str], keys: dict[str, Any], message: str) -> None:
    with pytest.raises(rlstack.ConfigError) as error:
        rlstack.train(*words, quiet=True, **{"agent": "ppo", "env": "cartpole", **keys})
    assert str(error.value).startswith(message) and "\n" not in str(error.value)
    assert list(Path.cwd().iterdir()) == []


VALUES: list[Any] = [
    *(None, True, 3, -2.5, 1e-5, "ppo", "true", "3", "it's, {odd} [text]=\\", "", " ", "runs/a=b", "a:b", "1e-3"),
    *("runs/Zürich", r"\d+", r"a\'b", [1, [2.5, "x"]], {"kind": "cosine", "start": 1e-3, "flags": [True, None]}),
    {"a": {}},
]
OTHERS: dict[Any, Any] = {
    **{np.float32(0.5): 0.5, np.int64(3): 3, torch.tensor([1, 2]): [1, 2], (1, 2): [1, 2], Path("a b"): "a b"},
    **{torch.device("cpu"): "cpu", TrainedRun: "rlstack.training.run:TrainedRun"},
}
"""Values of other types, and what a file can hold of them."""


def test_values_of_python_arrive_as_what_a_file_can_hold() -> None:
    """By themselves, as options of an agent, and within a mapping."""
    given, kept = [*VALUES, *OTHERS], [*VALUES, *OTHERS.values()]
    options = sorted(composed("agent=ppo")["agent"])[: len(given)]
    keys = {"agent": "ppo", "eval": {"every": given}, **{f"agent.{key}": value for key, value in zip(options, given)}}
    config = rlstack.train.command.call(to_plain, [], keys)
    assert [config["agent"][key] for key in options] == config["eval"]["every"] == kept
    assert config["eval"]["episodes"] == 20


def test_letters_beyond_ascii_need_no_quotes_on_a_command_line() -> None:
    assert rlstack.train.command.call(to_plain, ["run_dir=runs/Zürich"], {})["run_dir"] == "runs/Zürich"
    with pytest.raises(rlstack.ConfigError, match=r"""takes two pairs of quotes: "run_dir='runs/Zürich, \(b\)'"$"""):
        rlstack.train("run_dir=runs/Zürich, (b)")


def test_a_mapping_replaces_the_one_that_was_there() -> None:
    lr = {"kind": "constant", "start": 0.001}  # without the end of conf/agent/ppo.yaml
    assert rlstack.train.command.call(to_plain, ["agent=ppo"], {"agent.lr": lr})["agent"]["lr"] == lr


@pytest.mark.parametrize("typed", [False, True])
def test_keys_of_a_mapping_may_be_numbers_such_as_those_of_the_parts_of_a_tuple(typed: bool) -> None:
    words = ["agent=ppo", *(["agent.encoders={0: {kind: mlp, hidden: [8]}, 12: {kind: skip}}"] if typed else [])]
    keys = {} if typed else {"agent.encoders": {"0": {"kind": "mlp", "hidden": [8]}, "12": {"kind": "skip"}}}
    config = build(PPOConfig, rlstack.train.command.call(to_plain, words, keys)["agent"], "agent")
    assert config.encoders == {"0": EncoderConfig("mlp", hidden=[8]), "12": EncoderConfig("skip")}


@pytest.mark.parametrize(
    ("later", "expected"),
    [
        ("agent.lr.end=1e-4", {"kind": "linear", "start": 0.002, "end": 1e-4}),
        ("agent.lr=5e-4", 5e-4),
        ("agent.lr={kind: constant, start: 0.5}", {"kind": "constant", "start": 0.5}),
    ],
)
def test_what_comes_after_a_mapping_changes_it(later: str, expected: Any) -> None:
    words = [*readable("agent.lr={kind: linear, start: 0.002, end: 0.001}"), *readable(later)]
    kept = [word for word in words if not word.endswith("=null")]  # as a sweeper keeps them
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        whole, merged = (compose("train", ["agent=ppo", "env=cartpole", *given]) for given in (words, kept))
    assign_again(merged, kept)
    assert to_plain(whole)["agent"]["lr"] == to_plain(merged)["agent"]["lr"] == expected


def test_other_keys_than_those_there_may_be_in_a_mapping_but_not_beside_it() -> None:
    refused(rlstack.ConfigError, r"^env.nothing: unknown key", rlstack.train, *CARTPOLE_RUN, "env.nothing={a: 1}")


def test_groups_of_ones_own_are_found(tmp_path: Path) -> None:
    (tmp_path / "mine" / "agent").mkdir(parents=True)
    (tmp_path / "mine" / "agent" / "small.yaml").write_text("defaults: [ppo, _self_]\nname: small\nhidden: [3]\n")
    config = rlstack.train.command.call(to_plain, ["--config-dir=mine"], {"agent": "small"})
    assert config["agent"]["hidden"] == [3]


# -- the rest of the process ---------------------------------------------------------------------------------------


@pytest.fixture
def hydra_application() -> Iterator[None]:
    """Simulates a job in a sweep of another Hydra application with another version."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(conf_dir()), version_base="1.2"):
        cfg = compose("train", ["hydra.mode=MULTIRUN"], return_hydra_config=True)
        HydraConfig.instance().set_config(cfg)
        yield
        HydraConfig.instance().cfg = None


def test_nothing_else_of_the_process_changes(hydra_application: None, run: TrainedRun) -> None:
    def state() -> list[Any]:
        numpy = np.random.get_state()[1].tolist()  # type: ignore[union-attr]
        here = [os.getcwd(), list(sys.argv), list(sys.orig_argv), dict(os.environ), list(sys.path)]
        torchs = [torch.get_num_threads(), torch.is_grad_enabled(), torch.get_rng_state().tolist()]
        handlers = [signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)]
        hydra = [GlobalHydra.instance().hydra, HydraConfig.get().mode, version.getbase()]
        drawn = [random.getstate(), numpy]
        return [*here, *handlers, *hydra, *torchs, *drawn, sys.stdout, threading.active_count()]

    before, arguments = state(), sys.argv
    rlstack.evaluate(run, episodes=2, video=False, seed=3)
    rlstack.train(*CARTPOLE_RUN, total_frames=32, seed=5, quiet=True)
    with pytest.raises(rlstack.ConfigError):
        rlstack.train(agent="ppoo")
    assert state() == before and sys.argv is arguments


def test_commands_use_one_thread_and_leave_the_number_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def count(*_: Any) -> None:
        found.append(torch.get_num_threads())

    class Pushes(torch.nn.Module):
        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            count()
            return torch.ones(len(observation), dtype=torch.int64)

    found: list[int] = []
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    torch.set_num_threads(2)
    try:
        words = [word for word in CARTPOLE_RUN if word != "threads=1"]
        rlstack.train(*words, on_evaluation=count, quiet=True)
        policy = TensorDictModule(Pushes(), ["observation"], ["action"])
        rlstack.evaluate(policy, "cartpole", episodes=1, quiet=True)
        assert set(found) == {1} and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_the_same_words_make_the_same_run_while_another_policy_is_judged(run: TrainedRun, tmp_path: Path) -> None:
    judged: list[float] = []
    command = json.loads((run.path / "environment.json").read_text())[0]["command"]
    assert command[:2] == ["-m", "rlstack.train"]

    def judge(frames: int, metrics: dict[str, float], agent: Any) -> None:
        evaluation = rlstack.evaluate(agent, "cartpole", "env.max_steps=20", episodes=2, seed=7, quiet=True)
        judged.append(evaluation.summary()["eval/return"] - metrics["eval/return"])

    looked = rlstack.train(*command[2:], f"run_dir={tmp_path / 'again'}", on_evaluation=judge, quiet=True)
    assert judged == [0.0, 0.0]
    assert [row.get("loss/policy") for row in looked.metrics] == [row.get("loss/policy") for row in run.metrics]


def test_it_works_outside_of_the_main_thread(run: TrainedRun) -> None:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(rlstack.evaluate(run.load(), episodes=1, quiet=True)))
    thread.start()
    thread.join()
    assert len(found[0].levels) == 1


def test_a_command_is_a_function_and_a_module_in_any_order_of_imports() -> None:
    code = """
import sys
for first in ("import rlstack; rlstack.train", "import rlstack.train", "from rlstack import train"):
    for name in [name for name in sys.modules if name.partition(".")[0] == "rlstack"]:
        del sys.modules[name]
    exec(first)
    import rlstack, rlstack.evaluate, inspect
    from rlstack.train import main
    assert callable(rlstack.train) and callable(rlstack.evaluate) and rlstack.train.main is main, first
    assert "on_batch" in inspect.signature(rlstack.train).parameters and "torch" not in sys.modules, first
"""
    python("-c", code).check_returncode()


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path) -> None:
    """Runs its cells in a process with the arguments of a notebook's kernel; the two trainings are shortened."""
    cells = json.loads((REPO / "experiments" / "quickstart.ipynb").read_text(encoding="utf-8"))["cells"]
    code = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    for long, short in (("total_frames=250_000", "total_frames=2048"), ("frames = 10_000", "frames = 1000")):
        assert code.count(long) == 1
        code = code.replace(long, short)
    (tmp_path / "cells.py").write_text(code)
    done = python("cells.py", "-f", "kernel.json", cwd=tmp_path, MPLBACKEND="Agg", OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].split()[:2] == ["level", "episodes"]
    assert re.match(r"\d+ episodes; the first ten returned \d+", done.stdout.splitlines()[-1])


def test_the_notebook_is_small_and_of_no_machine() -> None:
    text = (REPO / "experiments" / "quickstart.ipynb").read_text(encoding="utf-8")
    notebook = json.loads(text)
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    assert len(text) < 60_000 and text.count('"image/png"') == 1
    assert {output["output_type"] for output in outputs} == {"stream", "display_data"}
    assert not re.search(r"/(?:home|root|tmp|work|Users)/", text)
    try:
        import nbformat
    except ImportError:
        assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    else:
        nbformat.validate(notebook)


@pytest.mark.parametrize("words", [["curriculum=null"], []])
def test_nothing_may_be_chosen_in_place_of_an_experiments_curriculum(words: list[str]) -> None:
    config = rlstack.train.command.call(to_plain, ["experiment=echelon/bots", *words], {}, quiet=True)
    assert ("curriculum" in config) == (not words)
