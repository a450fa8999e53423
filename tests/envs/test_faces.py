"""Single worlds as Gymnasium environments."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tensordict import TensorDict

from rlstack import envs
from rlstack.envs import FACES
from rlstack.envs.faces.gymnasium import SingleWorld, VectorWorld
from tests.exhaustive import exhaustive
from tests.refusals import refused
from tests.small_run import python

ARENA, MARINENAV, ROCKET, ECHELON = FACES


@exhaustive(
    ("name", "options"),
    [
        (ARENA, {"style": 2, "observation": "dict", "start_phases": [4]}),
        (MARINENAV, {"num_robots": 3, "others": "apf"}),
        (ROCKET, {"tick_skip": 1}),
        (ECHELON, {"others": "heuristic", "maps": 2}),
        ("cartpole", {}),
        (ARENA, {}),
        (ARENA, {"frame_stack": 2, "action_repeat": 4}),
        (MARINENAV, {}),
        (MARINENAV, {"continuous_actions": False, "num_cores": 2}),
    ],
    quick=5,
)
def test_gymnasium_finds_nothing_wrong(name: str, options: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", ".*Box observation space.*infinity", UserWarning)  # Rocket's and Echelon's
        env = gymnasium.make(name, **options) if name in FACES else SingleWorld(name)
        check_env(env.unwrapped, skip_render_check=name not in FACES)  # which needs a name
    env.close()


def test_it_plays_what_the_batched_world_plays() -> None:
    face = gymnasium.make(ARENA, style=2, max_steps=40)
    shown, info = face.reset(seed=3)
    batched: Any = envs.make("arena", num_worlds=1, style=2, max_steps=40)
    batched.set_seed(int(np.random.default_rng(3).integers(2**31)))
    root = batched.reset()
    assert np.array_equal(shown, root["observation"][0].numpy()) and info["length"] == 0
    for step in range(40):
        action = step % 6
        shown, reward, terminated, truncated, info = face.step(action)
        following = batched.step(root.set("action", torch.tensor([action])))["next"]
        assert np.array_equal(shown, following["observation"][0].numpy())
        assert reward == pytest.approx(float(following["reward"]))
        assert (terminated, truncated) == (False, step == 39)
        root = following.exclude("reward")
    assert info["length"] == 40 and info["is_success"] is False


def test_seeds_decide_and_without_one_episodes_differ() -> None:
    env = gymnasium.make(ARENA)
    first, _ = env.reset(seed=5)
    second, _ = env.reset()
    again, _ = env.reset(seed=5)
    after, _ = env.reset()
    assert np.array_equal(first, again) and np.array_equal(second, after) and not np.array_equal(first, second)
    other, _ = gymnasium.make(ARENA).reset()
    another, _ = gymnasium.make(ARENA).reset()
    assert not np.array_equal(other, another)


def test_the_world_of_one_robot_ends_with_it() -> None:
    env = gymnasium.make(MARINENAV, num_obstacles=0, min_start_goal_dis=5.0, max_steps=3)
    env.reset(seed=0)
    ends = [env.step(np.zeros(2, np.float32))[2:4] for _ in range(4)]
    assert ends == [(False, False)] * 3 + [(False, True)]  # the step after three is the time-out


def test_the_collision_of_others_truncates_an_episode() -> None:
    """A world that ends at the first collision does not say how it would have gone on for the others."""
    face = SingleWorld("marinenav", num_robots=3, num_obstacles=0, end_on_collision=True)
    face.reset(seed=1)
    places = torch.tensor([[10.0, 30.0, 30.0], [10.0, 30.0, 33.0]])  # two hulls of 2.8 m overlap
    face.world.worlds.pose[:2, :, 0] = places
    face.world.worlds.goal.fill_(50.0)
    *_, terminated, truncated, info = face.step(np.zeros(2, np.float32))
    assert info["collision"] == 1 and (terminated, truncated) == (False, True)


def test_exact_orders_of_the_others_are_repeated_like_actions() -> None:
    face = SingleWorld("echelon", others="heuristic", maps=2, action_repeat=2)
    face.reset(seed=1)
    inner = face.world.innermost
    exact = inner.sides().scripted["heuristic"](inner, torch.tensor([0])).exact[1]  # red's
    face.step(face.action_space.sample())
    torch.testing.assert_close(inner.orders[1, ..., 0], exact)


@pytest.mark.parametrize("name", [ARENA, MARINENAV])
def test_pictures_change_as_the_world_moves(name: str) -> None:
    env = gymnasium.make(name, render_mode="rgb_array")
    env.reset(seed=1)
    pictures = []
    for _ in range(3):
        pictures.append(np.asarray(env.render()))
        env.step(env.action_space.sample())
    assert all(picture.dtype == np.uint8 and picture.shape == pictures[0].shape for picture in pictures)
    assert pictures[0].shape[2] == 3 and not np.array_equal(pictures[0], pictures[2])
    without = gymnasium.make(name)
    without.reset()
    assert without.unwrapped.render() is None


@pytest.mark.parametrize(
    ("face", "world", "options", "message"),
    [
        (SingleWorld, "marinenav", {"others": "rule"}, "others: marinenav has no player 'rule', available: orca, apf"),
        (SingleWorld, "arena", {"styel": 2}, "did you mean 'style'"),
        (SingleWorld, "arena", {"render_mode": "ansi"}, "render_mode: 'ansi' is unknown"),
        (VectorWorld, "arena", {"autoreset_mode": "DISABLED"}, "'DISABLED' is unknown, allowed: NEXT_STEP and SAME"),
        (
            SingleWorld,
            "echelon",
            {"actions": "hybrid", "maps": 2},
            "actions: an action of several parts",
        ),
        (VectorWorld, "arena", {"output": "jax"}, "output: 'jax' is unknown, allowed: numpy, torch"),
        (VectorWorld, "arena", {"render_mode": "rgb_array"}, "render_mode: a vector draws nothing"),
    ],
)
def test_what_is_impossible_is_refused(face: Any, world: str, options: dict[str, Any], message: str) -> None:
    refused(ValueError, message, face, world, **options)


@pytest.mark.slow
def test_gymnasium_finds_them_by_itself() -> None:
    """Worker processes of other libraries do not import our packages first."""
    code = "import gymnasium; print(gymnasium.make('envs:rlstack/Arena-v0').reset(seed=0)[0].shape)"
    assert python("-c", code).stdout.strip() == "(32,)"


# --- vectors


@pytest.mark.parametrize(
    ("name", "options"), [(ARENA, {}), (MARINENAV, {}), (ROCKET, {"tick_skip": 1}), (ECHELON, {"maps": 2})]
)
def test_a_vector_keeps_to_its_spaces(name: str, options: dict[str, Any]) -> None:
    envs_ = gymnasium.make_vec(name, num_envs=3, **options)
    assert isinstance(envs_, gymnasium.vector.VectorEnv)
    shown, _ = envs_.reset(seed=1)
    assert shown in envs_.observation_space
    envs_.action_space.seed(0)
    for _ in range(3):
        shown, reward, terminated, truncated, _ = envs_.step(envs_.action_space.sample())
        assert shown in envs_.observation_space
        assert reward.shape == terminated.shape == truncated.shape == (3,)
        assert reward.dtype == np.float64 and terminated.dtype == truncated.dtype == np.bool_
    envs_.close()


def test_the_same_seeds_begin_the_same_episodes_of_a_vector() -> None:
    first, second = (gymnasium.make_vec(ARENA, num_envs=3) for _ in range(2))
    shown, _ = first.reset(seed=5)
    assert np.array_equal(shown, second.reset(seed=[5, 6, 7])[0])
    assert np.array_equal(shown, first.reset(seed=5)[0])
    assert np.array_equal(shown[1], gymnasium.make_vec(ARENA, num_envs=1).reset(seed=6)[0][0])


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP"])
def test_worlds_of_a_vector_begin_anew_as_gymnasium_has_it(mode: str) -> None:
    """Compared with Gymnasium's own vector of single worlds: flags, rewards and ends agree in all steps."""
    ours = VectorWorld("arena", 2, mode, max_steps=3)
    theirs = SyncVectorEnv([lambda: SingleWorld("arena", max_steps=3)] * 2, autoreset_mode=AutoresetMode[mode])
    ours.reset(seed=0)
    theirs.reset(seed=0)
    for step in range(9):
        action = np.array([step % 5, 1])
        _, reward, *flags, info = ours.step(action)
        _, other, *others, their_info = theirs.step(action)
        assert np.array_equal(flags, others), step
        assert (reward == 0).tolist() == (other == 0).tolist()
        assert ("final_obs" in info) == ("final_obs" in their_info)
        if "final_obs" in info:
            assert info["final_obs"].shape == (2, 32) and info["_final_obs"].all()
        if any(flags[1]):
            assert info["_statistics"].all() and info["statistics"]["l"].tolist() == [3, 3]


def test_returns_of_a_vector_are_those_of_its_rewards() -> None:
    vector = VectorWorld("cartpole", 8, seed=0)
    vector.reset(seed=0)
    vector.action_space.seed(0)
    total, seen = np.zeros(8), 0
    for _ in range(60):
        _, reward, terminated, truncated, info = vector.step(vector.action_space.sample())
        total += reward
        for index in np.flatnonzero(terminated | truncated):
            assert info["statistics"]["r"][index] == total[index] == info["statistics"]["l"][index]
            total[index], seen = 0, seen + 1
    assert seen > 8


def test_a_vector_of_tensors_holds_what_one_of_arrays_does() -> None:
    tensors, arrays_ = (VectorWorld("marinenav", 2, output=output, num_robots=1) for output in ("torch", "numpy"))
    shown, other = tensors.reset(seed=0)[0], arrays_.reset(seed=0)[0]
    assert torch.equal(shown["objects"], torch.from_numpy(other["objects"]))
    action = torch.ones(2, 2)
    assert torch.equal(tensors.step(action)[1], torch.from_numpy(arrays_.step(action.numpy())[1]))


def test_a_policy_drives_the_others() -> None:
    seen = []

    def still(root: Any) -> Any:
        seen.append(root["agents", "observation"].shape)
        return root.set(("agents", "action"), torch.zeros(2, 2, 8, dtype=torch.int64))

    vector = VectorWorld("rocket", 2, others=still)
    vector.reset(seed=0)
    vector.step(vector.action_space.sample())
    assert seen == [(2, 2, 180)]


def test_a_recurrent_policy_that_drives_the_others_remembers_until_the_episode_ends() -> None:
    remembered = []

    def counts(root: Any) -> Any:
        memory = root.get(("agents", "memory"), torch.zeros(2, 2, 1))
        remembered.append(memory[:, 1, 0].tolist())
        root["next"] = TensorDict({"agents": TensorDict({"memory": memory + 1}, [2, 2])}, [2])
        return root.set(("agents", "action"), torch.zeros(2, 2, 8, dtype=torch.int64))

    vector = VectorWorld("rocket", 2, "SAME_STEP", others=counts, max_seconds=0.2)  # three steps of 1/15 s
    vector.reset(seed=0)
    for _ in range(5):
        vector.step(vector.action_space.sample())
    assert remembered == [[0, 0], [1, 1], [2, 2], [0, 0], [1, 1]]


def test_the_first_mech_of_a_smaller_team_learns() -> None:
    face = SingleWorld("echelon", blue=1, red=1, maps=2, max_steps=4)
    shown, _ = face.reset(seed=1)
    assert face.world._current()["agents", "active"][0].nonzero()[:, 0].tolist() == [1, 6]  # a medium each
    assert shown[2] == 1 and list(shown[:4]) == [0, 0, 1, 0]  # its class
    ends = [face.step(face.action_space.sample())[2:4] for _ in range(4)]
    assert ends == [(False, False)] * 3 + [(False, True)]


def test_bots_of_the_world_may_play_the_other_side() -> None:
    vector = VectorWorld("echelon", 2, opponent="rush", maps=2, max_steps=3)
    vector.reset(seed=1)
    assert vector._learner.agents == 5
    for _ in range(3):
        *_, truncated, info = vector.step(vector.action_space.sample())
    assert truncated.all() and info["statistics"]["l"].tolist() == [3, 3]


# --- PettingZoo


@exhaustive("world", ["marinenav", "rocket", "echelon"])
def test_pettingzoo_finds_nothing_wrong(world: str) -> None:
    pytest.importorskip("pettingzoo")
    from pettingzoo.test import parallel_api_test, parallel_seed_test

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "Observation is not NumPy array", UserWarning)  # MarineNav's is a dict
        parallel_api_test(envs.parallel_env(world), num_cycles=10)
    parallel_seed_test(lambda: envs.parallel_env(world), num_cycles=5)


def test_robots_leave_when_they_are_done() -> None:
    pytest.importorskip("pettingzoo")
    world = envs.parallel_env("marinenav", num_robots=3, num_obstacles=4, max_steps=60)
    world.reset(seed=3)
    assert world.agents == ["agent_0", "agent_1", "agent_2"]
    seen = {3}
    while world.agents:
        before = set(world.agents)
        shown, _, terminated, truncated, _ = world.step({agent: np.ones(2, np.float32) for agent in world.agents})
        assert set(shown) == before
        gone = {agent for agent in before if terminated[agent] or truncated[agent]}
        assert set(world.agents) == before - gone
        seen.add(len(world.agents))
    assert 0 in seen


def test_a_world_of_one_agent_is_none_for_pettingzoo() -> None:
    pytest.importorskip("pettingzoo")
    refused(ValueError, "arena: a world of a single agent", envs.parallel_env, "arena")


# --- other libraries learn


def stable_baselines() -> tuple[Any, Any]:
    """Returns the library and our face for it."""
    sb3 = pytest.importorskip("stable_baselines3")
    from rlstack.envs.faces.stable_baselines3 import SB3World

    return sb3, SB3World


def test_stable_baselines_trains_on_a_batch() -> None:
    sb3, face = stable_baselines()
    model = sb3.PPO("MlpPolicy", face("arena", 8, max_steps=5), n_steps=8, batch_size=32, n_epochs=1, seed=0)
    model.learn(128)
    assert model.num_timesteps == 128 and {info["l"] for info in model.ep_info_buffer} == {5}


def test_stable_baselines_trains_on_a_vector_of_gymnasium() -> None:
    sb3, face = stable_baselines()
    vector = gymnasium.make_vec(MARINENAV, num_envs=4, autoreset_mode="SAME_STEP", max_steps=5)
    model = sb3.PPO("MultiInputPolicy", face(vector), n_steps=8, batch_size=32, n_epochs=1, seed=0)
    model.learn(64)
    assert model.num_timesteps == 64 and {info["l"] for info in model.ep_info_buffer} == {6}
    refused(ValueError, "Stable-Baselines3 needs SAME_STEP", face, gymnasium.make_vec(MARINENAV, num_envs=4))
    tensors = gymnasium.make_vec(MARINENAV, num_envs=2, autoreset_mode="SAME_STEP", output="torch")
    for other in (tensors, SyncVectorEnv([lambda: SingleWorld("cartpole")], autoreset_mode=AutoresetMode.SAME_STEP)):
        refused(ValueError, "needs a vector of rlstack's worlds with output='numpy'", face, other)
