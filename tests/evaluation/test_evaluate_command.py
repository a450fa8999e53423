"""The command ``rlstack evaluate``: what it prints, writes and refuses."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import imageio.v2 as imageio
import pytest
import torch

import rlstack
from rlstack import envs
from rlstack.agents import Interface
from rlstack.config import ConfigError, load_group
from rlstack.envs.marinenav.env import MarineNav
from rlstack.envs.marinenav.episodes import Config, save_episodes
from rlstack.evaluate import USUAL_EPISODES, EvaluateConfig, from_checkpoint, output_folder
from rlstack.evaluation.evaluator import EpisodeSet, as_evaluated, evaluate
from rlstack.evaluation.pictures import best_and_worst, save_pictures
from rlstack.evaluation.results import Evaluation
from rlstack.runs import loading
from tests.evaluation.scripted import Scripted, episodes, full_ahead, straight_run
from tests.refusals import refused
from tests.small_run import composed


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run whose agent, loaded from anywhere, goes full ahead when greedy and slower when it explores."""
    agent: Any = SimpleNamespace(
        interface=Interface.of(envs.make("marinenav", num_worlds=1)),
        policy=lambda explore: Scripted(lambda td: full_ahead(td) * (0.3 if explore else 1.0)),
    )
    path = tmp_path / "run"
    env = {"name": "marinenav", "num_worlds": 8, "dtype": "float32", "collision_penalty": -30.0, "num_robots": 2}
    file = path / "checkpoints" / "checkpoint_000000001234.pt"
    loaded = loading.LoadedRun(agent, {"env": env}, 1234, file, path)
    monkeypatch.setattr(loading, "load", lambda *_, **__: loaded)
    return path


@pytest.fixture
def episodes_file(tmp_path: Path) -> Path:
    path = tmp_path / "three.json"
    save_episodes(path, [episodes()[name] for name in ("arrives", "collides", "both")])
    return path


def command(*overrides: str) -> None:
    rlstack.evaluate(None, None, *overrides)


def test_everything_is_left_in_one_folder(
    run_dir: Path, episodes_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command("checkpoint=run", f"episodes_file={episodes_file}")
    folder = run_dir / "evaluations" / "000000001234_seed1000_three"
    names = ["evaluation.json", "trajectories.png", "best.mp4", "worst.mp4"]
    assert sorted(path.name for path in folder.iterdir()) == sorted([*names, "manifest.json"])
    heading, header, row, *written = capsys.readouterr().out.splitlines()
    assert heading.endswith("checkpoint_000000001234.pt (greedy, 1,234 frames) in marinenav, seed 1000")
    assert header.split()[:3] == ["level", "episodes", "success"] and row.split()[:3] == ["all", "3", "0.667"]
    assert written == [f"wrote {folder / name}" for name in names]
    content = json.loads((folder / "evaluation.json").read_text())
    assert content["options"]["collision_penalty"] == -5.0 and len(content["episodes"]) == 3
    with imageio.get_reader(folder / "worst.mp4") as reader:  # the failure
        # The end stands still for two seconds.
        assert reader.count_frames() == content["episodes"][1]["length"] + 1 + 40
    assert imageio.imread(folder / "trajectories.png").shape[1] == 720


def test_pictures_of_earlier_episodes_go(run_dir: Path, episodes_file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    for name in ("first.mp4", "worst.mp4", "notes.txt"):
        (folder / name).write_text("of other episodes")
    command("checkpoint=run", f"episodes_file={episodes_file}", f"output={folder}", "plots=false", "video=false")
    assert sorted(path.name for path in folder.iterdir()) == ["evaluation.json", "manifest.json", "notes.txt"]


def test_options_of_the_runs_world_can_be_changed(run_dir: Path, episodes_file: Path) -> None:
    changed = "env.discount=0.5"  # which evaluations set to 0.99
    found = rlstack.evaluate("run", changed, episodes_file=str(episodes_file), plots=False, video=False, quiet=True)
    assert found.options["discount"] == 0.5 and found.options["num_robots"] == 2
    with pytest.raises(ConfigError, match=r"env.num_robots: has no effect, since the episodes .* determine it"):
        rlstack.evaluate("run", "env.num_robots=8", quiet=True)
    (folder,) = (run_dir / "evaluations").iterdir()
    assert folder.name.startswith("000000001234_seed1000_marinenav_")


def test_the_worlds_own_episodes_by_the_exploring_policy(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def own_set(per_level: int, seed: int) -> tuple[list[Config], list[str]]:
        assert (per_level, seed) == (2, 5)
        return [episodes()["arrives"]] * 4, ["0", "0", "1", "1"]

    monkeypatch.setattr(MarineNav, "evaluation_set", staticmethod(own_set))
    command("checkpoint=run", "episodes=2", "policy=explore", "seed=5", "plots=false", "video=false")
    (folder,) = (run_dir / "evaluations").iterdir()
    assert folder.name == "000000001234_seed5_2episodes_explore"
    content = json.loads((folder / "evaluation.json").read_text())
    assert [row["level"] for row in content["levels"]] == ["0", "1", "all"]
    assert all(episode["length"] > len(straight_run(18.0)[0]) for episode in content["episodes"])


def test_the_usual_number_of_episodes_is_that_of_the_configuration() -> None:
    assert composed(command="evaluate")["episodes"] == USUAL_EPISODES


def test_what_cannot_be_written_or_is_no_choice_is_told_before_the_episodes(run_dir: Path) -> None:
    refused(ConfigError, "transitions: /proc/none", command, "checkpoint=run", "transitions=/proc/none/x.npz")
    message = "which: best is for the folder of a run, .* is one checkpoint"
    refused(ConfigError, message, loading.checkpoint_file, Path(__file__), "best")


@pytest.mark.slow
def test_every_world_and_checkpoint_has_a_folder_of_its_own(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def folder(path: Path, run_dir: Path | None, env: dict[str, Any] | None = None) -> Path:
        changed = replace(loading.load("any"), path=path, run_dir=run_dir)
        with monkeypatch.context() as patch:
            patch.setattr(loading, "load", lambda *_, **__: changed)
            patch.setattr("rlstack.evaluation.evaluator.check_fit", lambda *_: None)
            config = EvaluateConfig(
                "x", "latest", "greedy", USUAL_EPISODES, None, 0, "cpu", None, False, False, None, env
            )
            judged = from_checkpoint(config, torch.device("cpu"))
            known = ":" not in judged.env["name"]  # there is no module my.worlds
            judged = replace(judged, env=as_evaluated(judged.env["name"], judged.env)) if known else judged
            return output_folder(config, judged)

    marinenav, gymnasium = load_group("env", "marinenav"), load_group("env", "gymnasium")
    worlds: list[dict[str, Any] | None] = [
        *(None, marinenav, {**marinenav, "num_robots": 2}),
        *({**gymnasium, "id": "CartPole-v1"}, {**gymnasium, "id": "Pendulum-v1"}),
        *({**gymnasium, "id": "CartPole-v1", "kwargs": {"a": value}} for value in (1, 2)),
        {"name": "my.worlds:One"},
    ]
    run, loose = run_dir / "checkpoints/checkpoint_000000001234.pt", run_dir.parent
    places = [folder(run, run_dir, world) for world in worlds]
    places += [folder(loose / "a.pt", None), folder(loose / "b.pt", None)]
    assert len(set(places)) == len(places)
    names = [place.name.removeprefix("000000001234_seed0") for place in places]
    assert names[:2] == ["", "_marinenav"] and names[3:5] == ["_gymnasium_CartPole-v1", "_gymnasium_Pendulum-v1"]
    assert names[-2] == "a_000000001234_seed0"
    for same in ({**marinenav, "num_worlds": 7, "device": "cpu"}, load_group("env", "marinenav_published")):
        assert folder(run, run_dir, same) == places[1], "the same world, as it is evaluated"


@pytest.mark.slow
def test_episodes_that_were_cut_are_told(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save_episodes(tmp_path / "two.json", [episodes()[name] for name in ("rests", "arrives")])
    monkeypatch.setattr(MarineNav, "evaluation_steps", 60)
    command("checkpoint=run", f"episodes_file={tmp_path / 'two.json'}", "plots=false", "video=false")
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2] == "1 of 2 episodes had not ended after 60 steps and were scored as they stood"


@pytest.mark.parametrize("content", ["damaged", "deep"])
def test_episodes_that_cannot_be_read_leave_no_folder(content: str, run_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "bad.json.gz"
    written = bytearray(gzip.compress(b"[" * 100_000))
    written[10] = written[10] if content == "deep" else 0xFF
    file.write_bytes(written)
    message = r"episodes_file: .*bad\.json\.gz: not (a gzip file|valid JSON)"
    refused(ConfigError, message, command, "checkpoint=run", f"episodes_file={file}")
    assert not run_dir.exists()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], "checkpoint: missing; name a run's folder or a checkpoint file: checkpoint=runs/<run>"),
        (["checkpoint=x", "episodes=0"], r"episodes: 0 is outside \[1, inf\)"),
        (["checkpoint=x", "episodes=1e12"], r"the evaluation needs 200,000\.0 GB on cpu, .*\(episodes\)"),
        (["checkpoint=x", "policy=best"], "policy: 'best', allowed with a checkpoint or an agent: greedy, explore"),
        (["policy=apf"], "env: missing, which world to act in: env=<group>"),
        (["policy=orka", "env=marinenav"], "policy: .* no 'orka', did you mean .orca.. allowed: greedy, explore, orca"),
        (["x", "device=tpu9"], "device: 'tpu9' cannot be used"),
        (["checkpoint=x", "episodes_file=/none.json"], "episodes_file: /none.json cannot be read"),
        (["checkpoint=x", "episodes_file=BAD"], "episodes_file: .*bad.json: not valid JSON"),
        (["checkpoint=x", "output=BAD"], "output: .*bad.json cannot be made"),
        (["checkpoint=x", "env=marinenav", "+env.winds=3"], "env: .*winds"),
        (["checkpoint=x", "env=marinenav", "env.name=null"], "env.name: missing"),
        (
            ["checkpoint=x", "env=marinenav", "env.continuous_actions=false"],
            r"env=marinenav does not fit the agent: action is Categorical \[\] torch.int64, it knows Bounded",
        ),
        (
            ["checkpoint=x", "env=marinenav", "env.dtype=float64"],
            "env=marinenav does not fit the agent: action is .*float64, it knows .*float32",
        ),
    ],
)
def test_mistakes_are_one_line(run_dir: Path, tmp_path: Path, overrides: list[str], message: str) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("{")
    refused(ConfigError, message, command, *(override.replace("BAD", str(bad)) for override in overrides))


def test_films_show_the_best_and_the_worst_on_the_hardest_level() -> None:
    def index(*names: str, levels: str) -> dict[str, int]:
        chosen = EpisodeSet([episodes()[name] for name in names], list(levels))
        options = {"dtype": torch.float64, "num_robots": 2}
        found = evaluate(Scripted(full_ahead), "marinenav", options, 1, 0, episode_set=chosen, record=2)
        return best_and_worst(found)

    assert index("collides", "arrives", "collides", levels="abb") == {"best": 1, "worst": 2}
    assert index("arrives", "collides", "arrives", levels="aab") == {"best": 2, "worst": 1}
    assert index("arrives", "arrives", "arrives", levels="aab") == {"best": 2}  # all alike


def test_films_are_chosen_by_the_returns_of_the_table() -> None:
    returns = {"return": torch.tensor([1.0, 2.0]), "discounted_return": torch.tensor([4.0, 3.0])}
    found = Evaluation(returns, ["a", "b"], "any", {}, 0, recordings={0: None, 1: None})
    assert [row["return"] for row in found.table()] == [4.0, 3.0, 3.5]
    assert best_and_worst(found) == {"best": 0, "worst": 1}


def test_no_pictures_without_recordings(tmp_path: Path) -> None:
    policy = Scripted(lambda td: torch.zeros(*td.batch_size, 1), "action")
    found = evaluate(policy, "tests.evaluation.scripted:Countdown", {}, 2, 0, record=2)
    assert save_pictures(found, tmp_path) == [] and list(tmp_path.iterdir()) == []
