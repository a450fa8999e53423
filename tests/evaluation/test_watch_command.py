"""``rlstack.watch`` in every world: who acts, what is shown, written and refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import imageio.v2 as imageio
import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from omegaconf import open_dict

from rlstack import envs, make_agent, watch
from rlstack.config import ConfigError, conf_dir, load_group, to_plain
from rlstack.config.allowed import granting
from rlstack.config.overrides import readable
from rlstack.evaluation.pictures import LiveEpisode, animate, numbers
from rlstack.runs.checkpoint import write_checkpoint
from rlstack.watch import find_policy, run
from tests.exhaustive import exhaustive
from tests.small_run import composed

WORLDS = {
    "marinenav": ({"num_robots": 2, "max_steps": 3}, "random", (720, 960, 3)),
    "arena": ({"max_steps": 3}, "random", (640, 800, 3)),
    "rocket": ({"max_seconds": 0.2}, "scripted", (720, 1280, 3)),
    "echelon": ({"maps": 2, "blue": 1, "red": 1, "max_steps": 3}, "veteran", (720, 1280, 3)),
    "gymnasium": ({"id": "CartPole-v1", "max_steps": 8}, "random", (400, 600, 3)),
}


def left(observation: Any) -> Any:
    """An agent from elsewhere: always the first action."""
    return torch.zeros(len(observation), dtype=torch.int64)


def config(**changes: Any) -> watch.WatchConfig:
    plain = composed(command="watch")
    return watch.build(watch.WatchConfig, {**plain, **changes})


def command(*overrides: str) -> None:
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        cfg = compose("watch", [part for entry in overrides for part in readable(entry)], return_hydra_config=True)
    HydraConfig.instance().set_config(cfg)  # as hydra.main does
    with open_dict(cfg):
        del cfg["hydra"]
    try:
        with granting(to_plain(cfg)):
            run(cfg)
    finally:
        HydraConfig.instance().cfg = None


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """An untrained agent in a small Arena."""
    group = load_group("env", "arena", {"num_worlds": 2, "max_steps": 7})
    agent = make_agent("ppo", envs.make("arena", num_worlds=2), hidden=[8])
    stored = {"agent": to_plain(agent.config), "env": group, "total_frames": 1000}
    write_checkpoint(tmp_path / "agent.pt", {"frames": 7, "agent": agent.state_dict(), "config": stored}, 7)
    return tmp_path / "agent.pt"


class Screen:
    """Counts the pictures, and closes after ``most``."""

    held = ()

    def __init__(self, size: tuple[int, int], title: str, most: int = 4) -> None:
        self.size, self.title, self.most, self.pictures = size, title, most, 0

    @property
    def is_open(self) -> bool:
        return self.pictures < self.most

    def show(self, picture: Any) -> None:
        assert picture.dtype == np.uint8 and picture.shape == (self.size[1], self.size[0], 3)
        self.pictures += 1


@exhaustive("world", WORLDS)
def test_every_world_can_be_watched(world: str) -> None:
    if world == "gymnasium":
        pytest.importorskip("pygame")
    options, policy, shape = WORLDS[world]
    shown = find_policy(config(policy=policy, env=load_group("env", world, options)), list(options))
    episode = LiveEpisode(shown.env, shown.policy, seed=1)
    animation = animate(episode)
    assert animation is not None
    first = animation.draw(animation.span[0])
    assert first.shape == shape and first.dtype == np.uint8
    before = animation.span
    while not animation.over:
        animation.grow()
    assert animation.span[1] > before[1] and animation.caption.startswith(f"episode 1, step {episode.steps}: return ")
    last = animation.draw(animation.span[1])
    assert not np.array_equal(first, last)
    np.testing.assert_array_equal(first, animation.draw(animation.span[0]))  # one can go back
    line = numbers(episode.latest)
    assert line.startswith("observation ") and "  action " in line and "  reward " in line
    assert policy in shown.name and world in shown.name


def test_the_same_seed_and_number_give_the_same_episode() -> None:
    shown = find_policy(config(policy="random", env=load_group("env", "arena", {"max_steps": 5})), ["max_steps"])

    def played(seed: int, number: int) -> torch.Tensor:
        episode, seen = LiveEpisode(shown.env, shown.policy, seed, number), []
        while not episode.over:
            episode.step()
            seen.append(episode.latest["action"].clone())
        return torch.cat([*seen, episode.latest["next", "observation"][0, :5]])

    one = played(3, 2)
    assert played(3, 1).shape == one.shape and not torch.equal(played(3, 1), one)
    assert torch.equal(played(3, 2), one) and not torch.equal(played(4, 2), one)


def test_a_checkpoint_in_a_window(checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    opened: list[Screen] = []

    def open_window(size: tuple[int, int], title: str) -> Screen:
        opened.append(Screen(size, title))
        return opened[-1]

    monkeypatch.setattr("rlstack.envs.rendering.window.TkWindow", open_window)
    monkeypatch.setenv("DISPLAY", ":0")
    command(f"checkpoint={checkpoint}", "env.max_steps=7", "speed=10")
    assert opened[0].pictures == 4 and opened[0].title == f"{checkpoint} in arena"
    # Evaluations play the whole game, unless one asks for less.
    assert capsys.readouterr().out.startswith("episode 1, step 7: return")


def test_a_checkpoint_in_a_terminal(checkpoint: Path, capsys: Any) -> None:
    command(f"checkpoint={checkpoint}", "env.max_steps=2", "show=terminal", "episodes=2", "speed=50", "policy=explore")
    out = capsys.readouterr().out
    assert "▀" in out
    one, two = out.split("\x1b[?1049l")[1].splitlines()
    assert one.startswith("episode 1, step 2: ") and two.startswith("episode 2, step 2: ")


def test_a_film_and_numbers(checkpoint: Path, tmp_path: Path, capsys: Any) -> None:
    film = tmp_path / "films" / "two.mp4"
    command(f"checkpoint={checkpoint}", "env.max_steps=7", f"record={film}", "episodes=2", "speed=2")
    with imageio.get_reader(film) as reader:
        assert reader.count_frames() == 2 * (2 + 45)  # every fourth of 8 frames, and the end for 1.5 s
    out = capsys.readouterr().out.splitlines()
    assert [line[:17] for line in out[:2]] == ["episode 1, step 7", "episode 2, step 7"]
    assert out[2] == f"wrote {film}"
    command(f"checkpoint={checkpoint}", "env.max_steps=7", "show=numbers")  # one episode, since nobody watches
    rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 8 and rows[0].startswith("    1  observation ") and " reward " in rows[6]


def test_a_world_without_pictures_is_shown_in_numbers(capsys: Any) -> None:
    world = ("policy=random", "env.name=tests.agents.recall:Recall", "allow=[tests.agents.recall]")
    command(*world)
    first, *rows, last = capsys.readouterr().out.splitlines()
    assert first.endswith(" draws no pictures; show=auto shows its numbers")
    assert rows[0].startswith("    1  observation ") and last.startswith(f"episode 1, step {len(rows)}: ")
    for asked in ("show=terminal", "record=film.gif"):
        with pytest.raises(ConfigError, match="Recall draws no pictures"):
            command(*world, asked)


@pytest.mark.slow
def test_agents_from_elsewhere(tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("pygame")
    film = tmp_path / "film.gif"
    command(
        *("checkpoint=callable:tests.evaluation.test_watch_command:left", "env=gymnasium", "env.id=CartPole-v1"),
        *("env.max_steps=2", f"record={film}"),
    )
    assert imageio.imread(film).shape[:2] == (400, 600)
    assert capsys.readouterr().out.startswith("episode 1, step 2: return 2")


@pytest.mark.slow
def test_a_replay(tmp_path: Path) -> None:
    from rlstack.envs.rocket.env import Rocket
    from rlstack.envs.rocket.recording import RocketRecorder

    env = Rocket(num_worlds=1)
    recorder, _ = RocketRecorder(env, [0]), env.reset()
    recorder.add()
    env.step(env.rand_action())
    recorder.add()
    recorder.recordings()[0].save_replay(tmp_path / "one.npz")
    command(f"replay={tmp_path / 'one.npz'}", f"record={tmp_path / 'film.mp4'}")
    with imageio.get_reader(tmp_path / "film.mp4") as reader:
        assert reader.count_frames() == 3 + 45  # a step is 8 ticks, a picture 4


def test_ctrl_c_is_a_way_to_end(checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rlstack.evaluation.pictures.show", interrupted)
    command(f"checkpoint={checkpoint}", "show=terminal")
    out = capsys.readouterr().out
    assert "\x1b[?25h" in out and out.endswith("episode 1, step 0\n")  # the cursor is back


@exhaustive(
    ("overrides", "message"),
    [
        ([], "checkpoint: missing; set checkpoint=runs/<run>, policy=random or policy=scripted"),
        (["policy=random"], "env: missing, which world to act in: env=<group>, one of arena"),
        (["policy=rulle", "env=rocket"], "policy: rocket has no 'rulle', did you mean 'rule'? available: random, scr"),
        (["policy=scripted", "env=arena"], "policy: arena has no 'scripted', available: random"),
        (["policy=random", "env=arena", "env.styel=2"], "env.styel: unknown key, did you mean 'style'"),
        (["policy=random", "env=arena", "agent.cvar=1"], "agent: policy=random takes no options"),
        (["checkpoint=FILE", "policy=gredy"], "policy: 'gredy', did you mean 'greedy'? allowed with a checkpoint"),
        (["checkpoint=FILE", "env=rocket"], "env=rocket does not fit the agent: "),
        (["checkpoint=FILEE"], "did you mean '"),
        (["checkpoint=sb33:x.zip"], "'sb33:x.zip': kind: no option 'sb33', did you mean 'sb3'?"),
        (["checkpoint=sb3:x.zip", "policy=explore"], "policy: only rlstack's agents can explore"),
        (["record=film.avi"], "record: film.avi must end in .mp4 or .gif"),
        (["record=film.gif", "show=numbers"], "record: a film cannot show numbers"),
        (["replay=x.npz", "env=rocket"], "replay: a recording takes neither checkpoint, env nor show=numbers"),
        (["replay=x.npz"], "replay: x.npz: cannot be read as a replay"),
        (["checkpoint=FILE"], "show: there is no display and no terminal; use record=film.mp4 or show=numbers"),
    ],
)
def test_what_is_impossible_is_refused(
    overrides: list[str], message: str, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError) as refused:
        command(*(entry.replace("FILE", str(checkpoint)) for entry in overrides))
    assert message in str(refused.value)
