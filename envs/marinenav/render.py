"""Pictures of MarineNav episodes, drawn with matplotlib.

The world frame is North-East-Down; pictures have north (x) up and east (y) to the right, the view from above: a
positive yaw turns a vessel clockwise, to starboard.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_rgb, to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, Rectangle
from numpy.typing import NDArray

from ..rendering.canvas import Legend, Picture, are_texts_apart, write
from ..rendering.films import Animation
from .dynamics import current
from .recording import ARRIVED, COLLIDED, MarineNavRecording
from .rules import MAP_SIZE, MarineNavRules

Array = NDArray[Any]

# fmt: off
COLOURS = (
    "#1f6fb4", "#e07b12", "#2a9d4a", "#8e44ad", "#b8860b",
    "#d6338a", "#0f9aa8", "#7a4a21", "#5b6770", "#3a2fbf",
)
# fmt: on
WATER, _OUTSIDE, CURRENT, ROCK = "#eaf3f9", "#dfeaf2", "#4a90c2", "#9aa5ad"
_INK, FAILURE, SUCCESS = "#22313f", "#c0392b", "#1e8449"
_STATUS = {1: "time-out"} | dict.fromkeys(COLLIDED, "collision") | dict.fromkeys(ARRIVED, "goal reached")
LEGEND: Legend = (
    *(("★", "goal", (34, 49, 63)), ("○", "start", (34, 49, 63)), ("●", "obstacle", (154, 165, 173))),
    *(("✖", "collision", (192, 57, 43)), ("○", "vortex core", (74, 144, 194))),
    ("▶", "robot and its way, in its colour", (31, 111, 180)),
)
SIZE = (960, 720)
"""Width and height of pictures in pixels, multiples of the video encoder's macroblocks."""

_SPEED = 10.0  # seconds of an episode in a second of film
_FADE_SECONDS = 30.0
_MAX_MARGIN = 20.0
_UNIT_CIRCLE = np.column_stack([f(np.linspace(0, 2 * np.pi, 25)) for f in (np.cos, np.sin)])


class MarineNavAnimation(Animation):
    """The animation of an episode. Still objects are drawn once; a picture adds the others to a copy.

    Args:
        recording: recording of the episode.
        ego: robot whose perceived objects and sensing range are shown; None shows those of all faintly.

    Raises:
        IndexError: there is no such robot.
    """

    size, fps = SIZE, 20.0

    def __init__(self, recording: MarineNavRecording, ego: int | None = None) -> None:
        self._recording, self._robots, self._ego = recording, recording.robots, ego
        if ego is not None and ego not in self._robots:
            raise IndexError(f"ego must be one of the robots {self._robots.tolist()}, got {ego}")
        self.per_second = _SPEED / recording.dt
        self._colours = np.array([to_rgba(_colour(i)) for i in self._robots]).reshape(-1, 4)
        figure = Figure(figsize=(SIZE[0] / 100, SIZE[1] / 100), dpi=100)
        self._canvas = FigureCanvasAgg(figure)
        ax = figure.add_axes((0.065, 0.075, 0.66, 0.88))
        _draw_map(ax, recording)
        if len(recording.cores):
            _draw_current(ax, recording.cores)
        ax.set_xlabel("y, east [m]")
        ax.set_ylabel("x, north [m]")
        self._title = ax.title
        self._moving = self._vessel_artists(ax) + self._panel_artists(figure)
        for artist in self._moving:
            artist.set_animated(True)
        self._canvas.draw()
        self._background = self._canvas.copy_from_bbox(figure.bbox)

    @property
    def span(self) -> tuple[float, float]:
        """The first and the last frame."""
        return 0.0, len(self._recording.pose) - 1.0

    def longer(self, recording: MarineNavRecording) -> Animation:
        """Returns this animation itself if the still objects of both recordings are equal."""
        if _standing(recording) != _standing(self._recording):
            return recording.animation()
        self._recording, self.per_second = recording, _SPEED / recording.dt
        return self

    def draw(self, time: float, pause: float = 0.0, /) -> Picture:
        """Draws the frame at a time; after the end, the last one."""
        t = int(time)
        self._update_vessels(t)
        self._update_sensed(t, self._ego)
        self._update_panel(t)
        self._canvas.restore_region(self._background)
        for artist in self._moving:
            artist.draw(self._canvas.get_renderer())
        picture = np.asarray(self._canvas.buffer_rgba())[..., :3].copy()
        if are_texts_apart():
            self._write_texts(picture)
        return picture

    def _write_texts(self, picture: Picture) -> None:
        """Clears the panel, and rewrites its texts, which matplotlib has drawn."""
        picture[:, round(0.735 * SIZE[0]) :] = 255
        names = dict(zip(self._lines, self._robots))
        for text in (self._title, self._clock, *self._lines, *self._numbers):
            box = text.get_window_extent(self._canvas.get_renderer())
            red, green, blue = (round(255 * part) for part in to_rgb(text.get_color()))
            words = f"{names[text]} {text.get_text()}" if text in names else text.get_text()
            write(picture, words, box.x0, SIZE[1] - (box.y0 + box.y1) / 2, 9, (red, green, blue))

    def _vessel_artists(self, ax: Axes) -> list[Artist]:
        self._trails, self._sensed = (
            LineCollection([], lw=1.8, zorder=3),
            LineCollection([], lw=1.2, ls="--", zorder=6),
        )
        self._hulls = PolyCollection([], lw=1.0, zorder=5)
        for collection in (self._trails, self._sensed, self._hulls):
            ax.add_collection(collection, autolim=False)
        sensing_range = float(MarineNavRules().range)
        self._range = ax.add_patch(Circle((0, 0), sensing_range, fill=False, lw=1, ls=":", ec=_INK, alpha=0.7))
        self._crashes = ax.scatter([], [], marker="X", s=150, c=FAILURE, edgecolors="white", zorder=7)
        font: dict[str, Any] = {"ha": "center", "va": "center", "size": 8, "weight": "bold", "color": "white"}
        self._numbers = [ax.text(0, 0, str(i), zorder=8, clip_on=True, **font) for i in self._robots]
        return [self._range, self._trails, self._hulls, self._sensed, self._crashes, *self._numbers]

    def _panel_artists(self, figure: Figure) -> list[Artist]:
        left, top, step = 0.745, 0.93, min(0.055, 0.6 / len(self._robots))
        self._clock = figure.text(left, top, "", size=13, weight="bold", color=_INK)
        self._lines = []
        for row, colour in enumerate(self._colours):
            y = top - 0.06 - row * step
            figure.text(left, y, str(self._robots[row]), color=colour, weight="bold", size=11, va="center")
            self._lines.append(figure.text(left + 0.025, y, "", size=9, color=_INK, va="center"))
        marker: dict[str, Any] = {"ls": "", "color": _INK}
        legend = [
            Line2D([], [], marker="*", ms=11, label="goal", **marker),
            Line2D([], [], marker="o", ms=6, mfc="none", label="start", **marker),
            Line2D([], [], marker="o", ms=8, mfc=ROCK, mec=ROCK, label="obstacle", ls=""),
            Line2D([], [], ls="--", color=_INK, label="perceived object"),
            Line2D([], [], marker="X", ms=9, mfc=FAILURE, mec="white", label="collision", ls=""),
        ]
        if len(self._recording.cores):
            legend.append(Line2D([], [], marker="o", ms=8, mfc="none", mec=CURRENT, label="vortex core", ls=""))
        figure.legend(handles=legend, loc="lower left", bbox_to_anchor=(left - 0.01, 0.065), frameon=False, fontsize=9)
        return [self._clock, *self._lines]

    def _update_vessels(self, t: int) -> None:
        record, robots = self._recording, self._robots
        pose, status = record.pose[t, robots], record.status[t, robots]
        paths = _on_map(record.pose[: t + 1, robots, :2])  # [t+1, A, 2]
        segments = np.stack((paths[:-1], paths[1:]), axis=2)  # [t, A, 2, 2]
        colours = np.broadcast_to(self._colours, (t, *self._colours.shape)).copy()
        age = (t - np.arange(t)) * record.dt
        colours[..., 3] = np.clip(1 - age / _FADE_SECONDS, 0.2, 0.9)[:, None]
        self._trails.set(segments=segments.reshape(-1, 2, 2), color=colours.reshape(-1, 4))
        faded = np.where(record.active[t, robots], 1.0, 0.35)
        hulls = _on_map(_to_world(pose, _hull(record.length, record.width)))
        edges = [to_rgba(_INK, alpha) for alpha in faded]
        self._hulls.set(verts=hulls, facecolor=np.column_stack((self._colours[:, :3], faded)), edgecolor=edges)
        self._crashes.set_offsets(_on_map(pose[np.isin(status, COLLIDED), :2]))
        for number, position, code in zip(self._numbers, _on_map(pose[:, :2]), status):
            number.set_position(position)
            number.set_visible(code not in COLLIDED)

    def _update_sensed(self, t: int, ego: int | None) -> None:
        record = self._recording
        self._range.set(visible=ego is not None)
        if ego is not None:
            self._range.set(center=_on_map(record.pose[t, ego, :2]))
        if record.perceived is None or record.perceived_mask is None:
            self._sensed.set(segments=[])
            return
        circles: list[Array] = []
        colours: list[tuple[float, ...]] = []
        for robot, colour in zip(self._robots, self._colours):
            if ego in (None, robot) and record.active[t, robot]:
                objects = record.perceived[t, robot][record.perceived_mask[t, robot]]
                outline = objects[:, None, :2] + objects[:, None, 4:] * _UNIT_CIRCLE
                circles.extend(_on_map(_to_world(record.pose[t, robot], outline)))
                colours.extend([(*colour[:3], 0.4 if ego is None else 1.0)] * len(objects))
        self._sensed.set(segments=circles, color=colours)

    def _update_panel(self, t: int) -> None:
        record = self._recording
        self._clock.set_text(f"t = {t * record.dt:.1f} s")
        moved = record.pose[t, :, :2] - record.pose[max(t - 1, 0), :, :2]
        speed = np.linalg.norm(moved, axis=-1) / record.dt
        distance = np.linalg.norm(record.goal - record.pose[t, :, :2], axis=-1)
        for line, robot in zip(self._lines, self._robots):
            status = int(record.status[t, robot])
            line.set_text(_STATUS.get(status, f"{distance[robot]:4.1f} m to goal, {speed[robot]:.1f} m/s"))
            line.set_color(FAILURE if status in (1, *COLLIDED) else SUCCESS if status in ARRIVED else _INK)


def _draw_map(ax: Axes, recording: MarineNavRecording) -> None:
    """Draws all still objects: map, obstacles, current, starts and goals."""
    lower, upper = view(recording)
    ax.set(xlim=(lower[0], upper[0]), ylim=(lower[1], upper[1]), aspect="equal", facecolor=_OUTSIDE)
    ax.add_patch(Rectangle((0, 0), MAP_SIZE, MAP_SIZE, fc=WATER, ec="#9fb8c8", lw=1.2, zorder=0))
    ax.set_title(recording.title, fontsize=11, color=_INK, parse_math=False)
    for x, y, r in recording.obstacles:
        ax.add_patch(Circle((y, x), r, fc=ROCK, ec="#3c4043", lw=1, zorder=4))
    for x, y, *_ in recording.cores:
        ax.add_patch(Circle((y, x), float(MarineNavRules().core_radius), fc="white", ec=CURRENT, lw=1.5, zorder=1))
    for robot in recording.robots:
        (start_x, start_y), (goal_x, goal_y) = recording.start[robot], recording.goal[robot]
        colour = _colour(robot)
        ax.plot(start_y, start_x, "o", ms=6, mfc="none", mec=colour, zorder=2)
        ax.plot(goal_y, goal_x, "*", ms=17, mfc=colour, mec="white", mew=0.8, zorder=2)


def _draw_current(ax: Axes, cores: Array) -> None:
    """Draws faint arrows as long as the root of the speed, since the speed itself decreases too steeply."""
    x, y = (grid.reshape(-1, 1) for grid in np.meshgrid(*[np.linspace(1.0, MAP_SIZE - 1.0, 28)] * 2))
    columns = torch.as_tensor(cores, dtype=torch.float64).T[..., None]
    radius = float(MarineNavRules().core_radius)
    flow = torch.cat(current(torch.as_tensor(x), torch.as_tensor(y), columns, radius), dim=1).numpy()
    flow = flow / np.sqrt(np.linalg.norm(flow, axis=1, keepdims=True) + 1e-9)
    arrows: dict[str, Any] = {
        "angles": "xy",
        "scale_units": "xy",
        "scale": 0.75,
        "width": 0.0018,
        "headwidth": 4,
    }
    ax.quiver(y, x, flow[:, 1], flow[:, 0], color=CURRENT, alpha=0.45, zorder=0.5, **arrows)


def overview(recording: MarineNavRecording) -> Picture:
    """Draws whole paths, final hulls, and the outcome in the title, which is green after a success."""
    figure = Figure(figsize=(2.4, 2.7), dpi=100, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    ax = figure.subplots()
    _draw_map(ax, recording)
    for robot in recording.robots:
        path = _on_map(recording.pose[:, robot, :2])
        ax.plot(*path.T, color=_colour(robot), lw=1.4, zorder=3)
        hull = _on_map(_to_world(recording.pose[-1, robot], _hull(recording.length, recording.width)))
        ax.fill(*hull.T, fc=_colour(robot), ec=_INK, lw=0.5, zorder=5)
        if recording.status[-1, robot] in COLLIDED:
            ax.plot(*path[-1], "X", ms=9, mfc=FAILURE, mec="white", zorder=6)
    outcome = "success" if recording.success else "collision" if recording.collision else "not reached"
    seconds = (len(recording.pose) - 1) * recording.dt
    title = f"{recording.title}\n{outcome}, {seconds:.1f} s".lstrip()
    ax.set_title(title, fontsize=9, color=SUCCESS if recording.success else FAILURE, parse_math=False)
    ax.tick_params(labelleft=False, labelbottom=False, length=0)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def view(recording: MarineNavRecording) -> tuple[Array, Array]:
    """Returns the lower left and upper right corner of the picture: the map, extended if robots leave it."""
    paths = _on_map(recording.pose[:, recording.robots, :2]).reshape(-1, 2)
    room = np.array(recording.length / 2 + 0.5)
    lower = np.clip(paths.min(axis=0, initial=MAP_SIZE) - room, -_MAX_MARGIN, -2.0)
    upper = np.clip(paths.max(axis=0, initial=0.0) + room, MAP_SIZE + 2.0, MAP_SIZE + _MAX_MARGIN)
    side, middle = (upper - lower).max(), (upper + lower) / 2
    return middle - side / 2, middle + side / 2


def _standing(recording: MarineNavRecording) -> list[bytes | str]:
    """Returns all objects that are drawn once."""
    numbers = (recording.start, recording.goal, recording.obstacles, recording.cores, recording.robots)
    size = np.array([recording.length, recording.width])
    return [recording.title, *(array.tobytes() for array in (*numbers, size, *view(recording)))]


def _colour(robot: int) -> str:
    return COLOURS[robot % len(COLOURS)]


def _on_map(points: Array) -> Array:
    """Converts from the world (x north, y east) to the picture (right, up)."""
    return points[..., ::-1]


def _to_world(pose: Array, points: Array) -> Array:
    """Converts body-frame ``points`` [..., P, 2] of robots at ``pose`` [..., 3] to the world frame."""
    pose = pose[..., None, :]
    cos, sin = np.cos(pose[..., 2]), np.sin(pose[..., 2])
    x, y = points[..., 0], points[..., 1]
    return np.stack((cos * x - sin * y, sin * x + cos * y), axis=-1) + pose[..., :2]


def _hull(length: float, width: float) -> Array:
    """Returns the outline [P, 2] in the body frame: a square stern, and a bow pointed over the front half."""
    along = np.linspace(0.0, 1.0, 7)
    starboard = np.column_stack((0.5 * length * along, 0.5 * width * (1 - along**2)))
    port = starboard[::-1] * (1, -1)
    stern = np.array([[-0.5, -0.5], [-0.5, 0.5]]) * (length, width)
    return np.concatenate((stern, starboard, port))
