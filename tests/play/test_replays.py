"""The best of many games as data and film."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from rlstack.config import ConfigError
from rlstack.envs.echelon.match import STATISTICS, statistics
from rlstack.envs.echelon.recording import load_replay as load_echelon
from rlstack.envs.rocket.recording import load_replay
from rlstack.league import play, run_league
from rlstack.play.games import GameResult, pairing
from rlstack.play.league import League
from rlstack.play.matches import BestGames, GameRunner, play_back
from tests.play.duel import seated
from tests.play.test_league import config
from tests.refusals import refused

SHORT = {"max_seconds": 0.3, "blue": 1, "orange": 2}


def keep(best: BestGames, *games: GameResult) -> list[int]:
    best.recorder = Mock()
    for number, game in enumerate(games):
        best.finish(0, number, game)
    return [kept.number for kept in best.games]


def test_the_largest_lead_comes_first_then_the_fastest_win() -> None:
    games = [
        GameResult("a", "b", 1, 0, 50),
        GameResult("b", "a", 3, 0, 80),
        GameResult("a", "b", 0, 1, 20),
        GameResult("a", "b", 2, 2, 5),
    ]
    assert keep(BestGames("rocket", 3), *games) == [1, 2, 0]
    assert keep(BestGames("rocket", 1), *games) == [1]
    assert keep(BestGames("rocket", 3, of="a"), *games) == [0]  # of those that `a` won
    assert keep(BestGames("rocket", 3, of="b"), *games) == [1, 2]


@pytest.mark.slow
def test_every_game_of_a_round_is_recorded_on_its_own() -> None:
    class All(BestGames):
        """Keeps every game, however it ended."""

        def finish(self, world: int, number: int, game: GameResult) -> None:
            self.games.append((number, game, self.recorder.finish(world)))  # type: ignore[arg-type]

    arena = seated(GameRunner("rocket", SHORT, num_worlds=2), "rule", "random")
    schedule, best = pairing("rule", "random", 5), All("rocket", 1)
    games = arena.play(schedule, seed=3, best=best)
    assert games == arena.play(schedule, seed=3)  # recording changes nothing
    kept: Any = sorted(best.games, key=lambda entry: entry[0])
    assert [number for number, _, _ in kept] == [0, 1, 2, 3, 4]
    for number, game, recording in kept:
        assert game[:2] == schedule[number] and game[:5] == games[number][:5]
        assert recording.frames.clock.tolist() == [8 * step for step in range(game.steps + 1)]
    starts = [recording.frames.position[0] for _, _, recording in kept]
    moved = [np.abs(recording.frames.position[-1] - recording.frames.position[0]).max() for *_, recording in kept]
    assert min(moved) > 10 and any(not np.array_equal(starts[0], start) for start in starts[1:])


@pytest.mark.slow
def test_play_saves_replays_and_plays_them_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Puts the ball on its way into orange's goal, so that blue wins."""
    settings = {"players": ["rule", "random"], "games": 2, "env": {"name": "rocket", **SHORT}, "num_worlds": 2}
    with pytest.MonkeyPatch().context() as patch:
        patch.setattr("rlstack.envs.rocket.starts.kick_off", _into_goal)
        play(config(tmp_path, **settings, save="best", keep=2, video=False))
    folder = tmp_path / "play" / "rule" / "replays"
    assert [path.name for path in folder.iterdir()] == ["best_1.npz"]  # the other game was random's
    recording = load_replay(folder / "best_1.npz")
    assert recording.players == ("rule", "random") and recording.goals == (1, 0) and recording.title == "game 1"
    assert recording.frames.ball_position[-1, 1] > 5215 and recording.frames.gone[0].tolist() == [0, -1, 0, 0]
    assert recording.options["orange"] == 2
    capsys.readouterr()
    play(config(tmp_path, replay=str(folder / "best_1.npz")))
    assert capsys.readouterr().out == f"wrote {folder / 'best_1.mp4'}\n"
    assert (folder / "best_1.mp4").stat().st_size > 10_000


def test_a_league_keeps_the_best_games_of_all_its_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rlstack.envs.rocket.starts.kick_off", _into_goal)
    settings = {"players": ["rule", "random"], "games": 3, "round": 1, "env": {"name": "rocket", **SHORT}}
    run_league(config(tmp_path, **settings, save="best", keep=2, video=False))
    paths = sorted((tmp_path / "replays" / "from_game_1").iterdir())
    assert [path.name for path in paths] == ["best_1.npz", "best_2.npz"]
    lengths = [len(load_replay(path).frames) for path in paths]
    assert lengths == sorted(lengths) and all(load_replay(path).goals == (1, 0) for path in paths)

    def fails(*_: Any) -> None:
        raise KeyboardInterrupt

    rounds = iter([League.play_round, fails])
    monkeypatch.setattr(League, "play_round", lambda *arguments: next(rounds)(*arguments))
    with pytest.raises(KeyboardInterrupt):
        run_league(config(tmp_path, **{**settings, "games": 6}, save="best", keep=2, video=False))
    assert [path.name for path in (tmp_path / "replays").rglob("*.npz") if path not in paths] == ["best_1.npz"]
    assert all(path.is_file() for path in paths)
    run_league(config(tmp_path, **{**settings, "games": 4}, save="best", keep=2, video=False))
    assert "save: no game was missing, so none was recorded" in capsys.readouterr().out


@pytest.mark.slow
def test_a_world_with_pages_gets_them_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    env = {"name": "echelon", "blue": 1, "red": 1, "maps": 2, "max_steps": 3}
    settings = {"players": ["heuristic", "random"], "games": 1, "env": env, "num_worlds": 1}
    with pytest.MonkeyPatch().context() as patch:
        patch.setattr("rlstack.envs.echelon.env.statistics", _blue_wins)
        play(config(tmp_path, **settings, save="best", keep=1, video=False))
    folder = tmp_path / "play" / "heuristic" / "replays"
    assert sorted(path.name for path in folder.iterdir()) == ["best_1.html", "best_1.json"]
    recording = load_echelon(folder / "best_1.json")
    assert recording.players == ("heuristic", "random") and recording.frames.tick.tolist() == [0, 5, 10, 15]
    assert recording.options["opponent"] == "policy"
    capsys.readouterr()
    play(config(tmp_path, replay=str(folder / "best_1.json"), output=str(tmp_path / "again.html")))
    assert capsys.readouterr().out == f"wrote {tmp_path / 'again.html'}\n"
    assert (tmp_path / "again.html").read_text() == (folder / "best_1.html").read_text()
    assert play_back(folder / "best_1.json").stat().st_size > 10_000
    for name in ("x.gif", "x.html"):
        with pytest.raises(ConfigError, match=rf"^video: .*best_1.json/{name} cannot be written \(File exists\)$"):
            play_back(folder / "best_1.json", folder / "best_1.json" / name)


def _blue_wins(match: Any, tables: Any) -> Any:
    rows = statistics(match, tables)
    rows[STATISTICS.index("success")] = rows[0] * 0 + 1
    rows[STATISTICS.index("lost")] = rows[0] * 0
    return rows


def _into_goal(draws: Any) -> Any:
    from rlstack.envs.rocket.starts import random_state

    state = random_state(draws)
    state.ball.position[:] = state.ball.position.new_tensor([[0.0], [5000.0], [200.0]])
    state.ball.velocity[:] = state.ball.velocity.new_tensor([[0.0], [2500.0], [0.0]])
    state.cars.position[1] = -3000.0
    return state


def test_what_cannot_be_saved_or_played_back_is_one_line(tmp_path: Path) -> None:
    refused(ConfigError, "save: 'arena' has no replays; worlds that have them: echelon, rocket", BestGames, "arena", 1)
    (tmp_path / "bad.npz").write_bytes(b"PK")
    (tmp_path / "bad.json").write_bytes(b"{")
    faults = [("bad.npz", r"damaged, or no \.npz"), ("bad.json", "damaged, or no JSON"), ("none.npz", "No such file")]
    for name, message in faults:
        refused(ConfigError, f"replay: .*{message}", play_back, tmp_path / name)
