"""Curricula: the published decisions, every kind of rule, worlds that follow, and runs that resume within one."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torchrl.data import Composite, Unbounded

from rlstack import envs
from rlstack.adapters.arena.agents import COLUMNS, curriculum_from_published, curriculum_to_published
from rlstack.config import ConfigError, build, load_group
from rlstack.envs.world import WorldHooks
from rlstack.training.config import TrainConfig
from rlstack.training.curriculum import Curriculum, save_curriculum
from rlstack.training.loggers import read_metrics
from rlstack.training.preflight import check_buildable, few_worlds
from rlstack.training.stages import CurriculumConfig, parse_rule
from tests.conftest import REPO
from tests.exhaustive import exhaustive, recordings
from tests.refusals import refused
from tests.small_run import SMALL_RUN, begun, composed, logged

STATISTICS = ("return", "length", "success", "spawners", "enemies", "damage_dealt", "damage_taken")


class Stages(WorldHooks):
    """The parts of a world that a curriculum needs; it records the stages that it was set to."""

    def __init__(self, num_stages: int = 6, statistics: tuple[str, ...] = STATISTICS, worlds: int = 2) -> None:
        self.num_stages, self.entered, self.batch_size = num_stages, [], torch.Size([worlds])
        episode = Composite({name: Unbounded((worlds, 1)) for name in statistics}, shape=(worlds,))
        self.observation_spec = Composite({"episode": episode}, shape=(worlds,))

    def set_stage(self, stage: int) -> None:
        self.entered.append(stage)


def curriculum(world: Any = None, name: str | None = None, **config: Any) -> Curriculum:
    mapping = load_group("curriculum", name) if name else {"window": 4, "forget": True, **config}
    return Curriculum(build(CurriculumConfig, mapping, "curriculum"), Stages() if world is None else world)


def two_stages(rule: Any, **config: Any) -> Any:
    return curriculum(stages=[{"name": "first", "advance": rule}, {"name": "second"}], **config)


def episodes(**columns: list[float]) -> dict[str, list[float]]:
    """Returns statistics of finished episodes: the given columns, and zeros in all others."""
    count = len(next(iter(columns.values())))
    return {name: columns.get(name, [0.0] * count) for name in STATISTICS}


def add(course: Curriculum, columns: dict[str, list[float]]) -> None:
    """Adds finished episodes by statistic, oldest first."""
    (count,) = {len(values) for values in columns.values()}
    course._episodes.take({"columns": columns, "count": count})


# -- the published decisions -------------------------------------------------------------------------------------


@recordings("arena_training/curriculum_1.npz", "golden/arena/training/curriculum_*.npz", least=3)
def test_recorded_decisions(path: Path) -> None:
    """Compares stage by stage, and the state at the end."""
    with np.load(path, allow_pickle=False) as file:
        recorded = dict(file.items())
    names = {"win": "success", "spawner_kills": "spawners", "enemy_kills": "enemies"}
    columns = [names.get(name, name) for name in str(recorded["columns"]).split(",")]
    assert set(columns) < set(STATISTICS)
    world = Stages()
    course, stages = curriculum(world, "arena"), []
    for number, row in enumerate(recorded["episodes"]):
        add(course, {"return": [0.0]} | {name: [value] for name, value in zip(columns, row.tolist())})
        course.check(number)
        stages.append(course.stage)
    assert stages == recorded["stage_after"].tolist()
    assert world.entered == list(range(max(stages) + 1)), "no stage is left out"
    theirs, ours = json.loads(str(recorded["final_state"])), curriculum_to_published(course.state_dict())
    assert ours["curriculum_stage_index"] == theirs["current_stage_index"]
    for name, values in theirs["metrics"].items():
        if name != "episode_rewards":  # which the recording does not tell of each episode
            assert ours["curriculum_metrics"][name] == values, name
    assert not path.is_relative_to(REPO) or course.stage == 5, "all stages are passed"


def test_a_published_state_goes_on() -> None:
    course, twin = (curriculum(name="arena") for _ in range(2))
    add(course, episodes(spawners=[1.0] * 60, length=[700.0] * 60, success=[0.0, 1.0] * 30))
    assert course.check(10) and course.stage == 1
    published = json.loads(json.dumps(curriculum_to_published(course.state_dict())))
    metrics = published["curriculum_metrics"]
    assert set(metrics) == {*COLUMNS, "win_times"} and metrics["win_times"] == [700.0] * 30
    twin.load_state_dict(curriculum_from_published(published, begun=10))
    assert twin.state_dict() == course.state_dict()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"curriculum_metrics": None}, "curriculum_metrics: expected a mapping"),
        ({"curriculum_stage_index": "1"}, "curriculum_stage_index: expected a whole number such as 64 or 1e6, got '1'"),
        ({"curriculum_stage_index": -1}, "curriculum_stage_index: -1 is outside"),
        ({"curriculum_metrics": {"wins": "no"}}, "curriculum_metrics.spawner_kills: expected a list"),
    ],
)
def test_a_state_of_something_else(change: dict[str, Any], message: str) -> None:
    entries = curriculum_to_published(curriculum(name="arena").state_dict()) | change
    refused(ConfigError, f"not the state of a curriculum: {message}", curriculum_from_published, entries)


# -- rules -------------------------------------------------------------------------------------------------------

KILLS = {"episodes": 3, "spawners": {"min": 0.3}}
WINS = {"episodes": 5, "success": {"min": 0.2}}


@pytest.mark.parametrize(
    ("rule", "means", "count", "holds"),
    [
        (KILLS, {"spawners": 0.3}, 3, True),
        (KILLS, {"spawners": 0.29}, 9, False),
        (KILLS, {"spawners": 1.0}, 2, False),
        ({"length": {"min": 10, "max": 20}}, {"length": 20.0}, 7, True),
        ({"length": {"min": 10, "max": 20}}, {"length": 20.1}, 7, False),
        ({"length": {"min": 10, "max": 20}}, {"length": 15.0}, 6, False),  # it waits for the window, 7
        ({"length": {"max": 20}}, {"length": float("nan")}, 7, False),
        ({"any": [KILLS, WINS]}, {"spawners": 1.0, "success": 0.0}, 4, True),
        ({"any": [KILLS, WINS]}, {"spawners": 0.0, "success": 1.0}, 4, False),
        ({"all": [KILLS, WINS]}, {"spawners": 1.0, "success": 1.0}, 4, False),
        ({"all": [KILLS, WINS]}, {"spawners": 1.0, "success": 1.0}, 5, True),
        ({"all": [KILLS, WINS]}, {"spawners": 1.0, "success": 0.0}, 5, False),
        ({"any": [WINS, {"all": [KILLS, {"frames": {"min": 9}}]}]}, {"spawners": 1, "frames": 9}, 3, True),
        ({"stage_frames": {"min": 100}}, {"stage_frames": 100}, 0, True),
    ],
)
def test_rules(rule: Any, means: dict[str, float], count: int, holds: bool) -> None:
    assert parse_rule(rule, "rule", window=7).holds(count, means.__getitem__) == holds


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({}, "rule: expected a mapping of metrics to bounds"),
        ([1], "rule: expected a mapping"),
        ({"length": 3}, r"rule.length: expected \{min: ...\}"),
        ({"length": {"least": 3}}, "rule.length.least: unknown key"),
        ({"length": {"min": "3"}}, "rule.length.min: expected a number, got '3'"),
        ({"length": {"min": 3, "max": 2}}, "rule.length: min 3 is above max 2"),
        ({"episodes": -1, "length": {"min": 3}}, "rule.episodes: expected a number of episodes"),
        ({"any": []}, "rule.any: expected a list of rules"),
        ({"any": [KILLS], "length": {"min": 3}}, "rule: 'any' stands alone"),
        ({"all": [KILLS, {"length": 3}]}, r"rule.all\[1\].length: expected"),
    ],
)
def test_rules_that_are_none(rule: Any, message: str) -> None:
    refused(ConfigError, message, parse_rule, rule, "rule", window=7)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stages": []}, "curriculum: stages: a curriculum has at least one stage"),
        ({"stages": [{"name": "a"}, {"name": "b"}]}, r"curriculum.stages\[0\].advance: missing"),
        ({"stages": [{"name": "a", "advance": KILLS}]}, r"curriculum.stages\[0\].advance: the last stage does not end"),
        ({"stages": [{"name": "a", "advance": KILLS}, {"name": "b"}], "advance": KILLS}, "advance: has no effect, s"),
        ({"stages": [{"name": "a", "level": 6}]}, r"curriculum.stages\[0\]: Stages has 6 stages, level 6 is none"),
        ({"stages": [{"name": "a", "advance": {"wins": {"min": 1}}}, {"name": "b"}]}, "no metric 'wins' .*allowed: ep"),
        ({"stages": [{"name": "a", "advance": {"sucess": {"min": 1}}}, {"name": "b"}]}, "did you mean 'success'"),
        ({"window": 0}, "curriculum.window: 0 is outside"),
        ({"stages": [{"name": "a", "opponents": []}]}, r"curriculum.stages\[0\]: opponents: \[\] names nobody"),
        ({"stages": [{"name": "a", "opponents": ["rule"]}]}, "for opponents of stages set env.opponents, such as"),
        ({"speed": 1}, "curriculum.speed: unknown key"),
    ],
)
def test_curricula_that_are_none(change: dict[str, Any], message: str) -> None:
    refused(ConfigError, message, curriculum, **{"stages": [{"name": "a"}], **change})


def test_means_of_successes_need_one() -> None:
    course = two_stages({"episodes": 2, "length_if_success": {"max": 100}})
    add(course, episodes(length=[10.0, 20.0], success=[0.0, 0.0]))
    assert not course.check(1)
    add(course, episodes(length=[90.0], success=[1.0]))
    assert course.check(2), "slower episodes that were lost do not count"
    with pytest.raises(ConfigError, match="no metric 'length_if_success' in this world, did you mean"):
        curriculum(
            Stages(statistics=("length", "successes")),
            stages=[{"name": "a", "advance": {"length_if_success": {"max": 1}}}, {"name": "b"}],
        )


def test_only_the_window_counts() -> None:
    course = two_stages({"success": {"min": 1.0}}, window=3)
    for won, passed in ((0, False), (1, False), (1, False), (1, True)):
        add(course, episodes(success=[float(won)]))
        assert course.check(1) == passed


@pytest.mark.parametrize("forget", [True, False])
def test_one_stage_a_check_by_its_own_or_by_all_episodes(forget: bool) -> None:
    world, rule = Stages(), {"episodes": 2, "success": {"min": 0.5}}
    course = curriculum(world, forget=forget, advance=rule, stages=[{"name": str(k)} for k in range(4)])
    add(course, episodes(success=[1.0, 1.0]))
    found = [course.check(frames) for frames in range(4)]
    assert found == ([True, False, False, False] if forget else [True, True, True, False])
    assert world.entered == list(range(1 + sum(found)))


def test_stages_of_the_world_that_are_not_used_are_told() -> None:
    course = curriculum(
        stages=[{"name": "a", "advance": {"frames": {"min": 9}}, "level": 1}, {"name": "b", "level": 3}]
    )
    assert course.notes() == ["curriculum: ends with b; stages of the world that it leaves unused: 0, 2, 4, 5"]
    assert curriculum(name="arena").notes() == []


def test_frames_alone_can_lead() -> None:
    """A schedule of frames is one kind of rule among others."""
    world = Stages()
    stages = [{"name": str(k), "advance": {"frames": {"min": 1000 * (k + 1)}}, "level": 2 * k} for k in range(2)]
    course = curriculum(world, stages=[*stages, {"name": "last", "level": 5}])
    reached = {frames: (course.check(frames), course.stage)[1] for frames in range(0, 3001, 500)}
    assert reached == {0: 0, 500: 0, 1000: 1, 1500: 1, 2000: 2, 2500: 2, 3000: 2}
    assert world.entered == [0, 2, 5]
    by_stage = curriculum(advance={"stage_frames": {"min": 1000}}, stages=[{"name": str(k)} for k in range(3)])
    assert [by_stage.check(frames) for frames in (900, 1100, 2000, 2100)] == [False, True, False, True]


@pytest.mark.slow
def test_what_a_stage_of_the_arena_asks_for_is_told_by_the_game() -> None:
    env: Any = envs.make("arena", num_worlds=24, style=2, max_steps=250)
    second = load_group("curriculum", "arena")["stages"][1]["advance"]
    assert set(second) <= {"episodes", *env.observation_spec["episode"].keys()}
    asked = {"episodes": 24, "damage_dealt": {"min": 1}, "damage_taken": {"min": 1}}
    stages = [{"name": "first", "advance": asked}, {"name": "second"}]
    course = Curriculum(build(CurriculumConfig, {"window": 24, "forget": True, "stages": stages}), env)
    course.observe(env.rollout(250, break_when_any_done=False))
    assert course.check(1) and env.stage == 1


# -- from batches ------------------------------------------------------------------------------------------------


def batch(done: list[list[bool]], success: list[list[float]]) -> TensorDict:
    """Returns the stages ``[W, T]``."""
    shape = (len(done), len(done[0]))
    columns = {name: torch.zeros(*shape, 1) for name in STATISTICS} | {"success": torch.tensor(success)[..., None]}
    following = {"done": torch.tensor(done)[..., None], "episode": columns}
    return TensorDict({"next": following}, list(shape))


def test_episodes_are_taken_in_the_order_of_time() -> None:
    course = two_stages({"episodes": 1, "success": {"min": 9.0}}, window=10)
    course.observe(batch([[True, False, True], [False, True, True]], [[1, 99, 3], [99, 2, 4]]))
    assert course.state_dict()["episodes"]["columns"]["success"] == [1.0, 2.0, 3.0, 4.0]
    course.observe(batch([[False], [False]], [[99], [99]]))
    assert course.state_dict()["episodes"]["count"] == 4
    course.observe(batch([[True], [False]], [[5], [99]]), lambda own: [own, own])
    assert course.state_dict()["episodes"]["columns"]["success"] == [1.0, 2.0, 3.0, 4.0, 5.0, 5.0], "of two processes"


def test_with_forget_only_episodes_that_began_in_the_stage_count() -> None:
    """Also after a checkpoint, and in a world whose first episode ends later than others' second."""
    stages = [{"name": str(k)} for k in range(3)]
    course, twin = (curriculum(advance={"episodes": 2, "success": {"min": 1.0}}, stages=stages) for _ in range(2))
    course.observe(batch([[True, False], [True, False]], [[1, 0], [1, 0]]))
    assert course.check(1) and len(course._episodes) == 0
    course.observe(batch([[True, True], [False, False]], [[1, 0], [0, 0]]))  # the first began in the stage before
    assert course.state_dict()["episodes"]["columns"]["success"] == [0.0]
    every = curriculum(advance={"episodes": 2, "success": {"min": 1.0}}, stages=stages, forget=False)
    every.observe(batch([[True], [True]], [[1], [1]]))
    assert every.check(1)
    every.observe(batch([[True], [False]], [[1], [0]]))
    assert every.state_dict()["episodes"]["columns"]["success"] == [1.0, 1.0, 1.0]
    twin.load_state_dict(course.state_dict())
    for each in (course, twin):
        each.observe(batch([[False, True], [True, True]], [[0, 1], [1, 1]]))
        assert each.state_dict()["episodes"]["columns"]["success"] == [0.0, 1.0, 1.0]


def test_what_is_told() -> None:
    course = two_stages({"episodes": 2, "success": {"min": 0.5}, "length_if_success": {"max": 9}})
    assert course.metrics() == {"curriculum/stage": 0.0}
    add(course, episodes(success=[1.0, 0.0], length=[8.0, 99.0]))
    told = {"curriculum/stage": 0.0, "curriculum/success": 0.5, "curriculum/length_if_success": 8.0}
    assert course.metrics() == told and str(course) == "stage 1 of 2, first"
    assert course.check(1)
    assert str(course) == "stage 2 of 2, second (success 0.5, length_if_success 8)"
    assert course.metrics() == {"curriculum/stage": 1.0}


# -- worlds ------------------------------------------------------------------------------------------------------

LEVELS = {"num_robots": [1, 2], "num_cores": [0, 0], "num_obstacles": [0, 1], "min_start_goal_dis": [10.0, 20.0]}


def levels_of(env: Any, steps: int = 12) -> set[float]:
    """Returns the levels of the episodes that end within some steps."""
    return set(env.rollout(steps, break_when_any_done=False)["next", "episode", "level"].flatten().tolist())


@exhaustive("repeats", [1, 2])
def test_marinenav_follows(repeats: int) -> None:
    """All worlds change at once, also behind a wrapper."""
    options = {"curriculum": {"timesteps": None, **LEVELS}, "max_steps": 4, "action_repeat": repeats}
    env: Any = envs.make("marinenav", num_worlds=40, **options)
    assert env.num_stages == 2 and levels_of(env) == {0.0, 1.0}
    for stage in (1, 0):
        before = env.generator.get_state()
        env.set_stage(stage)
        assert torch.equal(env.generator.get_state(), before)
        env.rollout(5, break_when_any_done=False)  # what was under way ends
        assert levels_of(env) == {float(stage)}
    refused(ValueError, "has no stage 2: it has 2, the first is 0", env.set_stage, 2)


def test_worlds_without_stages_say_so() -> None:
    fixed = envs.make("marinenav", num_worlds=1, curriculum={"timesteps": [0, 10], **LEVELS})
    for env in (fixed, envs.make("gymnasium", id="CartPole-v1", num_envs=1)):
        with pytest.raises(ConfigError, match=r"curriculum: .* has no stages as it is configured"):
            curriculum(env, stages=[{"name": "a"}])
        refused(ValueError, "has no stage 0: it has none", env.set_stage, 0)  # type: ignore[attr-defined]


# -- runs --------------------------------------------------------------------------------------------------------

RUN = [
    *[option for option in SMALL_RUN if not option.startswith("agent.")],
    *("agent=ppo", "agent.minibatch_size=64", "agent.epochs=1", "agent.steps_per_batch=8"),
    *("env.num_worlds=2", "env.max_steps=10", "total_frames=500", "eval.every=500", "log_every=50"),
    *("checkpoint.every=500", "curriculum.window=30"),
]
RULE = "{any: [{stage_frames: {min: 110}}, {success: {min: 0.9}}]}"
STAGES = ",".join(f"{{name: s{k}, advance: {RULE}}}" for k in range(5))
WORLDS = {
    "marinenav": ["env=marinenav", "curriculum=marinenav", f"curriculum.advance={RULE}"],
    "arena": ["env=arena", "env.style=2", "curriculum=arena", f"curriculum.stages=[{STAGES},{{name: last}}]"],
}


def plain_config(world: str, *overrides: str) -> dict[str, Any]:
    return composed(*WORLDS[world], *RUN, *overrides)


@exhaustive("world", WORLDS)
def test_a_run_climbs_and_tells(world: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    begun(run, plain_config(world)).execute()
    rows = read_metrics(run / "metrics.csv")
    stages = [(0.0, 0.0), *((row["frames"], row["curriculum/stage"]) for row in rows if "curriculum/stage" in row)]
    reached = [now for before, now in itertools.pairwise(stages) if now[1] != before[1]]
    assert len(reached) >= 3 and [stage for _, stage in reached] == [1.0 + k for k in range(len(reached))]
    frames = [0.0, *[frame for frame, _ in reached]]
    assert all(110 <= later - earlier < 220 for earlier, later in itertools.pairwise(frames))
    levels = [float(row["curriculum/level"]) for row in logged(run) if row.get("curriculum/level")]
    assert levels == sorted(levels) and (not levels or (levels[0] == 0 and levels[-1] >= 2))
    picture = save_curriculum(run, ["a", "b"])
    assert picture is not None and picture.read_bytes().startswith(b"\x89PNG")


def test_a_run_without_a_curriculum_has_no_picture(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("frames,train/return\n10,1.0\n")
    assert save_curriculum(tmp_path) is None and save_curriculum(tmp_path / "none") is None
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.csv"]


def test_a_curriculum_that_the_world_does_not_have_is_found_out_early() -> None:
    config = build(TrainConfig, plain_config("marinenav", "curriculum.stages=[{name: a, level: 9}]"))
    with few_worlds(config) as env, pytest.raises(ConfigError, match="MarineNav has 6 stages, level 9 is none"):
        check_buildable(config, env)


@pytest.mark.parametrize("name", ["arena", "echelon", "marinenav", "rocket"])
def test_every_key_of_a_curriculum_can_be_set_on_the_command_line(name: str) -> None:
    assert load_group("curriculum", name).keys() == CurriculumConfig.__dataclass_fields__.keys()
    config = build(CurriculumConfig, load_group("curriculum", name), "curriculum")
    assert len(config.rules()) == len(config.stages) - 1 == 5 or name not in ("arena", "marinenav")
