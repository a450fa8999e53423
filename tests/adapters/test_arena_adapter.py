"""Checkpoints of the Arena game's own training stack are read, trained further and written back; its command line."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn

import rlstack
from rlstack.adapters.arena import __main__ as door
from rlstack.adapters.arena.__main__ import main
from rlstack.adapters.arena.agents import (
    COLUMNS,
    arena_agent,
    arena_policy,
    curriculum_from_published,
    find_statistics,
    load_files,
    published_names,
    save_arena,
    style_of,
)
from rlstack.config import ConfigError, build, load_group, to_plain
from rlstack.runs.checkpoint import write_checkpoint
from rlstack.runs.run_directory import RunDirectory
from rlstack.training.curriculum import Curriculum
from rlstack.training.stages import CurriculumConfig
from tests.adapters.small_worlds import Noise
from tests.agents.arena_recordings import Recording
from tests.exhaustive import exhaustive
from tests.refusals import refused, refused_line
from tests.training.test_curriculum import Stages, add, episodes

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures/arena_training"
RUN = "ppo_style2_20260101_120000"
ORDER = ("shared_net.0", "shared_net.2", "actor.0", "actor.2", "critic.0", "critic.2")


def game(actions: int = 6, num_worlds: int = 3) -> Noise:
    return Noise(32, actions, num_worlds)


def network(weights: dict[str, Tensor]) -> Any:
    """Builds the published network from its description."""

    def layers(*names: str) -> list[nn.Linear]:
        made = []
        for name in names:
            made.append(nn.Linear(*reversed(weights[f"{name}.weight"].shape)))
            made[-1].load_state_dict({kind: weights[f"{name}.{kind}"] for kind in ("weight", "bias")})
        return made

    shared = layers("shared_net.0", "shared_net.2")
    parts = {"shared_net": nn.Sequential(shared[0], nn.SiLU(), shared[1], nn.SiLU())}
    for head in ("actor", "critic"):
        first, second = layers(f"{head}.0", f"{head}.2")
        parts[head] = nn.Sequential(first, nn.SiLU(), second)
    return nn.ModuleDict(parts)


def statistics(features: int = 32) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(5)
    return {
        "obs_mean": torch.randn(features, generator=generator).tolist(),
        "obs_var": (0.1 + torch.rand(features, generator=generator)).tolist(),
        "obs_count": 622744,
        "ret_mean": [3.5],
        "ret_var": [42.0],
        "ret_count": 622592,
    }


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    """Returns the recorded weights times six, so that actions vary."""
    recording = Recording(FIXTURES / "ppo_update_1.npz")
    names = [f"{name}.{kind}" for name in ORDER for kind in ("weight", "bias")]
    return {name: recording[f"before.{name}"] * (6 if name == "actor.2.weight" else 1) for name in names}


@pytest.fixture
def folder(weights: dict[str, Tensor], tmp_path: Path) -> Path:
    """Returns a run of the published trainer: a checkpoint, a final model, and the files beside them."""
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    theirs = network(weights)
    optimizer = torch.optim.Adam(theirs.parameters(), lr=1e-4, eps=1e-5)
    for _ in range(3):
        theirs.zero_grad()
        observation = torch.randn(16, 32)
        (theirs["actor"](theirs["shared_net"](observation)).square().mean()
         + theirs["critic"](theirs["shared_net"](observation)).square().mean()).backward()  # fmt: skip
        optimizer.step()
    content = {
        "policy_state_dict": theirs.state_dict(),
        "optimizer_state_dict": optimizer.state_dict(),
        "num_timesteps": 65536,
    }
    metadata = {"step": 65536, "algorithm": "ppo", "style": 2, "timestamp": "2026-01-01T12:00:00"}
    for name, own in ((f"{RUN}_65536_steps", "normalization"), (f"{RUN}_final", "normalization_final")):
        torch.save(content, folder / f"{name}.pt")
        (folder / f"{name}_metadata.json").write_text(json.dumps(metadata))
        place = f"{RUN}_{own}.json" if name.endswith("final") else f"{name}_{own}.json"
        (folder / place).write_text(json.dumps(statistics()))
    return folder


@pytest.fixture
def model(folder: Path) -> Path:
    return folder / f"{RUN}_65536_steps.pt"


def loaded_network(model: Path) -> Any:
    return network(torch.load(model, weights_only=True)["policy_state_dict"])


def scaled(observation: Tensor) -> Tensor:
    mean, var = (torch.tensor(statistics()[key]) for key in ("obs_mean", "obs_var"))
    return ((observation - mean) / (var + 1e-8).sqrt()).clamp(-10, 10)


# -- acting ------------------------------------------------------------------------------------------------------


def test_it_acts_as_published(model: Path) -> None:
    env, theirs = game(num_worlds=400), loaded_network(model)
    seen = env.reset()
    logits = theirs["actor"](theirs["shared_net"](scaled(seen["observation"])))
    policies = [
        arena_policy(model, env),
        rlstack.load_policy(f"arena:{model}", env),
        rlstack.make_agent("legacy", env, kind="arena", path=str(model)).policy(explore=False),
        arena_agent(model, env).policy(explore=False),
    ]
    for policy in policies:
        assert torch.equal(policy(seen.clone())["action"], logits.argmax(-1))
    assert len(logits.argmax(-1).unique()) > 3
    agent: Any = arena_agent(model, env)
    values = theirs["critic"](theirs["shared_net"](scaled(seen["observation"])))
    torch.testing.assert_close(agent.critic(agent.normalized(seen["observation"])), values, rtol=0, atol=1e-5)


def test_it_can_sample(model: Path) -> None:
    env = game(num_worlds=1)
    seen = env.reset().expand(20_000).clone()
    torch.manual_seed(0)
    action = arena_policy(model, env, deterministic=False)(seen)["action"]
    theirs = loaded_network(model)
    logits = theirs["actor"](theirs["shared_net"](scaled(seen["observation"][:1])))[0]
    shares = torch.bincount(action, minlength=6) / len(action)
    torch.testing.assert_close(shares, logits.softmax(-1).detach(), rtol=0, atol=0.02)


def test_without_statistics(model: Path) -> None:
    env, theirs = game(num_worlds=100), loaded_network(model)
    seen = env.reset()
    action = theirs["actor"](theirs["shared_net"](seen["observation"])).argmax(-1)
    agent: Any = arena_agent(model, env, normalization="none")
    for policy in (agent.policy(explore=False), arena_policy(model, env, "none")):
        assert torch.equal(policy(seen.clone())["action"], action)
    assert agent.normalizer is None and agent.reward_scaler is None


# -- files -------------------------------------------------------------------------------------------------------


def test_statistics_are_found_by_name(folder: Path) -> None:
    def beside(name: str) -> str | None:
        file = find_statistics(folder / f"{name}.pt")
        return None if file is None else file.name

    for other in (f"{RUN}_100000_steps", f"{RUN}_9000_steps", "another_run_70000_steps"):
        (folder / f"{other}_normalization.json").write_text("{}")
    assert beside(f"{RUN}_65536_steps") == f"{RUN}_65536_steps_normalization.json"
    assert beside(f"{RUN}_80000_steps") == f"{RUN}_65536_steps_normalization.json"
    assert beside(f"{RUN}_10000_steps") == f"{RUN}_9000_steps_normalization.json"
    assert beside(f"{RUN}_8999_steps") is None
    assert beside(f"{RUN}_final") == f"{RUN}_normalization_final.json"
    (folder / f"{RUN}_normalization_final.json").unlink()
    assert beside(f"{RUN}_final") is None
    (folder / "mine_normalization.json").write_text("{}")
    assert beside("mine") == "mine_normalization.json"


POLICY, ADAM = "policy_state_dict", "optimizer_state_dict"
MOMENTS = {"step": torch.tensor(3.0), "exp_avg": torch.zeros(2), "exp_avg_sq": torch.zeros(2)}
DAMAGES: list[tuple[str, dict[str, Any], str]] = [
    (
        POLICY,
        {"actor.2.bias": torch.full((6,), math.nan)},
        "weight 'actor.2.bias' is not a tensor of finite num",
    ),
    (
        POLICY,
        {"actor.4.weight": torch.zeros(6, 6), "actor.4.bias": torch.zeros(6)},
        "not those of shared_net, actor",
    ),
    (POLICY, {"actor.0.weight": None, "policy.0.weight": torch.zeros(64, 64)}, "the layers are not those of"),
    (POLICY, {"critic.0.weight": torch.zeros(64, 100)}, "the layers do not follow one another"),
    (ADAM, {"state": dict.fromkeys(range(12), MOMENTS)}, "optimizer_state_dict is not that of its network"),
    (ADAM, {"state": {0: MOMENTS}}, "optimizer_state_dict is not that of its network"),
    ("num_timesteps", {}, "num_timesteps"),
    ("", {}, "not a checkpoint of the Arena stack: it"),
]


@exhaustive(("part", "changes", "message"), DAMAGES)
def test_damaged_files_are_one_line(part: str, changes: dict[str, Any], message: str, model: Path, capsys: Any) -> None:
    content = torch.load(model, weights_only=True)
    damaged = {**content.pop(part), **changes} if changes else content.pop(part, None)
    if isinstance(damaged, dict):
        content[part] = {key: value for key, value in damaged.items() if value is not None}
    torch.save(content if part else [content], model)
    assert str(model) in refused(ConfigError, message, arena_agent, model, game())
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("arguments", "env", "message"),
    [
        ({}, Noise(31, 6), "it takes a vector of 32 features, the env shows a vector of shape .31,"),
        ({}, Noise({"a": 16, "b": 16}, 6), "it takes a vector of 32 features, the env shows "),
        ({}, Noise(32, 5), "it chooses one of 6 actions, the env has 5 discrete actions"),
        ({"hidden": [3]}, Noise(32, 6), r"agent.hidden: \[3\] contradicts its weights, \[256, 128, 64\] fits"),
        ({"normalize_observations": False}, Noise(32, 6), "agent.normalize_observations: False contradicts"),
        ({"normalization": "none.json"}, Noise(32, 6), "none.json: cannot be read .No such file"),
        ({"lrr": 1}, Noise(32, 6), "agent.lrr: unknown key"),
    ],
)
def test_what_does_not_fit(arguments: dict[str, Any], env: Any, message: str, model: Path) -> None:
    refused(ConfigError, message, arena_agent, model, env, **arguments)


def test_statistics_that_are_none(model: Path) -> None:
    file = model.with_name(f"{model.stem}_normalization.json")
    for text, message in (
        ("{", "not valid JSON"),
        ("[1]", "not a JSON object"),
        (json.dumps(statistics(31)), "obs_mean must be a list of 32 numbers"),
        (json.dumps(statistics() | {"obs_var": [math.nan] * 32}), "obs_var must be a list of 32 numbers, all finite"),
    ):
        file.write_text(text)
        refused(ConfigError, message, arena_policy, model, game())
    file.unlink()
    message = "no statistics beside it; set normalization=<file>, or normalization=none"
    refused(ConfigError, message, arena_policy, model, game())


# -- going on ----------------------------------------------------------------------------------------------------


def experience(agent: Any) -> TensorDict:
    torch.manual_seed(3)
    rollout = game(num_worlds=16).rollout(6, agent.policy(explore=True), break_when_any_done=False)
    return rlstack.flatten_agents(rollout, group=None)


SMALL = {"minibatch_size": 32, "epochs": 2}


def test_it_goes_on_from_where_it_was(model: Path) -> None:
    """Compares weights, Adam's moments, statistics and the number of frames."""
    agent: Any = arena_agent(model, game(), **SMALL)
    content = torch.load(model, weights_only=True)
    assert agent.frames == 65536 and float(agent.normalizer.moments[0].count) == 622744
    assert float(agent.reward_scaler.moments.var) == 42.0
    ours = agent.optimizer.state_dict()["optimizer"]["state"]
    order = {id(parameter): place for place, parameter in enumerate(agent.optimizer.parameters)}
    for index, (name, parameter) in enumerate(published_names(agent)):
        assert torch.equal(parameter, content["policy_state_dict"][name])
        for key, value in content["optimizer_state_dict"]["state"][index].items():
            assert torch.equal(ours[order[id(parameter)]][key], value), (name, key)
    metrics = agent.learn(experience(agent), 65536 + 96)
    assert all(math.isfinite(float(value)) for value in metrics.values())
    assert not torch.equal(next(published_names(agent))[1], content["policy_state_dict"]["shared_net.0.weight"])


def test_written_and_read_it_is_the_same_agent(model: Path, tmp_path: Path) -> None:
    agent: Any = arena_agent(model, game(), **SMALL)
    agent.learn(experience(agent), 65632)
    out = tmp_path / "back" / f"{RUN}_65632_steps.pt"
    written = [path.name for path in save_arena(agent, out)]
    assert written == [out.name, f"{out.stem}_metadata.json", f"{out.stem}_normalization.json"]
    metadata = json.loads(out.with_name(written[1]).read_text())
    assert metadata | {"timestamp": ""} == {"step": 65632, "algorithm": "ppo", "style": 2, "timestamp": ""}
    twin: Any = arena_agent(out, game(), **SMALL)
    assert twin.frames == 65632
    outcomes = []
    for each in (agent, twin):
        data = experience(each)
        each.begin_episodes()
        torch.manual_seed(4)
        each.learn(data, 65728)
        outcomes.append([*each.parameters(), each.normalizer.moments[0].mean])
    torch.testing.assert_close(*outcomes, rtol=0, atol=0)


def test_what_is_written_loads_in_their_classes(model: Path, tmp_path: Path) -> None:
    agent: Any = arena_agent(model, game())
    save_arena(agent, tmp_path / "x.pt")
    content = torch.load(tmp_path / "x.pt", weights_only=True)
    theirs = network(content["policy_state_dict"])
    optimizer = torch.optim.Adam(theirs.parameters(), lr=1e-4, eps=1e-5)
    optimizer.load_state_dict(content["optimizer_state_dict"])
    (theirs["actor"](theirs["shared_net"](torch.ones(2, 32)))).sum().backward()
    optimizer.step()
    assert set(content) == {"policy_state_dict", "optimizer_state_dict", "num_timesteps"}
    assert json.loads((tmp_path / "x_normalization.json").read_text()) == statistics()


@exhaustive(("actions", "style"), [(5, 1), (6, 2)])
def test_any_widths_and_both_styles(actions: int, style: int, tmp_path: Path) -> None:
    for hidden in ([24, 16, 8], [12, 10], [9]):
        env = game(actions)
        shared = {"hidden": hidden, "shared_layers": len(hidden) - 1}
        agent = rlstack.make_agent("ppo_published", env, **shared, normalize_rewards=False)
        save_arena(agent, tmp_path / "x.pt")
        assert json.loads((tmp_path / "x_metadata.json").read_text())["style"] == style == style_of(tmp_path / "x.pt")
        twin: Any = arena_agent(tmp_path / "x.pt", env)
        assert twin.config.hidden == hidden
        torch.testing.assert_close(dict(published_names(twin)), dict(published_names(agent)), rtol=0, atol=0)


@exhaustive("options", [{}, {"activation": "silu"}, {"shared_layers": 1, "hidden": [8, 8, 8]}])
def test_other_networks_are_refused(options: dict[str, Any], tmp_path: Path) -> None:
    message = "other networks than the Arena stack; agent=ppo_published"
    for agent in (rlstack.make_agent("ppo", game(), **options), rlstack.make_agent("dqn", game())):
        refused(ConfigError, message, save_arena, agent, tmp_path / "x.pt")
    agent = rlstack.make_agent("ppo_published", game())
    refused(ConfigError, r"must end in \.pt", save_arena, agent, tmp_path / "x.zip")
    assert list(tmp_path.iterdir()) == []
    save_arena(rlstack.make_agent("ppo_published", game(7), hidden=[9, 8], shared_layers=1), tmp_path / "x.pt")
    refused(ConfigError, "it chooses one of 7 actions, as no style of the game; set env", style_of, tmp_path / "x.pt")


# -- commands ----------------------------------------------------------------------------------------------------


@pytest.fixture
def anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlstack.runs.worlds.build_world", lambda *_, **__: game(num_worlds=1))
    monkeypatch.setattr("rlstack.runs.loading.build_world", lambda *_, **__: game(num_worlds=1))


@pytest.mark.usefixtures("anywhere")
def test_the_commands_convert_and_write_back(model: Path, tmp_path: Path, capsys: Any) -> None:
    out, back = tmp_path / "ours.pt", tmp_path / "run_final.pt"
    rlstack.convert("arena", str(model), f"out={out}", "+env.name=any")
    printed = capsys.readouterr().out
    assert "ppo_published of 58,311 parameters; its greedy actions differ by 0.0e+00 at most on 256" in printed
    assert rlstack.load(out).frames == 65536
    rlstack.convert(f"checkpoint={out}", "format=arena", f"out={back}")
    names = ["run_final.pt", "run_final_metadata.json", "run_normalization_final.json", "run_final_training_state.json"]
    assert [line.rpartition("/")[2] for line in capsys.readouterr().out.splitlines()] == names
    one, other = (torch.load(path, weights_only=True) for path in (model, back))
    torch.testing.assert_close(one["policy_state_dict"], other["policy_state_dict"], rtol=0, atol=0)
    assert other["num_timesteps"] == 65536
    state = json.loads((tmp_path / names[-1]).read_text())
    assert state["model_path"] == str(back) and state["total_timesteps_completed"] == 65536 and state["style"] == 2


@pytest.mark.usefixtures("anywhere")
def test_the_curriculum_goes_along(tmp_path: Path) -> None:
    course = Curriculum(build(CurriculumConfig, load_group("curriculum", "arena"), "curriculum"), Stages())  # type: ignore[arg-type]
    add(course, episodes(spawners=[1.0] * 60, length=[700.0] * 60))
    course.check(77)
    agent = rlstack.make_agent("ppo_published", game())
    config = {"agent": to_plain(agent.config), "env": {"name": "any"}, "total_frames": 1000}
    state = {"frames": 77, "agent": agent.state_dict(), "config": config, "curriculum": course.state_dict()}
    write_checkpoint(tmp_path / "ours.pt", state, 77)
    rlstack.convert(f"checkpoint={tmp_path / 'ours.pt'}", "format=arena", f"out={tmp_path / 'x_final.pt'}")
    record = json.loads((tmp_path / "x_final_training_state.json").read_text())
    assert record["curriculum_stage_index"] == 1 and record["curriculum_metrics"]["episode_lengths"] == [700.0] * 60
    assert curriculum_from_published(record, begun=77) == course.state_dict()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["arena", "none.pt", "out=x"], "none.pt: No such file"),
        (["arena", "none.pt", "out=x", "+env.name=any"], "none.pt: No such file"),
    ],
)
@pytest.mark.usefixtures("anywhere")
def test_mistakes_of_a_command(words: list[str], message: str) -> None:
    refused(ConfigError, message, rlstack.convert, *words)


# -- The Arena stack's own command line: its options, its files, and training its checkpoints further ----------------


FINAL = ["final.pt", "final_metadata.json", "final_training_state.json", "normalization_final.json"]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Shortens rollouts to two worlds and evaluations to a few steps, in a temporary folder."""
    full = door.to_plain

    def composed(configuration: Any) -> dict[str, Any]:
        plain = full(configuration)
        plain["agent"] |= {"steps_per_batch": 16, "epochs": 1, "hidden": [9, 8], "shared_layers": 1}
        plain["collector"]["steps_per_batch"] = 16
        plain["eval"] |= {"episodes": 1, "max_steps": 3}
        return plain

    monkeypatch.setattr(door, "to_plain", composed)
    monkeypatch.setattr(door.os, "cpu_count", lambda: 2)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def trained(folder: Path, *arguments: str) -> Path:
    """Returns the folder of the run that a command makes."""
    before = set(folder.glob("runs/ppo/*/*"))
    main(["--device", "cpu", "--steps", "64", *arguments])
    (made,) = set(folder.glob("runs/ppo/*/*")) - before
    return made


@pytest.mark.slow
def test_a_training_leaves_the_files_of_the_stack(small: Path) -> None:
    run = trained(small, "--style", "2", "--no-render", "--lr", "0.002", "--batch", "8")
    assert run.parent.name == "style2" and run.name.startswith("ppo_style2_20")
    assert sorted(path.name for path in (run / "final").iterdir()) == [f"{run.name}_{name}" for name in FINAL]
    files = load_files(run / "final" / f"{run.name}_final.pt")
    assert files.num_timesteps == 64 and files.training_state["style"] == 2
    assert files.training_state["curriculum_stage_index"] == 0
    assert files.training_state["total_timesteps_completed"] == 64
    assert load_files(run / "checkpoints" / f"{run.name}_64_steps.pt").num_timesteps == 64
    assert rlstack.load(run).frames == 64
    config = RunDirectory.open(run).read_config()
    assert (config["agent"]["lr"], config["agent"]["minibatch_size"]) == (0.002, 8)
    assert (config["env"]["name"], config["env"]["style"]) == ("arena", 2)


def edited(run: Path, **changes: Any) -> Path:
    """Returns the final checkpoint of a run, with another record of its training."""
    model = run / "final" / f"{run.name}_final.pt"
    record = model.with_name(f"{model.stem}_training_state.json")
    record.write_text(json.dumps(json.loads(record.read_text()) | changes))
    return model


@pytest.mark.slow
@pytest.mark.parametrize("reset", [False, True])
def test_a_training_goes_on_with_stage_and_window(reset: bool, small: Path) -> None:
    metrics = {name: [float(10 * column + k) for k in range(7)] for column, name in enumerate(COLUMNS)}
    stage = {"curriculum_stage_index": 3, "curriculum_metrics": {**metrics, "win_times": []}}
    first = edited(trained(small, "--style", "2"), **stage)
    run = trained(small, "--load-model", str(first), *(["--reset-timesteps"] if reset else []))
    assert run.parent.name == "style2"
    before, after = load_files(first), load_files(run / "final" / f"{run.name}_final.pt")
    assert after.num_timesteps == (64 if reset else 128)
    assert after.training_state["curriculum_stage_index"] == 3
    for name, values in metrics.items():
        assert after.training_state["curriculum_metrics"][name][:7] == values, name
    steps = [float(files.optimizer["state"][0]["step"]) for files in (before, after)]
    assert steps[1] == 2 * steps[0] > 0
    for name, values in before.policy.items():
        assert not torch.equal(values, after.policy[name]) or values.numel() < 3, name
        torch.testing.assert_close(values, after.policy[name], rtol=0, atol=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "needle"),
    [
        ({"curriculum_stage_index": 9}, "stage 9 of 6"),
        ({"curriculum_metrics": {"wins": 3}}, "not the state of a curriculum"),
    ],
)
def test_a_record_that_does_not_fit_is_one_line(
    changes: dict[str, Any], needle: str, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = edited(trained(small), **changes)
    line = refused_line(capsys, main, "--device", "cpu", "--load-model", str(model))
    assert line.startswith("error: --load-model: ") and needle in line
    assert len(list(small.glob("runs/ppo/*/*"))) == 1


@pytest.mark.parametrize(
    ("arguments", "needle"),
    [
        (["--algo", "dqn"], "rlstack train agent=dqn env=arena"),
        (["--style", "3"], "--style"),
        (["--steps", "0"], "--steps"),
        (["--load-model", "none.pt"], "none.pt: No such file"),
        (["--device", "tpu"], "device"),
        (["--batch", "0"], "minibatch_size"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(
    arguments: list[str], needle: str, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert needle in refused_line(capsys, main, *arguments) and not list(small.iterdir())
