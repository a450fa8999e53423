"""An agent judged by games: what is played, shown and written."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase

import rlstack
from rlstack import envs
from rlstack.agents import Interface
from rlstack.config import ConfigError, build
from rlstack.evaluate import EvaluateConfig
from rlstack.runs import loading
from tests.play.duel import NAME, constant_run
from tests.refusals import refused
from tests.small_run import composed


class Ones(TensorDictModuleBase):
    """Names 1, or 2 when it explores."""

    in_keys = [("agents", "observation")]
    out_keys = [("agents", "action")]

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        lead = tensordict["agents"].batch_size
        return tensordict.set(("agents", "action"), torch.full(lead, self.number))


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a run that was trained against opponents, in a world whose second side lacks one of its two agents."""
    env = {"name": NAME, "num_worlds": 4, "size": 2, "absent": True, "opponents": {"players": ["gone:forever"]}}
    interface = Interface.of(envs.make(NAME, size=2, absent=True))
    agent: Any = SimpleNamespace(interface=interface, policy=lambda explore: Ones(2 if explore else 1))
    path = tmp_path / "r7"
    file = path / "checkpoints" / "checkpoint_000000001234.pt"
    loaded = loading.LoadedRun(agent, {"env": env}, 1234, file, path)
    monkeypatch.setattr(loading, "load", lambda *_, **__: loaded)
    return path


def command(*overrides: str) -> None:
    rlstack.evaluate("checkpoint=run", *overrides)


def test_games_replace_the_opponents_of_training(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command("opponents=[low,high,random]", "episodes=30")
    folder = run_dir / "evaluations" / "000000001234_seed1000_30games_against_low_high_random"
    assert sorted(path.name for path in folder.iterdir()) == [
        *("elo.png", "game_by_game.csv", "manifest.json", "results.json", "summary.csv")
    ]
    results = json.loads((folder / "results.json").read_text())
    assert results["player"] == "r7" and results["total_games"] == 90 and results["env"]["size"] == 2
    assert "opponents" not in results["env"]
    low, high, random = results["opponents"]
    # The second side has one agent less. With two agents it names 2 a step, alone 1; `high` 4 and 2, `low` nothing.
    assert (low["wins"], low["draws"], low["losses"], low["timestep"]) == (30, 0, 0, 1234)
    assert (high["wins"], high["draws"], high["losses"]) == (0, 15, 15)
    assert low["decided_win_rate"] == 1.0 and low["decided_win_rate_low"] == pytest.approx(0.886, abs=1e-3)
    assert random["games"] == 30 and 0 < random["wins"] < 30  # the first side wins mostly
    assert results["fitted_elo"] > 1000 and len(results["elo_history"]) == 90
    with (folder / "summary.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert rows[1]["losses"] == "15" and rows[1]["opponent"] == "high"
    published = {"timestamp", "timestep", "opponent", "wins", "losses", "win_rate", "elo_before", "elo_after"}
    assert published | {"elo_change"} <= rows[0].keys()
    with (folder / "game_by_game.csv").open(newline="") as stream:
        games = list(csv.DictReader(stream))
    assert {"player_score", "opponent_score", "goal_diff", "expected_score"} <= set(games[0]) and len(games) == 90
    heading, header, *_, rating = [line for line in capsys.readouterr().out.splitlines() if "wrote" not in line]
    assert heading.endswith(f"(greedy, 1,234 frames) in {NAME}, seed 1000, 30 games against each")
    assert header.split()[:6] == ["opponent", "games", "wins", "draws", "losses", "success"]
    assert rating.startswith("rating of r7: ") and "fitted to all games at once: " in rating


def test_the_picture_of_ratings_shows_only_those_who_played(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr("rlstack.play.results.save_curves", lambda path, *lines: drawn.append(lines))
    command("opponents=[low]", "episodes=2")
    command("opponents=[high]", "episodes=2")
    assert [(list(curves), anchors) for curves, anchors in drawn] == [(["r7"], {"low": 1000.0}), (["r7"], {})]


def test_the_exploring_policy_and_no_plots(run_dir: Path) -> None:
    command("opponents=[high]", "episodes=4", "policy=explore", "plots=false")
    (folder,) = (run_dir / "evaluations").iterdir()
    assert folder.name == "000000001234_seed1000_4games_explore_against_high"
    # As `high` does; the side of two agents wins.
    assert [json.loads((folder / "results.json").read_text())[key] for key in ("wins", "losses")] == [2, 2]
    assert not (folder / "elo.png").exists()


def test_opponents_of_one_name_have_folders_of_their_own(run_dir: Path, tmp_path: Path) -> None:
    for place, number in (("one", 1), ("two", 2)):
        path = constant_run(tmp_path / place / "seed0", number)
        for source in (path, f"checkpoint:{path}"):
            command(f"opponents=['{source}']", "episodes=2", "plots=false")
    folders = sorted((run_dir / "evaluations").iterdir())
    assert len(folders) == 2 and all("_2games_against_seed0_" in folder.name for folder in folders)


def test_an_opponent_with_the_name_of_a_player_of_the_world_gets_a_number(run_dir: Path, tmp_path: Path) -> None:
    command(f"opponents=[{constant_run(tmp_path / 'low', 2)},low]", "episodes=2", "plots=false")
    (folder,) = (run_dir / "evaluations").iterdir()
    results = json.loads((folder / "results.json").read_text())
    assert [row["opponent"] for row in results["opponents"]] == ["low-2", "low"]
    assert results["elo_ratings"]["low"] == 1000 != results["elo_ratings"]["low-2"]


def test_a_player_of_the_same_name_gets_a_number(run_dir: Path) -> None:
    source = {"player": "callable:tests.play.test_versus:one", "batched": True}
    command(f"opponents=[{json.dumps(source)},low]".replace('"', ""), "episodes=2", "plots=false")
    (folder,) = (run_dir / "evaluations").iterdir()
    results = json.loads((folder / "results.json").read_text())
    assert [row["opponent"] for row in results["opponents"]] == ["one", "low"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["opponents=[]"], "opponents: .* names nobody to play against"),
        (["opponents=[hih]"], "opponent 'hih' is unknown, did you mean 'high'\\? allowed: random, high, low, a run"),
        (["opponents=[self]"], "opponent 'self' is unknown, allowed: random, high, low, a run"),
        (["opponents=low"], "opponents: "),
        (["opponents=[low]", "episodes_file=x.json"], "episodes_file: given episodes cannot be played"),
        (["opponents=[low]", "env=marinenav"], "env=marinenav does not fit the agent"),
    ],
)
def test_mistakes_are_one_line(run_dir: Path, overrides: list[str], message: str) -> None:
    refused(ConfigError, message, command, *overrides)
    assert not run_dir.exists()


def test_the_defaults_of_the_command_judge_episodes() -> None:
    assert build(EvaluateConfig, composed(command="evaluate")).opponents is None


def test_worlds_of_one_side_have_no_games(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: Any = loading.load("any")
    loaded.agent.interface = Interface.of(envs.make("arena", num_worlds=1))
    loaded.config["env"] = {"name": "arena"}
    with pytest.raises(
        ConfigError, match="Arena does not have two sides that play against each other; known: Echelon, Rocket"
    ):
        command("opponents=[random]")
