"""Recorded transitions as Minari datasets, and back, each read by the other library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rlstack import envs
from rlstack.agents.interface import Interface
from rlstack.config import ConfigError
from rlstack.data.recordings import save_arrays, trajectories
from rlstack.envs.foundation.tensors import GROUP
from rlstack.training.recorded import RecordedTransitions, read_recorded, write_recorded
from tests.refusals import refused

minari: Any = pytest.importorskip("minari")

NAME = "toys/vessels-v0"


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))


@pytest.fixture
def vessels() -> tuple[Any, Interface]:
    """Returns ten steps of two vessels in each of two worlds, with their observations and actions."""
    env = envs.make("marinenav", num_worlds=2, num_robots=2, seed=0)
    batch = env.rollout(10, break_when_any_done=False)
    return trajectories(batch, torch.ones(2, 10, dtype=torch.bool), GROUP), Interface.of(env)


def test_ours_is_a_dataset_of_minari(vessels: tuple[Any, Interface]) -> None:
    data, interface = vessels
    write_recorded(f"minari:{NAME}", data, interface)
    dataset = minari.load_dataset(NAME)
    assert dataset.total_steps == len(data) and dataset.total_episodes >= 4
    first = next(dataset.iterate_episodes())
    count = len(first.rewards)
    assert len(first.observations["self"]) == count + 1
    np.testing.assert_array_equal(first.actions, data["action"][:count].numpy())
    np.testing.assert_array_equal(first.observations["objects"][1:], data["next", "observation", "objects"][:count])
    assert dataset.observation_space["self"].contains(first.observations["self"][0])
    assert dataset.action_space.contains(first.actions[0])


def test_what_was_written_is_read_again(vessels: tuple[Any, Interface], tmp_path: Path) -> None:
    data, interface = vessels
    save_arrays(tmp_path / "episodes.npz", data)
    write_recorded(f"minari:{NAME}", data, interface)
    sources = [str(tmp_path / "episodes.npz"), f"minari:{NAME}", f"minari:{tmp_path / 'minari' / NAME}"]
    recordings = [read_recorded(source, interface) for source in sources]
    assert recordings[0].digest == recordings[1].digest == recordings[2].digest


@pytest.mark.parametrize("first", [0, 5])
def test_a_dataset_of_minaris_own_is_data(first: int, tmp_path: Path) -> None:
    """Reads two episodes of CartPole, the second without an end; choices count from 0, as in worlds of Gymnasium."""
    from minari.data_collector import EpisodeBuffer

    seen, chosen = np.arange(28, dtype=np.float32).reshape(7, 4), first + np.array([0, 1, 0, 1, 1])
    episodes = [
        EpisodeBuffer(0, None, None, seen[:4], chosen[:3], [1.0, 2.0, 3.0], [False, False, True], [False] * 3),
        EpisodeBuffer(1, None, None, seen[4:], chosen[3:], [4.0, 5.0], [False, False], [False, False]),
    ]
    interface = Interface.of(envs.make("cartpole", num_worlds=1))
    minari.create_dataset_from_buffers(
        "toys/poles-v0",
        episodes,
        observation_space=spaces.Box(-np.inf, np.inf, (4,), np.float32),
        action_space=spaces.Discrete(2, start=first),
    )
    recordings: RecordedTransitions = read_recorded("minari:toys/poles-v0", interface)
    assert recordings.data["action"].tolist() == [0, 1, 0, 1, 1]
    assert recordings.data["next", "reward"][:, 0].tolist() == [1, 2, 3, 4, 5]
    assert recordings.data["observation"][:, 0].tolist() == [0, 4, 8, 16, 20]
    assert recordings.data["next", "observation"][:, 0].tolist() == [4, 8, 12, 20, 24]
    assert recordings.data["next", "terminated"][:, 0].tolist() == [False, False, True, False, False]
    assert recordings.data["next", "truncated"][:, 0].tolist() == [False, False, False, False, True]


def test_what_cannot_be_read_or_written_is_told_in_one_line(vessels: tuple[Any, Interface]) -> None:
    from minari.data_collector import EpisodeBuffer

    data, interface = vessels
    with pytest.raises(ConfigError, match=r"^data: minari:toys/none-v0 cannot be read \(.*minari list local"):
        read_recorded("minari:toys/none-v0", interface)
    for name in ("half", "h/half-v0", "mari.nav/half-v0", "marinenav/half.2-v0", "/half-v0"):
        refused(ConfigError, "is not the name of a dataset", write_recorded, f"minari:{name}", data, interface)
    write_recorded(f"minari:{NAME}", data, interface)
    refused(ConfigError, "is there already", write_recorded, f"minari:{NAME}", data, interface)
    refused(ConfigError, r"neither a file episodes.npz nor minari:", write_recorded, "episodes.csv", data, interface)
    seen = (np.zeros((3, 2), np.float32), np.zeros((3, 1), np.float32))
    episode = EpisodeBuffer(0, None, None, seen, np.zeros(2, int), [0.0, 0.0], [False, True], [False, False])
    pair = spaces.Tuple(spaces.Box(0, 1, (size,), np.float32) for size in (2, 1))
    minari.create_dataset_from_buffers(
        "toys/pairs-v0", [episode], observation_space=pair, action_space=spaces.Discrete(2)
    )
    refused(ConfigError, "minari:toys/pairs-v0 cannot be read", read_recorded, "minari:toys/pairs-v0", interface)
    taken = {"thrust": np.zeros((2, 1), np.float32), "mode": np.zeros(2, int)}
    episode = EpisodeBuffer(0, None, None, seen[0], taken, [0.0, 0.0], [False, True], [False, False])
    both = spaces.Dict({"thrust": pair[1], "mode": spaces.Discrete(2)})
    minari.create_dataset_from_buffers("toys/modes-v0", [episode], observation_space=pair[0], action_space=both)
    named = "minari:toys/modes-v0 cannot be read .its actions are a Dict, and not one array; "
    refused(ConfigError, named, read_recorded, "minari:toys/modes-v0", interface)
    data["observation", "self"][1] += 1
    refused(ConfigError, "these are single transitions", write_recorded, "minari:toys/other-v0", data, interface)
