"""Configurations from plain values, and how a command line ends."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from rlstack import envs
from rlstack.command import _parted
from rlstack.config import ConfigError, Interval, build, conf_dir, groups, load_group, to_plain
from rlstack.config.errors import OF_OTHERS, did_you_mean, exit_in_one_line, nearest, nearest_path, unknown_key
from rlstack.config.groups import compose_config
from rlstack.config.options import renewed
from tests.conftest import REPO
from tests.exhaustive import exhaustive
from tests.refusals import refused
from tests.small_run import python

Fraction = Annotated[float, Interval(low=0, high=1, open_high=True)]


@dataclass
class Optimizer:
    name: Literal["adam", "sgd"]
    betas: tuple[float, float] = (0.9, 0.999)


@dataclass
class Agent:
    lr: float
    gamma: Fraction
    batch_size: int = 256
    amsgrad: bool = False
    clip: Annotated[float | None, Interval(low=0, open_low=True)] = None
    hidden: tuple[int, ...] = (64, 64)
    optimizer: Optimizer | None = None
    extra: dict[str, float] = field(default_factory=dict)
    span: int | float | None = None
    schedule: float | Optimizer = 1.0

    def __post_init__(self) -> None:
        if self.batch_size == 13:
            raise ValueError("batch_size 13\nbrings bad luck")


VALID: dict[str, Any] = {"lr": 1e-3, "gamma": 0.99}


def test_builds_nested_values_of_the_declared_types() -> None:
    agent = build(
        Agent,
        {
            **VALID,
            "lr": 1,
            "batch_size": 1e3,
            "hidden": [32, 16.0],
            "optimizer": {"name": "sgd", "betas": [0, 0.5]},
            "extra": {"a": 2},
            "schedule": {"name": "adam"},
        },
        "agent",
    )
    assert (agent.lr, type(agent.lr)) == (1.0, float)
    assert (agent.batch_size, type(agent.batch_size)) == (1000, int)
    assert agent.hidden == (32, 16) and all(type(size) is int for size in agent.hidden)
    assert agent.optimizer == Optimizer("sgd", (0.0, 0.5))
    assert agent.extra == {"a": 2.0} and type(agent.extra["a"]) is float
    assert agent.schedule == Optimizer("adam")


@pytest.mark.parametrize("value", [3, 3.0, None])
def test_a_union_keeps_an_exact_type(value: Any) -> None:
    span = build(Agent, {**VALID, "span": value}).span
    assert span == value and type(span) is type(value)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"lrr": 1}, "agent.lrr: 'lr' amsgrad, gamma,"),
        ({"lr": "abc"}, "agent.lr: number 'abc' (str)"),
        ({"lr": True}, "agent.lr: number True (bool)"),
        ({"lr": None}, "agent.lr: number null"),
        ({"lr": "???"}, "agent.lr: missing number"),
        ({"gamma": 1.5}, "agent.gamma: 1.5 [0, 1)"),
        ({"gamma": 1}, "agent.gamma: 1.0 [0, 1)"),
        ({"gamma": math.nan}, "agent.gamma: nan [0, 1)"),
        ({"clip": 0}, "agent.clip: 0.0 (0, inf)"),
        ({"clip": math.inf}, "agent.clip: inf (0, inf)"),
        ({"clip": "x"}, "agent.clip: number null 'x' (str)"),
        ({"batch_size": 2.5}, "agent.batch_size: whole 2.5 (float)"),
        ({"batch_size": math.inf}, "agent.batch_size: whole inf (float)"),
        ({"clip": 10**400}, "agent.clip: 1000 too large"),
        ({"batch_size": True}, "agent.batch_size: whole True (bool)"),
        ({"batch_size": 13}, "agent: batch_size 13 luck"),
        ({"amsgrad": 1}, "agent.amsgrad: true false 1 (int)"),
        ({"hidden": "64"}, "agent.hidden: list '64' (str)"),
        ({"hidden": [64, "a"]}, "agent.hidden[1]: whole 'a' (str)"),
        ({"extra": {"a": "b"}}, "agent.extra.a: number 'b' (str)"),
        ({"extra": {1.5: 2}}, "key agent.extra: text 1.5 (float)"),
        ({"optimizer": {"name": "adm"}}, "agent.optimizer.name: 'adam'? 'sgd', 'adm' (str)"),
        ({"optimizer": {}}, "agent.optimizer.name: missing 'adam', 'sgd'"),
        ({"optimizer": {"name": "adam", "betas": [1]}}, "agent.optimizer.betas: 2 1"),
        ({"schedule": {"nam": "adam"}}, "agent.schedule.nam: 'name'? betas, name"),
        ({"schedule": "x"}, "agent.schedule: number mapping name: betas: 'x' (str)"),
    ],
)
def test_every_mistake_is_one_line_that_names_key_value_and_what_is_allowed(
    change: Mapping[str, Any], named: str
) -> None:
    message = refused(ConfigError, ".", build, Agent, {**VALID, **change}, "agent")
    assert not [part for part in named.split() if part.rstrip(",") not in message], message


def test_what_is_missing_or_no_mapping() -> None:
    refused(ConfigError, r"^agent\.lr: missing, expected a number$", build, Agent, {"gamma": 0.5}, "agent")
    refused(ConfigError, r"^agent: expected a mapping, got \[1\] \(list\)$", build, Agent, [1], "agent")  # type: ignore[arg-type]


def test_literal_tells_true_from_one() -> None:
    @dataclass
    class Mode:
        level: Literal[1, "auto"]

    assert build(Mode, {"level": 1}).level == 1
    refused(ConfigError, "level: expected one of 1, 'auto', got True", build, Mode, {"level": True})


def test_an_unsupported_field_type_is_a_bug_and_not_the_users() -> None:
    @dataclass
    class Odd:
        value: set[int]

    refused(TypeError, "set", build, Odd, {"value": [1]})


def test_hydra_nodes_resolve_their_interpolations() -> None:
    root = OmegaConf.create({"discount": 0.5, "agent": {"lr": 1e-3, "gamma": "${discount}"}})
    assert build(Agent, root.agent, "agent").gamma == 0.5
    broken = OmegaConf.create({"agent": {"lr": 1e-3, "gamma": "${nope}"}})
    refused(ConfigError, r"^agent\.gamma: Interpolation key 'nope' not found$", build, Agent, broken.agent, "agent")


def test_to_plain_gives_what_yaml_can_hold() -> None:
    agent = build(Agent, {**VALID, "optimizer": {"name": "sgd"}})
    plain = to_plain({"agent": agent, "path": Path("a/b"), "node": OmegaConf.create({"x": [1], "y": "${x}"})})
    assert plain["agent"]["optimizer"] == {"name": "sgd", "betas": [0.9, 0.999]}
    assert plain["agent"]["hidden"] == [64, 64]
    assert (plain["path"], plain["node"]) == ("a/b", {"x": [1], "y": [1]})
    written = OmegaConf.to_yaml(OmegaConf.create(plain["agent"]))
    assert build(Agent, OmegaConf.to_container(OmegaConf.create(written))) == agent  # type: ignore[arg-type]
    refused(ConfigError, "a configuration file can hold, got object", to_plain, {"x": object()})


@pytest.mark.parametrize(
    ("interval", "text", "inside", "outside"),
    [
        (Interval(), "(-inf, inf)", [0.0, -1e30], [math.inf, -math.inf, math.nan]),
        (Interval(low=0, high=1), "[0, 1]", [0, 1, 0.5], [-1e-9, 1.1]),
        (Interval(low=0, high=1, open_low=True, open_high=True), "(0, 1)", [0.5], [0, 1]),
        (Interval(high=2), "(-inf, 2]", [2, -5], [2.1, -math.inf]),
    ],
)
def test_interval(interval: Interval, text: str, inside: list[float], outside: list[float]) -> None:
    assert str(interval) == text
    assert all(value in interval for value in inside)
    assert not any(value in interval for value in outside)


def test_former_options_of_stored_runs() -> None:
    agent = {"name": "ppo", "algorithm": "ppo"}
    assert renewed({"seed": 1, "agent": {**agent, "parameters": "shared"}}) == {"seed": 1, "agent": agent}
    assert renewed({"agent": 3}) == {"agent": 3}
    refused(ConfigError, r"parameters=split.*0\.1\.0", renewed, {"agent": {**agent, "parameters": "split"}})


# -- The command line as a user runs it: in a separate process, in an empty working directory ------------------------


APP = """
import pathlib, sys
from rlstack import command, help
from rlstack.config import ConfigError, groups
groups.conf_dir = command.conf_dir = help.conf_dir = lambda: pathlib.Path(__file__).parent / "conf"
def run(cfg):
    print("ran", cfg.agent.lr, cfg.seed)
    if cfg.seed == 13:
        raise ConfigError("agent.lr: not\\ntoday")
    if cfg.seed == 14:
        raise ZeroDivisionError("a bug")
    if cfg.seed == 15:
        raise KeyboardInterrupt
    if cfg.seed == 16:
        cfg.agent.entropy
main = command.HydraCommand("train").line(run)
if __name__ == "__main__":
    main()
"""


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("app")
    (root / "conf" / "agent").mkdir(parents=True)
    (root / "app.py").write_text(APP)
    (root / "conf" / "hydra_quiet.yaml").write_text((REPO / "conf" / "hydra_quiet.yaml").read_text())
    (root / "conf" / "train.yaml").write_text("defaults: [hydra_quiet, {agent: sac}, _self_]\nseed: 1\n")
    (root / "conf" / "agent" / "sac.yaml").write_text("lr: 1e-3\ngamma: 0.9\n")
    (root / "conf" / "agent" / "td3.yaml").write_text("lr: [1\n")
    (root / "more" / "agent").mkdir(parents=True)
    (root / "more" / "agent" / "mine.yaml").write_text("lr: 5.0\n")
    return root


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    (tmp_path / "cwd").mkdir()
    return tmp_path / "cwd"


BUG = "ZeroDivisionError: a bug"


@exhaustive(
    ("arguments", "status", "output", "errors"),
    [
        (["seed=2"], 0, "ran 0.001 2\n", ""),
        (["-m", "seed=1,2"], 0, "ran 0.001 1\nran 0.001 2\n", ""),
        (["--config-dir", "MORE", "agent=mine"], 0, "ran 5.0 1\n", ""),
        (["--cfg", "job"], 0, "agent:\n  lr: 0.001\n  gamma: 0.9\nseed: 1\n", ""),
        (["--help", "--config-dir", "MORE"], 0, "mine, sac, td3", ""),
        (["agent=sacc"], 2, "", "agent: no option 'sacc', did you mean 'sac'? available: sac, td3"),
        (["-m", "nope=1,2"], 2, "", "nope: unknown key, allowed: agent, seed"),
        (["seed=[1"], 2, "", "seed=[1: cannot read this override, no viable alternative at input '[1'"),
        (["seed=13"], 2, "ran", "agent.lr: not today"),
        (["seed=16"], 2, "ran", "agent.entropy: missing from the configuration, which has: gamma, lr"),
        (["--config-dir", "/nope"], 2, "", "Additional config directory '/nope' not found"),
        (["agent=td3"], 2, "", "td3.yaml:"),
        (["-m", "seed=13,2"], 2, "ran 0.001 13\nran 0.001 2\n", "agent.lr: not today"),
        (["-m", "seed=14"], 1, "ran", BUG),
        (["-m", "seed=15,2"], 130, "ran 0.001 15\n", "interrupted"),
        (["seed=14"], 1, "ran", BUG),
        (["seed=15"], 130, "ran", "interrupted"),
    ],
)
def test_what_a_command_line_ends_with(
    app: Path, cwd: Path, arguments: list[str], status: int, output: str, errors: str
) -> None:
    """A user's mistake is one line and status 2; a bug keeps its traceback; nothing is left in the folder."""
    words = [str(app / "more") if word == "MORE" else word for word in arguments]
    done = python(str(app / "app.py"), *words, cwd=cwd, RLSTACK_FULL_ERROR="1" if "seed=13" in words else "")
    assert done.returncode == status and output in done.stdout and list(cwd.iterdir()) == []
    last = done.stderr.splitlines()[-1] if done.stderr else ""
    assert errors in last and last.startswith("error: ") == (status == 2)
    assert ("Traceback" in done.stderr) == (errors == BUG or "seed=13" in words)  # asked for by RLSTACK_FULL_ERROR
    if "-m" not in words and "Traceback" not in done.stderr:
        assert done.stderr.count("\n") == (status > 0)


@exhaustive(
    ("arguments", "unbuffered", "status"),
    [(["seed=2"], "1", 141), (["seed=2"], "", 0), (["--help"], "", 0), (["seed=13"], "", 2)],
    quick=0,
)
def test_it_is_no_fault_that_the_reader_of_the_output_has_left(
    app: Path, cwd: Path, arguments: list[str], unbuffered: str, status: int
) -> None:
    """The reader closes early, like ``head``; errors, which go to stderr, are still printed."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, str(app / "app.py"), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(REPO), "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(command, cwd=cwd, env=environment, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (status, "error: agent.lr: not today\n" if status == 2 else "")


def test_another_broken_pipe_is_a_bug() -> None:
    with pytest.raises(BrokenPipeError), exit_in_one_line():
        raise BrokenPipeError("that of a worker")


def test_flags_may_stand_anywhere_and_keep_their_values() -> None:
    given = ["seed=1", "--config-dir", "mine", "-m", "runs/x", "--config-dir=more", "--cfg", "job", "--info", "lr=2"]
    flags = ["--config-dir", "mine", "-m", "--config-dir=more", "--cfg", "job", "--info"]
    assert _parted(given) == (flags, ["seed=1", "runs/x", "lr=2"])


# -- Groups of options, read as Hydra composes them, and what is suggested for unknown names -------------------------


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "ddpg.yaml").write_text("lr: 1e-3\nfrac: 1e6\nnet: {hidden: [64, 64], act: relu}\n")
    (tmp_path / "agent" / "td3.yaml").write_text(
        "defaults: [ddpg, _self_]\nlr: 3e-4\nnet: {act: elu}\ndouble: ${agent.lr}\n"
    )
    (tmp_path / "agent" / "broken.yaml").write_text("a: [1\nb: 2\n")
    monkeypatch.setattr(groups, "conf_dir", lambda: tmp_path)
    return tmp_path


def test_reads_plain_values(conf: Path) -> None:
    agent = load_group("agent", "ddpg")
    assert agent == {"lr": 0.001, "frac": 1e6, "net": {"hidden": [64, 64], "act": "relu"}}
    assert type(agent) is dict and type(agent["net"]["hidden"]) is list
    assert type(agent["lr"]) is type(agent["frac"]) is float


def test_inherits_and_merges_overrides(conf: Path) -> None:
    agent = load_group("agent", "td3", {"lr": 1.0, "net": {"hidden": [8]}, "frac": {"start": 1, "end": 0}})
    assert agent == {
        "lr": 1.0,
        "frac": {"start": 1, "end": 0},
        "net": {"hidden": [8], "act": "elu"},
        "double": 1.0,  # interpolations see the overrides
    }


def test_what_is_read_belongs_to_whoever_asked(conf: Path) -> None:
    load_group("agent", "td3")["net"]["act"] = "tanh"
    assert load_group("agent", "td3")["net"]["act"] == "elu"


def test_files_of_ones_own_come_first_and_say_what_they_build_on(conf: Path, tmp_path: Path) -> None:
    (tmp_path / "mine" / "agent" / "more").mkdir(parents=True)
    (tmp_path / "mine" / "agent" / "ddpg.yaml").write_text("lr: 1.0\n")
    (tmp_path / "mine" / "agent" / "more" / "deep.yaml").write_text("defaults: [td3, _self_]\n")
    files = groups.option_files("agent", [tmp_path / "mine"])
    assert list(files) == ["broken", "ddpg", "td3", "more/deep"] and files["ddpg"].is_relative_to(tmp_path / "mine")
    assert [path.stem for path, _ in groups.inherited("more/deep", files)] == ["deep", "td3", "ddpg"]


@pytest.mark.parametrize(
    "name",
    [
        "arena",
        "cartpole",
        "echelon",
        "gymnasium",
        "marinenav",
        "mjlab",
        "pettingzoo",
        "playground",
        "rocket",
        "torchrl",
    ],
)
def test_the_yaml_of_a_world_has_every_option_of_its_constructor(name: str) -> None:
    """Each option can then be seen before the world is imported; options that the run sets are excluded."""
    of_some = {"observation_keep", "opponents"}  # for flat observations, and for worlds with two sides
    assert set(envs.options_of(name)) - {"device", "seed"} - of_some <= set(load_group("env", name))


def test_a_command_knows_its_groups() -> None:
    choices = {"agent": "acqn", "env": "marinenav", "collector": "default", "logger": "tensorboard"}
    assert groups.default_choices("train") == {**choices, "curriculum": None, "experiment": None}
    assert groups.default_choices("explain") == {}


def test_unknown_option_lists_what_exists(conf: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_group("agent", "dpg")
    assert str(caught.value) == "agent: no option 'dpg', did you mean 'ddpg'? available: broken, ddpg, td3"
    refused(ConfigError, "available: none", load_group, "nope", "x")


def test_broken_yaml_is_one_line(conf: Path) -> None:
    refused(ConfigError, r"broken\.yaml", load_group, "agent", "broken")


def test_a_group_can_be_read_while_hydra_is_in_use() -> None:
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        outer = GlobalHydra.instance().hydra
        assert load_group("agent", "acqn")["algorithm"] == "acqn"
        assert GlobalHydra.instance().hydra is outer


# -- Errors for misspelt names suggest the nearest name --------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "candidates", "expected"),
    [
        ("ppoo", ["ppo", "a2c"], ["ppo"]),
        ("PPO", ["ppo", "a2c"], ["ppo"]),
        ("lrr", ["lr_critic", "gamma", "lr_actor"], ["lr_actor", "lr_critic"]),
        ("nun_worlds", ["num_worlds", "num_cores"], ["num_worlds"]),
        ("nope", ["agent", "seed"], []),
        ("x", [], []),
    ],
)
def test_nearest(name: str, candidates: list[str], expected: list[str]) -> None:
    assert nearest(name, candidates) == expected


def test_what_is_unknown_is_told_with_the_nearest_and_all_others() -> None:
    assert did_you_mean(7, ["a"]) == ""
    assert unknown_key("agent.lrr", ["lr", "gamma"]) == "agent.lrr: unknown key, did you mean 'lr'? allowed: gamma, lr"
    assert "'agent.lr'" in unknown_key("lr", ["agent", "seed"], ["agent.lr", "env.lr"])


@pytest.mark.parametrize(
    ("theirs", "allowed", "ours"),
    [
        ("ent_coef", ["encoders", "entropy_coefficient", "epochs"], "'entropy_coefficient'"),
        ("learning_rate", ["lr_actor", "lr_critic", "learning_starts"], "'lr_actor' or 'lr_critic'"),
        ("n_steps", ["steps_per_batch", "epochs"], "'steps_per_batch'"),
        ("net_arch", ["hidden", "network"], "'hidden'"),
        ("batch_size", ["minibatch_size", "batch"], "'minibatch_size'"),
        ("ent_coef", ["encoders"], "'encoders'"),  # as before where there is no such option
    ],
)
def test_options_of_other_libraries_are_known(theirs: str, allowed: list[str], ours: str) -> None:
    assert f"did you mean {ours}? " in unknown_key(f"agent.{theirs}", allowed)


def test_names_of_other_libraries_stand_for_options_that_exist() -> None:
    groups = [to_plain(compose_config("train", words)) for words in (["agent=ppo"], ["agent=sac"], ["agent=td3"])]
    groups += [to_plain(compose_config("train", ["agent=dqn", f"env={env}"])) for env in ("cartpole", "gymnasium")]
    known = {key for config in groups for part in (config, config["agent"], config["env"]) for key in part}
    assert set(OF_OTHERS) <= known


def test_paths(tmp_path: Path) -> None:
    right = tmp_path / "runs" / "ppo_arena_seed0_20260101"
    right.mkdir(parents=True)
    assert nearest_path(tmp_path / "runs" / "ppo_arna_seed0") == f", did you mean {str(right)!r}?"
    assert nearest_path(tmp_path / "rnus" / right.name) == f", did you mean {str(right)!r}?"
    assert nearest_path(tmp_path / "runs" / "other") == "" == nearest_path(right)
    (tmp_path / "file").touch()
    assert nearest_path(tmp_path / "file" / "below") == ""
