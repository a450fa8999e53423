"""Candidates of a league: which files may join, what is kept of them, and whom they meet."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rlstack.config import ConfigError, build
from rlstack.play.games import GameResult, pairing
from rlstack.play.league import (
    League,
    LeagueMember,
    PoolConfig,
    add_candidates,
    commander_name,
    evaluate,
    evaluate_all,
    join_fixed,
    matches,
    pool,
    promote,
    to_evaluate,
    weights,
)
from rlstack.play.matches import GameRunner
from rlstack.play.ratings import Elo, Glicko2, Rating, rate, ratings_from
from tests.play.duel import NAME, Watching, constant_run
from tests.refusals import refused

WORLD = {"name": NAME, "length": 2}


@pytest.fixture
def arena() -> GameRunner:
    return GameRunner(NAME, {"length": 2})


@pytest.fixture
def league(tmp_path: Path) -> League:
    return League.create(tmp_path / "league", WORLD, Glicko2(anchors={"low": 1000.0}))


def test_a_run_joins_as_candidate_with_what_is_known_of_it(league: League, arena: GameRunner, tmp_path: Path) -> None:
    run = constant_run(tmp_path / "first", 2, frames=1234)
    file = run / "checkpoints" / "checkpoint_000000001234.pt"
    assert add_candidates(league, arena, [(None, str(run))], "a remark") == ["first"]
    entry = json.loads((league.folder / "league.json").read_text())["entries"][0]
    assert entry["kind"] == "candidate" and entry["commander_name"] is None and entry["source"] == str(run)
    assert entry["id"] == f"checkpoint_000000001234:{file.stat().st_size}:{file.stat().st_mtime_ns}"
    assert entry["meta"] == {"frames": 1234, "agent": "ppo", "note": "a remark"}
    assert len(entry["created_at"]) == len("2026-01-01T00:00:00Z")
    assert League.open(league.folder).members == league.members


def test_an_agent_of_the_zoo_joins(tmp_path: Path) -> None:
    world = {"name": "rocket", "blue": 1, "orange": 1}
    league = League.create(tmp_path / "league", world, Glicko2(anchors={}))
    runner = GameRunner("rocket", {"blue": 1, "orange": 1})
    assert add_candidates(league, runner, [(None, "zoo:rocket")]) == ["rocket"]
    assert league.members["rocket"].meta["agent"] == "ppo"


def test_the_league_does_not_need_the_run_any_more(league: League, tmp_path: Path) -> None:
    run = constant_run(tmp_path / "first", 2, opponents={"players": ["low"]})
    add_candidates(league, GameRunner(NAME, {"length": 2}), [(None, str(run))])
    shutil.rmtree(run)
    again, arena = League.open(league.folder), GameRunner(NAME, {"length": 2})
    arena.add(again.source("first"), "first")
    arena.add("low")
    assert [game.points_first for game in arena.play(pairing("first", "low", 2)[:1])] == [4.0]  # 2 in each of 2 steps


def test_the_same_file_joins_once(league: League, arena: GameRunner, tmp_path: Path) -> None:
    run = constant_run(tmp_path / "first", 2)
    add_candidates(league, arena, [(None, str(run))])
    copy = shutil.copytree(run, tmp_path / "copy")  # which keeps times
    before = (league.folder / "league.json").read_bytes()
    for source in (run, copy, next((run / "checkpoints").glob("*.pt"))):
        message, sources = "is in this league already, as 'first'", [("again", str(source))]
        refused(ConfigError, message, add_candidates, league, arena, sources)
    assert (league.folder / "league.json").read_bytes() == before


@pytest.mark.slow
def test_names_are_given_or_found(league: League, arena: GameRunner, tmp_path: Path) -> None:
    runs = [constant_run(tmp_path / str(index) / "run", index) for index in range(3)]
    assert add_candidates(league, arena, [(None, str(runs[0])), (None, str(runs[1])), ("third", str(runs[2]))]) == [
        *("run", "run-2", "third")
    ]
    low = constant_run(tmp_path / "low", 0)  # the world has a player of this name
    assert add_candidates(league, arena, [(None, str(low))]) == ["low-2"]
    other = constant_run(tmp_path / "other", 1)
    for name in ("third", "low", "random", "self"):
        refused(ConfigError, f"the name '{name}' is taken", add_candidates, league, arena, [(name, str(other))])
    refused(ConfigError, r"'\.\./up' cannot name a candidate", add_candidates, league, arena, [("../up", str(other))])


def test_all_join_or_none(league: League, arena: GameRunner, tmp_path: Path) -> None:
    fits, foreign = constant_run(tmp_path / "fits", 2), tmp_path / "foreign.pt"
    foreign.write_bytes(b"nothing")
    refused(ConfigError, r"foreign\.pt", add_candidates, league, arena, [(None, str(fits)), (None, str(foreign))])
    assert League.open(league.folder).members == {}
    assert not list((league.folder / "players").glob("*.pt"))
    assert add_candidates(league, arena, [(None, str(fits))]) == ["fits"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("low", "'low' comes with the world and is not a candidate; pool.players="),
        ("random", "'random' comes with the world"),
        ("callable:tests.play.test_versus:one", "is not a file; a candidate is a run, a checkpoint, or kind:path"),
    ],
)
def test_who_is_no_file_is_no_candidate(league: League, arena: GameRunner, source: str, message: str) -> None:
    refused(ConfigError, message, add_candidates, league, arena, [(None, source)])
    assert League.open(league.folder).members == {}


def test_who_cannot_act_in_the_world_does_not_join(league: League, tmp_path: Path) -> None:
    run = constant_run(tmp_path / "first", 2)
    stacked = GameRunner(NAME, {"length": 2, "frame_stack": 2})
    with pytest.raises(ConfigError, match=r"the agent does not fit the env: observation is .*, it knows"):
        add_candidates(league, stacked, [(None, str(run))])
    assert League.open(league.folder).members == {}


def test_the_best_checkpoint_and_one_that_explores(league: League, arena: GameRunner, tmp_path: Path) -> None:
    run = constant_run(tmp_path / "first", 2)
    with pytest.raises(ConfigError, match="holds no best checkpoint"):
        add_candidates(league, arena, [(None, {"player": str(run), "which": "best"})])
    shutil.copy2(run / "checkpoints" / "checkpoint_000000001000.pt", run / "checkpoints" / "best.pt")
    add_candidates(league, arena, [(None, {"player": str(run), "which": "best", "explore": True})])
    assert league.members["first"].id.startswith("best:")
    assert league.source("first") == {"player": str(league.folder / "players" / "first.pt"), "explore": True}


# -- Rules of a league: opponents, promotions, the matches played, and their effect on ratings -----------------------


def league_of(folder: Path, ratings: dict[str, float], kind: str = "commander") -> League:
    """Returns a league of members with these ratings, all equally certain."""
    state = Glicko2(anchors={"low": 1000.0}).state_dict()
    players = {name: {**Rating(value, 50.0)._asdict(), "games": 9} for name, value in ratings.items()}
    league = League.create(folder, WORLD, ratings_from({**state, "players": players}))
    with league.changing():
        for name in ratings:
            named = f"Iron {name} #0000" if kind == "commander" else None
            league.admit(LeagueMember(name, name, "2026-01-01T00:00:00Z", kind, f"{name}:1:1", commander_name=named))
    return league


def candidates(league: League, *names: str) -> None:
    with league.changing():
        for name in names:
            league.admit(LeagueMember(name, name, "2026-01-02T00:00:00Z", "candidate", f"{name}:1:1"))


class Judge(GameRunner):
    """An arena in which every player names the number in its name, and which records its calls."""

    def __init__(self, num_worlds: int = 128) -> None:
        super().__init__(NAME, {"length": 2}, num_worlds)
        self.calls: list[tuple[list[tuple[str, str]], int]] = []

    def add(self, source: Any, name: str | None = None) -> str:
        called = name or str(source)
        number = {"low": 0, "high": 2, "random": 0}.get(called) if not called[-1].isdigit() else int(called[-1])
        return super().add(Watching(called, number))

    def play(self, schedule: Sequence[tuple[str, str]], seed: int = 0, *more: Any) -> list[GameResult]:  # type: ignore[override]
        self.calls.append((list(schedule), seed))
        return super().play(schedule, seed, *more)


# -- commanders --------------------------------------------------------------------------------------------------


def test_names_of_commanders_are_found_from_the_file_and_differ() -> None:
    names = [commander_name(f"checkpoint_{number}:100:200") for number in range(300)]
    assert all(re.fullmatch(r"[A-Z][a-z]+ [A-Z][a-z]+ #[0-9a-f]{4}", name) for name in names)
    assert len(set(names)) == 300
    assert commander_name("checkpoint_7:100:200") == names[7]
    longer = commander_name("checkpoint_7:100:200", {names[7]})
    assert longer.startswith(names[7]) and len(longer) == len(names[7]) + 1


def test_the_pool_is_the_best_commanders_and_the_newest_candidates(tmp_path: Path) -> None:
    league = league_of(tmp_path, {f"c{number}": 1500.0 + number for number in range(25)})
    candidates(league, *(f"n{number}" for number in range(7)))
    league.join("low", "low")
    best = [f"c{number}" for number in range(24, 4, -1)]
    assert pool(league, PoolConfig()) == [*best, "n6", "n5", "n4", "n3", "n2"]
    assert pool(league, PoolConfig(), but="c24") == [*best[1:], "c4", "n6", "n5", "n4", "n3", "n2"]
    assert pool(league, PoolConfig(commanders=1, candidates=0)) == ["c24"]
    unsure = league.ratings
    unsure._players["c24"] = unsure._players["c24"]._replace(deviation=60.0)  # 1524 - 120, below 1519 - 100
    assert "c24" not in pool(league, PoolConfig(commanders=5))


def test_a_candidate_is_promoted_within_the_best_and_never_loses_it(tmp_path: Path) -> None:
    league = league_of(tmp_path, {"c0": 1600.0, "c1": 1500.0})
    candidates(league, "n0", "n1", "n2")
    for name, rating in (("n0", 1500.0), ("n1", 1501.0), ("n2", 1400.0)):
        league.ratings._players[name] = Rating(rating, 50.0)
    rules = PoolConfig(commanders=2)
    assert promote(league, "n0", rules).kind == "candidate"  # behind a commander of the same rating: third
    assert promote(league, "n1", rules).kind == "commander"
    assert [league.members[name].kind for name in ("c0", "c1", "n1")] == ["commander"] * 3  # c1 stays one
    assert promote(league, "n2", PoolConfig(commanders=3)).kind == "candidate"
    assert promote(league, "n2", PoolConfig(commanders=4)).commander_name == commander_name("n2:1:1")
    assert promote(league, "c1", PoolConfig(commanders=1)).commander_name == "Iron c1 #0000"


def test_rivals_are_drawn_evenly_or_by_strength(tmp_path: Path) -> None:
    league = league_of(tmp_path, {"me": 1500.0, "weak": 1100.0, "even": 1500.0, "strong": 1900.0})
    rivals = ["weak", "even", "strong"]
    assert weights(league, PoolConfig(), "me", rivals).tolist() == pytest.approx([1 / 3] * 3)
    weak, even, strong = weights(league, PoolConfig(sampler="pfsp"), "me", rivals).tolist()
    assert weak < even < strong and weak + even + strong == pytest.approx(1)
    # 30 lost games against the weak one tell more than the ratings.
    league.games = [GameResult("weak", "me", 1.0, 0.0, 2)] * 30
    again = weights(league, PoolConfig(sampler="pfsp"), "me", rivals).tolist()
    assert again[0] > again[1] and again[0] > again[2]
    with pytest.raises(ConfigError, match=r"pool\..*|sampler: no option 'pfps', did you mean 'pfsp'"):
        build(PoolConfig, {"sampler": "pfps"}, "pool")
    refused(ConfigError, r"pool.commanders: 0 is outside", build, PoolConfig, {"commanders": 0}, "pool")


def test_players_that_are_always_met_become_members_once(tmp_path: Path) -> None:
    league = league_of(tmp_path, {"c1": 1500.0})
    assert join_fixed(league, PoolConfig(players=["low", "low", "c1"])) == ["low", "c1"]
    assert league.members["low"].kind == "player" and league.members["c1"].kind == "commander"
    assert pool(league, PoolConfig()) == ["c1"]


# -- matches -----------------------------------------------------------------------------------------------------


def test_sides_alternate_and_each_match_draws_its_rival_by_its_own_seed(tmp_path: Path) -> None:
    league = league_of(tmp_path, {"me": 1500.0, "a": 1500.0, "b": 1500.0, "c": 1500.0})
    ten = matches(league, PoolConfig(), "me", ["a", "b", "c"], range(10), seed=3)
    assert [pair.index("me") for pair in ten] == [0, 1] * 5
    assert len({name for pair in ten for name in pair}) == 4
    assert matches(league, PoolConfig(), "me", ["a", "b", "c"], range(4, 10), seed=3) == ten[4:]
    assert matches(league, PoolConfig(), "me", ["a", "b", "c"], [0], seed=3 + 9973 * 4) == ten[4:5]


def test_an_evaluation_is_one_rating_period_from_the_ratings_before_it(tmp_path: Path) -> None:
    league = league_of(tmp_path, {"c1": 1600.0, "c0": 1400.0, "idle": 1300.0})
    candidates(league, "n1")
    before = {name: league.ratings.whole(name) for name in league.members}
    verdict = evaluate(league, Judge(), "n1", PoolConfig(commanders=2), games=10)
    assert verdict is not None and "against a pool of 2, rating 1500 -> " in verdict and len(league.games) == 10
    scores = [("c1" if "c1" in game[:2] else "c0", game.seen_by("n1").score) for game in league.games]
    assert set(scores) == {("c1", 0.5), ("c0", 1.0)}  # who names the same number draws
    assert league.ratings.whole("n1") == rate(before["n1"], [(before[rival], score) for rival, score in scores])
    # Both phases: the rivals, too, are rated by the candidate as it was before.
    for rival in ("c0", "c1"):
        theirs = [(before["n1"], 1.0 - score) for name, score in scores if name == rival]
        assert league.ratings.whole(rival) == rate(before[rival], theirs)
    assert league.ratings.whole("idle") == before["idle"]._replace(deviation=pytest.approx(51.07, abs=0.01))  # of 50
    assert League.open(tmp_path).ratings.state_dict() == league.ratings.state_dict()


def test_match_i_has_the_seed_of_its_number(tmp_path: Path) -> None:
    league = league_of(tmp_path, {"c1": 1600.0})
    candidates(league, "n2")
    for worlds, numbers in ((1, [0, 1, 2]), (2, [3, 5])):  # the second evaluation goes on with numbers
        arena = Judge(worlds)
        evaluate(league, arena, "n2", PoolConfig(), games=3, seed=7)
        assert [seed for _, seed in arena.calls] == [7 + 9973 * number for number in numbers]
    assert league.members["n2"].matches == 6
    assert [game.first for game in league.games] == ["n2", "c1"] * 3
    assert all(game.seen_by("n2").score == 1.0 for game in league.games)


def test_the_first_candidate_meets_a_random_player_and_the_next_meets_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    league = League.create(tmp_path, WORLD, Glicko2())
    candidates(league, "n1")
    arena = Judge()
    evaluate_all(league, arena, to_evaluate(league, None), PoolConfig(), games=4, seed=0)
    assert league.members["n1"].kind == "commander" and league.between("n1", "random") == 4
    assert league.ratings.rating("n1") > 1500 > league.ratings.rating("random")
    candidates(league, "n0")
    evaluate_all(league, arena, to_evaluate(league, None), PoolConfig(commanders=1), games=4, seed=0)
    assert league.members["n0"].kind == "candidate" and league.members["n0"].matches == 4
    assert to_evaluate(league, None) == []
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("n1: 4-0-0 (won-drawn-lost) against a pool of 1, rating 1500 -> ")
    assert first.endswith(f"; now commander {league.members['n1'].commander_name}")
    assert second.startswith("n0: 0-0-4 (won-drawn-lost) against a pool of 1, rating 1500 -> ")


def test_the_worlds_own_players_are_met_where_they_are_named(tmp_path: Path) -> None:
    league = League.create(tmp_path, WORLD, Elo(anchors={"low": 1000.0}))
    candidates(league, "n1")
    evaluate_all(league, Judge(), ["n1"], PoolConfig(players=["low", "high"]), games=20, seed=1)
    assert {name for game in league.games for name in game[:2]} == {"n1", "low", "high"}
    assert league.ratings.rating("low") == 1000 and league.ratings.state_dict()["players"]["n1"]["games"] == 20
    assert [member.kind for member in league.members.values()] == ["commander", "player", "player"]


def test_games_that_another_process_has_played_meanwhile_do_not_count_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    league = league_of(tmp_path, {"c1": 1600.0})
    candidates(league, "n2")

    class Late(Judge):
        def play(self, *arguments: Any, **more: Any) -> list[GameResult]:
            assert evaluate(League.open(tmp_path), Judge(), "n2", PoolConfig(), games=2) is not None
            return super().play(*arguments, **more)

    evaluate_all(league, Late(), ["n2"], PoolConfig(), games=2, seed=0)
    assert "n2: another process has evaluated it meanwhile, and that result counts" in capsys.readouterr().out
    assert len(League.open(tmp_path).games) == 2


def test_only_candidates_and_commanders_are_evaluated(tmp_path: Path) -> None:
    league = league_of(tmp_path, {"c1": 1600.0})
    league.join("low", "low")
    assert to_evaluate(league, ["c1", "c1"]) == ["c1"]
    refused(ConfigError, r"'c2' is not in the league in .*, which has c1, low", to_evaluate, league, ["c2"])
    with pytest.raises(ConfigError, match="'low' is not a candidate; 'league add' makes a file a candidate"):
        to_evaluate(league, ["low"])
