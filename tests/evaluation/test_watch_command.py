"""``rlstack watch``: playback, screens and films."""

from __future__ import annotations

import io
import os
import re
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import imageio.v2 as imageio
import numpy as np
import pytest
import torch
from rich.segment import Segments

from rlstack import envs, make_agent, watch
from rlstack.config import ConfigError, load_group, to_plain
from rlstack.envs.rendering.canvas import WrittenText, write
from rlstack.evaluation.pictures import (
    FinishedAnimation,
    LiveEpisode,
    TerminalScreen,
    animate,
    blocks,
    frames,
    numbers,
    record,
    show,
)
from rlstack.runs.checkpoint import write_checkpoint
from rlstack.training.interrupt import stopping_between_steps
from rlstack.watch import find_policy
from tests.envs.played import played
from tests.exhaustive import exhaustive
from tests.refusals import refused
from tests.small_run import composed

WORLDS = {
    "marinenav": ({"num_robots": 2, "max_steps": 3}, "random", (720, 960, 3)),
    "arena": ({"max_steps": 3}, "random", (640, 800, 3)),
    "rocket": ({"max_seconds": 0.2}, "scripted", (720, 1280, 3)),
    "echelon": ({"maps": 2, "blue": 1, "red": 1, "max_steps": 3}, "veteran", (720, 1280, 3)),
    "gymnasium": ({"id": "CartPole-v1", "max_steps": 8}, "random", (400, 600, 3)),
}


def config(**changes: Any) -> watch.WatchConfig:
    return watch.build(watch.WatchConfig, {**composed(command="watch"), **changes})


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """An untrained agent in a small Arena."""
    group = load_group("env", "arena", {"num_worlds": 2, "max_steps": 7})
    agent = make_agent("ppo", envs.make("arena", num_worlds=2), hidden=[8])
    stored = {"agent": to_plain(agent.config), "env": group, "total_frames": 1000}
    write_checkpoint(tmp_path / "agent.pt", {"frames": 7, "agent": agent.state_dict(), "config": stored}, 7)
    return tmp_path / "agent.pt"


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
    assert not np.array_equal(first, animation.draw(animation.span[1]))
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
    opened: list[Any] = []

    def open_window(size: tuple[int, int], title: str) -> FakeWindow:
        opened.extend((size, title, FakeWindow([set()] * 4)))
        return opened[-1]

    monkeypatch.setattr("rlstack.envs.rendering.window.TkWindow", open_window)
    monkeypatch.setenv("DISPLAY", ":0")
    watch(f"checkpoint={checkpoint}", "env.max_steps=7", "speed=10")
    (width, height), title, window = opened
    assert [picture.shape for picture in window.pictures] == [(height, width, 3)] * 4
    assert title == f"{checkpoint} in arena"
    # Evaluations play the whole game, unless one asks for less.
    assert capsys.readouterr().out.startswith("episode 1, step 7: return")


def test_a_checkpoint_in_a_terminal(checkpoint: Path, capsys: Any) -> None:
    watch(f"checkpoint={checkpoint}", "env.max_steps=2", "show=terminal", "episodes=2", "speed=50", "policy=explore")
    out = capsys.readouterr().out
    assert "▀" in out
    one, two = out.split("\x1b[?1049l")[1].splitlines()
    assert one.startswith("episode 1, step 2: ") and two.startswith("episode 2, step 2: ")


def test_a_film_and_numbers(checkpoint: Path, tmp_path: Path, capsys: Any) -> None:
    film = tmp_path / "films" / "one.mp4"
    watch(f"checkpoint={checkpoint}", "env.max_steps=7", f"record={film}", "speed=2")
    with imageio.get_reader(film) as reader:
        assert reader.count_frames() == 2 + 45  # every fourth of 8 frames, and the end for 1.5 s
    told, wrote = capsys.readouterr().out.splitlines()
    assert told.startswith("episode 1, step 7") and wrote == f"wrote {film}"
    watch(f"checkpoint={checkpoint}", "env.max_steps=7", "show=numbers")  # one episode, since nobody watches
    rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 8 and rows[0].startswith("    1  observation ") and " reward " in rows[6]


def test_a_world_without_pictures_is_shown_in_numbers(capsys: Any) -> None:
    world = ("policy=random", "env.name=tests.agents.recall:Recall", "allow=[tests.agents.recall]")
    watch(*world)
    first, *rows, last = capsys.readouterr().out.splitlines()
    assert first.endswith(" draws no pictures; show=auto shows its numbers")
    assert rows[0].startswith("    1  observation ") and last.startswith(f"episode 1, step {len(rows)}: ")
    for asked in ("show=terminal", "record=film.gif"):
        refused(ConfigError, "Recall draws no pictures", watch, *world, asked)


@pytest.mark.slow
def test_agents_from_elsewhere(tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("pygame")
    film = tmp_path / "film.gif"
    words = ["checkpoint=callable:tests.small_run:still", "env=gymnasium", "env.id=CartPole-v1"]
    watch(*words, "env.max_steps=2", f"record={film}")
    assert imageio.imread(film).shape[:2] == (400, 600)
    assert capsys.readouterr().out.startswith("episode 1, step 2: return 2")


@pytest.mark.slow
def test_a_replay(tmp_path: Path) -> None:
    from rlstack.envs.rocket.env import Rocket
    from rlstack.envs.rocket.recording import RocketRecorder

    env = Rocket(num_worlds=1)
    recorder = RocketRecorder(env, [0])
    played(env, recorder, 1)
    recorder.recordings()[0].save_replay(tmp_path / "one.npz")
    watch(f"replay={tmp_path / 'one.npz'}", f"record={tmp_path / 'film.mp4'}")
    with imageio.get_reader(tmp_path / "film.mp4") as reader:
        assert reader.count_frames() == 3 + 45  # a step is 8 ticks, a picture 4


def test_ctrl_c_is_a_way_to_end(checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr("rlstack.evaluation.pictures.show", Mock(side_effect=KeyboardInterrupt))
    watch(f"checkpoint={checkpoint}", "show=terminal")
    out = capsys.readouterr().out
    assert "\x1b[?25h" in out and out.endswith("episode 1, step 0\n")  # the cursor is back


@exhaustive(
    ("overrides", "message"),
    [
        ([], "checkpoint: missing; set checkpoint=runs/<run>, policy=random or policy=scripted"),
        (["policy=random"], "env: missing, which world to act in: env=<group>, one of arena"),
        (["policy=rulle", "env=rocket"], "policy: rocket has no 'rulle', did you mean 'rule'? available: random, scr"),
        (["policy=rush", "env=echelon", "env.opponent=veteran"], "env.opponent: policy=rush controls all agents"),
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
    refused(ConfigError, re.escape(message), watch, *(entry.replace("FILE", str(checkpoint)) for entry in overrides))


# -- playback: what is shown when, how a window stops and seeks, and what a terminal gets ------------------------------


class Counting:
    """An episode of ten steps, ten of them a second: pictures are as bright as their time."""

    per_second, caption, legend = 10.0, "counting", ()

    def __init__(self, steps: int = 10, known: int = 0) -> None:
        self.steps, self.known = steps, known
        self.pauses: list[float] = []

    @property
    def span(self) -> tuple[float, float]:
        return 0.0, float(self.known)

    @property
    def over(self) -> bool:
        return self.known >= self.steps

    def grow(self) -> None:
        self.known += 1

    def draw(self, time: float, pause: float = 0.0, /) -> Any:
        assert time <= self.known
        self.pauses.append(pause)
        return np.full((32, 48, 3), round(10 * time), np.uint8)


class FakeWindow:
    """``keys`` are those held down, picture by picture; closed after the last."""

    def __init__(self, keys: list[set[str]]) -> None:
        self.keys, self.pictures = keys, list[Any]()

    @property
    def held(self) -> set[str]:
        return self.keys[min(len(self.pictures), len(self.keys) - 1)]

    @property
    def is_open(self) -> bool:
        return len(self.pictures) < len(self.keys)

    def show(self, picture: Any) -> None:
        self.pictures.append(picture)

    @property
    def times(self) -> list[float]:
        return [picture[0, 0, 0] / 10 for picture in self.pictures]


def shown(animation: Any, keys: list[set[str]], **options: Any) -> list[float]:
    window = FakeWindow(keys)
    show(animation, window, clock=lambda: 0.0, sleep=lambda _: None, **options)
    return window.times


def test_an_episode_is_played_only_as_far_as_it_is_shown() -> None:
    animation = Counting()
    assert shown(animation, [set()] * 7) == pytest.approx([0, 0.3, 0.7, 1, 1.3, 1.7, 2], abs=0.04)  # a third of a step
    assert animation.known == 2


def test_keys_stop_seek_and_begin_anew() -> None:
    keys: list[set[str]] = [set(), {"Right"}, {"space"}, {"space"}, set(), {"Left"}, {"space"}, {"Return"}, set()]
    assert shown(Counting(), keys, speed=3.0) == pytest.approx([0, 3, 3, 3, 3, 1, 2, 0, 1])


def test_the_end_stands_still_for_a_while() -> None:
    animation = Counting(steps=1)
    times = shown(animation, [set()] * 100, hold=0.5)
    assert len(times) == 3 + 1 + 15 and times[-1] == 1.0 and animation.pauses[-1] == pytest.approx(5.0, abs=0.4)
    assert len(shown(Counting(steps=1), [set()] * 50, hold=float("inf"))) == 50


def test_where_drawing_is_slow_pictures_are_left_out() -> None:
    clock = iter(np.arange(0.0, 50.0, 0.05))  # two readings for each picture
    window = FakeWindow([set()] * 4)
    show(Counting(), window, clock=lambda: float(next(clock)), sleep=lambda _: None)
    assert window.times == pytest.approx([0, 1, 2, 3])


def test_a_film_has_even_times_and_a_still_end() -> None:
    animation = Counting(steps=2)
    times = [picture[0, 0, 0] / 10 for picture in frames(animation, 2.0, 10.0, hold=0.3)]
    assert times == [0, 2, 2, 2, 2] and animation.pauses == [0, 0, 2, 4, 6]


@pytest.mark.parametrize("name", ["film.mp4", "film.gif"])
def test_recording(name: str, tmp_path: Path) -> None:
    path = tmp_path / "new" / name
    record(iter([Counting(steps=1), Counting(steps=1)]), path, speed=10.0)
    with imageio.get_reader(path) as reader:
        pictures = [np.asarray(picture) for picture in reader]
    fps = 15 if name.endswith("gif") else 30
    assert len(pictures) == 2 * (1 + round(1.5 * fps + 0.01)) or name.endswith("gif")  # GIFs merge what is the same
    assert pictures[0].shape[:2] == (32, 48)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"record: .* cannot be written"):
        record(iter([Counting()]), tmp_path / "file" / "film.mp4", 1.0)


def test_an_interrupted_film_leaves_nothing(tmp_path: Path) -> None:
    class Interrupted(Counting):
        def grow(self) -> None:
            if self.known == 5:
                os.kill(os.getpid(), signal.SIGINT)
            assert self.known < 8, "the next picture is the last"
            super().grow()

    with pytest.raises(KeyboardInterrupt), stopping_between_steps(lambda work: None):
        record(iter([Interrupted()]), tmp_path / "film.mp4", 1.0)
    assert list(tmp_path.iterdir()) == []


def test_a_finished_animation_is_over_from_the_beginning() -> None:
    recording = SimpleNamespace(animation=lambda: Counting(known=4), legend=tuple)
    replay = FinishedAnimation(recording, "best")  # type: ignore[arg-type]
    replay.grow()
    assert replay.over and replay.span == (0.0, 4.0) and replay.caption == "best" and replay.per_second == 10.0


# -- terminals ---------------------------------------------------------------------------------------------------


def seen(lines: Segments) -> list[list[tuple[str, Any, Any]]]:
    """The character, colour and background of every place of every line."""
    rows = [[]]  # type: list[list[tuple[str, Any, Any]]]
    for text, style, _ in lines.segments:
        if text == "\n":
            rows.append([])
        for sign in text.strip("\n"):
            assert style is not None and style.color is not None and style.bgcolor is not None
            rows[-1].append((sign, style.color.triplet, style.bgcolor.triplet))
    return rows[:-1]


def test_pictures_become_half_blocks_in_their_proportions() -> None:
    picture = np.zeros((40, 60, 3), np.uint8)
    picture[:20, :30] = (250, 10, 0)
    picture[20:, 30:] = (0, 130, 255)
    rows = seen(blocks(picture, columns=30, lines=50)[0])
    assert len(rows) == 10 and all(len(row) == 30 for row in rows)  # 30 x 20 pixels
    assert rows[0][0][1:] == ((250, 10, 0),) * 2 and rows[0][29][1:] == ((0, 0, 0),) * 2
    assert rows[9][29][1:] == ((0, 130, 255),) * 2
    assert len(seen(blocks(picture, columns=300, lines=4)[0])) == 4


def test_texts_of_a_picture_become_letters() -> None:
    texts = [
        WrittenText("shot", 5, 12, 0.0, (0, 0, 0)),  # the shadow of the next
        WrittenText("shot", 6, 12, 0.0, (255, 0, 0)),
        WrittenText("12", 99, 12, 1.0, (255, 255, 255)),
        WrittenText("near", 6, 13, 0.0, (255, 255, 255)),
        WrittenText("nor", 6, 14, 0.0, (255, 255, 255)),
        WrittenText("this", 6, 15, 0.0, (255, 255, 255)),
    ]
    lines, left = blocks(np.zeros((40, 100, 3), np.uint8), columns=20, lines=9, texts=texts)
    rows = seen(lines)
    assert ["".join(sign for sign, *_ in row).replace("▀", ".") for row in rows] == [
        ".nor................",
        ".shot.............12",
        ".near...............",
        "." * 20,
    ]
    assert left == ["this"] and rows[1][1] == ("s", (255, 0, 0), (0, 0, 0))


def test_a_terminal_shows_texts_and_a_legend_and_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    class Writing(Counting):
        legend = (("●", "ball", (255, 0, 0)), ("■", "what does not fit any more", (0, 0, 0)))
        caption = "episode 1, step 2: return 3.5, success 0"

        def draw(self, time: float, pause: float = 0.0, /) -> Any:
            picture = super().draw(time, pause)
            write(picture, f"t {time:.0f}", 0, 16, 12, (255, 255, 255))
            return picture

    for name, value in {"COLUMNS": "24", "LINES": "9", "TERM": "xterm", "COLORTERM": "truecolor"}.items():
        monkeypatch.setenv(name, value)
    out, film = io.StringIO(), Writing(steps=1)
    with TerminalScreen(out, lambda: film) as screen:
        show(film, screen, hold=0.01, clock=lambda: 0.0, sleep=lambda _: None)
    text = out.getvalue()
    assert text.startswith("\x1b[?1049h") and text.endswith("\x1b[?25h\x1b[?1049l") and "success" not in text
    lines = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", text).splitlines()
    assert any(line.startswith("t 0▀▀") for line in lines) and "● ball" in [line.strip() for line in lines]
    assert "episode 1, step 2: retur" in text
    assert len(np.unique(film.draw(1.0))) > 1  # and drawn, once the terminal is left
