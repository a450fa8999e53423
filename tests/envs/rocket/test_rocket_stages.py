"""A curriculum of teams changes how many cars take part, up to the number of cars of the world."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from rlstack import envs
from rlstack.config import ConfigError, build, load_group
from rlstack.envs.rocket.env import Rocket
from rlstack.training.curriculum import Curriculum
from rlstack.training.stages import CurriculumConfig

TEAMS = {(1, 1): [True, False, True, False], (1, 2): [True, False, True, True], (2, 2): [True, True, True, True]}


def two_a_side(worlds: int = 3, **options: float) -> Rocket:
    return Rocket(num_worlds=worlds, blue=2, orange=2, observation="compact", **options)  # type: ignore[arg-type]


def random_step(env: Rocket, root: TensorDict) -> tuple[TensorDict, TensorDict]:
    stepped, root = env.step_and_maybe_reset(env.rand_action(root))
    return stepped, root


@pytest.mark.parametrize(
    ("teams", "ladder"),
    [
        ((1, 1), []),
        ((2, 2), [(1, 1), (1, 2), (2, 2)]),
        ((1, 2), [(1, 1), (1, 2)]),
        ((2, 1), [(1, 1), (2, 1)]),
        ((3, 3), [(1, 1), (1, 2), (2, 2), (2, 3), (3, 3)]),
    ],
)
def test_teams_grow_up_to_those_of_the_options(teams: tuple[int, int], ladder: list[tuple[int, int]]) -> None:
    env = Rocket(num_worlds=1, blue=teams[0], orange=teams[1])
    assert env.num_stages == len(ladder)
    for stage, (blue, orange) in enumerate(ladder):
        env.set_stage(stage)
        active = env.reset()["agents", "active"][0]
        half = len(active) // 2
        assert (int(active[:half].sum()), int(active[half:].sum())) == (blue, orange)
        assert half == max(teams)


def test_a_stage_is_for_new_episodes_and_the_absent_are_ignored() -> None:
    env = two_a_side(worlds=2, max_seconds=0.04, tick_skip=1)  # five steps
    root = env.reset()
    assert root["agents", "active"].all()  # as the options say, until a stage is set
    env.set_stage(0)
    stepped, root = random_step(env, root)
    assert stepped["next", "agents", "active"].all()  # the episode goes on as it began
    for _ in range(4):
        stepped, root = random_step(env, root)
    assert stepped["next", "done"].all()
    assert root["agents", "active"].tolist() == [TEAMS[1, 1]] * 2
    stepped, root = random_step(env, root)
    following = stepped["next", "agents"]
    assert not following["reward"][:, [1, 3]].any() and following["done"][:, [1, 3]].all()
    # The mean over blue's cars is that of the one that is there.
    torch.testing.assert_close(stepped["next", "episode", "return"], following["reward"][:, 0])


def test_a_world_between_two_stages_has_matches_of_both() -> None:
    env = two_a_side(worlds=2, tick_skip=1)
    env.set_stage(0)
    root = env.reset()
    env.set_stage(1)
    root = env.reset(root.set("_reset", torch.tensor([[False], [True]])))
    assert root["agents", "active"].tolist() == [TEAMS[1, 1], TEAMS[1, 2]]
    stepped, _ = random_step(env, root)
    assert stepped["next", "agents", "active"].tolist() == [TEAMS[1, 1], TEAMS[1, 2]]


def test_the_shipped_curriculum_goes_by_wins_and_by_time() -> None:
    env = two_a_side(worlds=1)
    course = Curriculum(build(CurriculumConfig, load_group("curriculum", "rocket")), env)
    assert env.reset()["agents", "active"].tolist() == [TEAMS[1, 1]]

    def episodes(count: int, success: float) -> None:
        names = list(env.observation_spec["episode"].keys())
        course._episodes.take({"columns": {name: [success] * count for name in names}, "count": count})

    episodes(99, 1.0)
    assert not course.check(150_000)  # a hundred matches are needed
    episodes(1, 1.0)
    assert not course.check(90_000)  # and some time in the stage
    assert course.check(150_000) and env.reset()["agents", "active"].tolist() == [TEAMS[1, 2]]
    episodes(200, 0.5)
    assert not course.check(1_649_999)
    assert course.check(1_650_000) and env.reset()["agents", "active"].tolist() == [TEAMS[2, 2]]
    assert not course.check(9_000_000)  # the last stage does not end


def test_a_curriculum_takes_the_stages_that_the_world_has_room_for() -> None:
    def shipped(blue: int, orange: int) -> Curriculum:
        config = build(CurriculumConfig, load_group("curriculum", "rocket"), "curriculum")
        return Curriculum(config, Rocket(num_worlds=1, blue=blue, orange=orange, observation="compact"))

    whole = shipped(3, 3)
    assert [stage.name for stage in whole.config.stages] == ["1v1", "1v2", "2v2", "2v3", "3v3"] and whole.notes() == []
    for frames in range(0, 20_000_000, 500_000):
        whole.check(frames)
    assert whole.level == 4
    two = shipped(2, 2)
    assert [stage.name for stage in two.config.stages] == ["1v1", "1v2", "2v2"]
    assert two.notes() == ["curriculum: 2v3, 3v3 left out, the world is too small for them"]
    other = shipped(1, 3)
    assert other.config.levels == [0, 1]
    assert other.notes()[1] == "curriculum: ends with 1v2; stages of the world that it leaves unused: 1v3"
    with pytest.raises(ConfigError, match=r"none of the world's stages is called 4v4; they are 1v1, 1v2, 2v2"):
        mapping = {"window": 1, "forget": True, "named": True, "stages": [{"name": "4v4"}]}
        Curriculum(build(CurriculumConfig, mapping, "curriculum"), two_a_side(worlds=1))


def test_a_team_size_is_that_of_both_teams() -> None:
    assert envs.make("rocket", num_worlds=2, team_size=3).reset()["agents", "observation"].shape[:2] == (2, 6)
