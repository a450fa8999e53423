"""The trained agents that come with rlstack: each plays as its card says, wherever a checkpoint can be named."""

from __future__ import annotations

import hashlib
import math
import shutil
from pathlib import Path

import pytest

import rlstack
from rlstack.config import ConfigError
from rlstack.evaluation.evaluator import evaluate
from rlstack.runs import run_directory as zoo
from rlstack.runs.worlds import world_options
from tests.refusals import refused

NAMES = zoo.zoo_names()


@pytest.mark.parametrize("name", NAMES)
def test_a_card_is_whole_and_its_file_small(name: str) -> None:
    known = zoo.card(name)
    assert known["name"] == name and known["frames"] > 0 and known["commit"]
    assert known["command"].startswith("python -m rlstack.train") and "run_dir" not in known["command"]
    file = zoo.published_file(f"zoo:{name}")
    assert file.stat().st_size <= 1_000_000
    assert hashlib.sha256(file.read_bytes()).hexdigest() == known["sha256"]
    assert 1000 < (file.parent / known["film"]).stat().st_size <= 1_000_000


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_an_agent_plays_as_its_card_says(name: str) -> None:
    """Fifty episodes of another seed: within four standard errors of both samples."""
    known = zoo.card(name)
    run = rlstack.load(f"zoo:{name}")
    world, options = run.config["env"]["name"], world_options(run.config["env"])
    levels = sum(key.startswith("eval/success_level") for key in known["score"]) or 1
    policy = run.agent.policy(explore=known["policy"] == "explore")
    found = evaluate(policy, world, options, math.ceil(50 / levels), seed=7).summary()
    promised = known["score"].get("eval/success")
    if promised is None:
        assert found["eval/return"] > 0.9 * known["score"]["eval/return"]
        return
    share = min(max(promised, 0.02), 0.98)
    error = math.sqrt(share * (1 - share) * (1 / 50 + 1 / known["episodes"]))
    assert abs(found["eval/success"] - promised) < 4 * error


def test_names_that_are_none_and_files_that_are_others_are_refused(tmp_path, monkeypatch) -> None:
    refused(ConfigError, f"zoo: no option 'nobody', available: {NAMES[0]}", rlstack.load, "zoo:nobody")
    shutil.copytree(zoo.zoo_folder() / NAMES[0], tmp_path / NAMES[0])
    with open(tmp_path / NAMES[0] / zoo.AGENT, "ab") as file:
        file.write(b"more")
    monkeypatch.setattr(zoo, "zoo_folder", lambda: tmp_path)
    refused(ConfigError, r"zoo:.* is missing or not the file of its card", rlstack.load, f"zoo:{NAMES[0]}")


def test_an_agent_of_the_zoo_acts_by_its_name() -> None:
    run = rlstack.load("zoo:marinenav")
    policy = rlstack.load_policy("zoo:marinenav", run.make_env(num_worlds=2))
    assert run.make_env(num_worlds=2).rollout(3, policy)["agents", "action"].abs().max() <= 1


def test_what_is_made_of_it_goes_below_runs_and_not_into_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def files() -> set[Path]:
        return set(zoo.zoo_folder().rglob("*"))

    before = files()
    monkeypatch.chdir(tmp_path)
    rlstack.evaluate("zoo:marinenav", "env.max_steps=5", episodes=1, plots=False, video=False, quiet=True)
    rlstack.convert(checkpoint="zoo:marinenav", quiet=True)
    places = {"/".join(path.parts[:3]) for path in Path().rglob("*") if path.is_file()}
    assert places == {"runs/zoo_marinenav/evaluations", "runs/zoo_marinenav/exports"}
    assert files() == before


def test_the_zoo_is_listed(capsys) -> None:
    assert [known["name"] for known in rlstack.demo("list")] == NAMES
    assert "marinenav" in capsys.readouterr().out


def test_the_demo_makes_a_film_where_there_is_no_screen(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rlstack.demo.has_display", bool)
    film, told = tmp_path / "demo_marinenav.mp4", "there is no display and no terminal to play it in; copied the film"
    assert rlstack.demo("marinenav") == [f"{told} of an episode to {film}"] and film.stat().st_size > 1000
    film.unlink()
    film.mkdir()
    with pytest.raises(rlstack.ConfigError, match=r"demo_marinenav.mp4 cannot be written \(Is a directory\)"):
        rlstack.demo("marinenav", show="film")
    shown = capsys.readouterr().out
    assert "acqn in marinenav" in shown and shown.count("\n  rlstack ") == 3


@pytest.mark.slow
def test_a_run_begins_from_an_agent_of_the_zoo(tmp_path) -> None:
    run = rlstack.train(
        agent="acqn", env="marinenav", init="zoo:marinenav", debug=100, run_dir=str(tmp_path / "run"), quiet=True
    )
    assert (tmp_path / "run" / "config.yaml").is_file() and run is not None
