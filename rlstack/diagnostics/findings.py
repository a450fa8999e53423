"""The verdict: what is slowest, and which option to change, by rules on what has been measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WORTH = 1.15
"""A change that makes its part less than so many times as quick is not worth a line."""
_LEAST_GAIN = 1.05
_GOOD = 0.9  # of the best rate: the smallest setting that reaches it is proposed
_NOTABLE = 0.2  # share of an iteration
_SIMULATION = ("simulate", "observe", "reset")
_NAMES = {
    "simulation": "stepping the worlds",
    "opponents": "the opponents",
    "policy": "choosing actions",
    "store": "storing the data",
    "learn": "learning",
    "log": "logging",
    "other": "what surrounds them",
}


@dataclass(frozen=True)
class Finding:
    """One line of the verdict.

    Attributes:
        text: what was found.
        option: what to change, None where nothing is to be.
        gain: how many times as quick a whole iteration would be by the measurements; None where it was not measured.
        learns_otherwise: the change is also one to what is learned.
    """

    text: str
    option: str | None = None
    gain: float | None = None
    learns_otherwise: bool = False


def shares(parts: Mapping[str, float]) -> dict[str, float]:
    """Parts of an iteration as fractions of it, those of the simulation taken together, largest first."""
    whole = sum(parts.values()) or 1.0
    grouped = {"simulation": sum(parts.get(name, 0.0) for name in _SIMULATION)}
    grouped |= {name: value for name, value in parts.items() if name not in _SIMULATION}
    return dict(sorted(((name, value / whole) for name, value in grouped.items()), key=lambda entry: -entry[1]))


def whole_gain(share: float, factor: float) -> float:
    """How many times as quick everything is if a share of it becomes ``factor`` times as quick (Amdahl 1967)."""
    return 1 / (1 - share + share / factor)


def best_setting(
    points: Sequence[Mapping[str, Any]], size: str, rate: str, now: float
) -> tuple[Mapping[str, Any], float] | None:
    """The smallest setting that nearly reaches the best rate, and how many times that of ``now`` it reaches.

    None if that is less than :data:`WORTH`, or the present setting was not measured.
    """
    present = next((point for point in points if point[size] == now), None)
    if present is None:
        return None
    best = max(point[rate] for point in points)
    chosen = min((point for point in points if point[rate] >= _GOOD * best), key=lambda point: point[size])
    factor = chosen[rate] / present[rate]
    return (chosen, factor) if factor >= WORTH else None


def verdict(diagnosis: Mapping[str, Any]) -> list[Finding]:
    """What the measurements say: the bottleneck, then changes, those that help most first, those to learning last."""
    tests: Mapping[str, Any] = diagnosis["tests"]
    parts = tests.get("collect", {}).get("parts_seconds", {})
    by_share = shares(parts) if parts else {}
    proposals = [finding for rule in _RULES for finding in rule(diagnosis, by_share)]
    proposals = [finding for finding in proposals if finding.gain is None or finding.gain >= _LEAST_GAIN]
    proposals.sort(key=lambda finding: (finding.learns_otherwise, -(finding.gain or 1.0)))
    return [*_bottleneck(by_share), *proposals]


def _bottleneck(by_share: Mapping[str, float]) -> list[Finding]:
    if not by_share:
        return []
    (first, most), *others = by_share.items()
    text = f"{_NAMES[first]} takes {most:.0%} of an iteration"
    if most < 0.5 and others and others[0][1] > _NOTABLE:
        second, less = others[0]
        return [Finding(f"no single bottleneck: {text}, {_NAMES[second]} {less:.0%}")]
    return [Finding(f"bottleneck: {text}")]


def _share(by_share: Mapping[str, float], *names: str) -> float | None:
    """Of an iteration; None where iterations have not been measured."""
    return sum(by_share.get(name, 0.0) for name in names) if by_share else None


def _matters(share: float | None) -> bool:
    return share is None or share >= _NOTABLE


def _more_worlds(diagnosis: Mapping[str, Any], by_share: Mapping[str, float]) -> list[Finding]:
    found, share = diagnosis["tests"].get("env"), _share(by_share, "simulation", "opponents", "policy", "store")
    if found is None or not _matters(share):
        return []
    better = best_setting(found["sweep"], "num_worlds", "steps_per_second", found["num_worlds"])
    if better is None:
        return []
    point, factor = better
    many, now, option = point["num_worlds"], found["num_worlds"], diagnosis["subject"]["size_option"]
    text = (
        f"{many:,} worlds make {factor:.1f} times as many steps a second as {now:,} ({point['steps_per_second']:,.0f})"
    )
    if many > now:
        text += "; batches grow as much, or agent.steps_per_batch shrinks"
    # Policy and storing are taken to gain as little as they are measured to: not at all.
    simulated = _share(by_share, "simulation")
    return [Finding(text, f"env.{option}={many}", None if simulated is None else whole_gain(simulated, factor))]


def _compile(diagnosis: Mapping[str, Any], by_share: Mapping[str, float]) -> list[Finding]:
    share = _share(by_share, "simulation")
    if share is None or not _matters(share) or diagnosis["config"]["env"].get("compiled") is not False:
        return []
    return [Finding("the simulation can be compiled, which takes its minutes once; not measured", "env.compiled=true")]


def _workers(diagnosis: Mapping[str, Any], by_share: Mapping[str, float]) -> list[Finding]:
    share, found = _share(by_share, "simulation"), diagnosis["tests"].get("env")
    if share is None or not _matters(share) or found is None or diagnosis["config"]["env"].get("workers") != 0:
        return []
    cores, alone = diagnosis["machine"]["cores"], 1e3 * found["ms_per_step"] / found["num_worlds"]
    if cores == 1 or alone < 200:  # microseconds, below which processes cost more than they save
        return []
    text = f"an environment takes {alone:,.0f} us a step: processes can share them; not measured"
    return [Finding(text, f"env.workers={min(cores, found['num_worlds'])}")]


def _observations(diagnosis: Mapping[str, Any], by_share: Mapping[str, float]) -> list[Finding]:
    parts = diagnosis["tests"].get("collect", {}).get("parts_seconds", {})
    whole, found = sum(parts.values()), []
    for name, what in (("observe", "making observations"), ("reset", "starting episodes")):
        if whole and parts.get(name, 0.0) > max(_NOTABLE * whole, parts.get("simulate", 0.0)):
            found.append(Finding(f"{what} takes longer than simulating ({parts[name] / whole:.0%} of an iteration)"))
    return found


def _larger_batches(diagnosis: Mapping[str, Any], by_share: Mapping[str, float]) -> list[Finding]:
    found, share = diagnosis["tests"].get("learn"), _share(by_share, "learn")
    if found is None or not _matters(share) or not found["sweep"]:
        return []
    config, points = diagnosis["config"]["agent"], found["sweep"]
    option = "minibatch_size" if "minibatch_size" in config else "batch_size"
    now = min((point["batch"] for point in points), key=lambda size: abs(size - found["batch"]))
    better = best_setting(points, "batch", "samples_per_second", now)
    if better is None or better[0]["batch"] < now:
        return []
    point, factor = better
    size = round(config[option] * point["batch"] / now)
    text = f"updates of {point['batch']:,} learn from {factor:.1f} times as many samples a second as those of {now:,}"
    options = f"agent.{option}={size}"
    if option == "minibatch_size":
        text += "; they are fewer, so compare learning curves"
    else:
        every = config["frames_per_update"] * point["batch"] / now
        options += f" agent.frames_per_update={every:g}"
        text += "; with as many samples per frame they are fewer, so compare learning curves"
    return [Finding(text, options, None if share is None else whole_gain(share, factor), learns_otherwise=True)]


def _fewer_updates(diagnosis: Mapping[str, Any], by_share: Mapping[str, float]) -> list[Finding]:
    share, config = _share(by_share, "learn"), diagnosis["config"]["agent"]
    if share is None or share < 0.5:
        return []
    if (epochs := config.get("epochs") or 0) >= 4:
        fewer = epochs // 2
        text = f"{epochs} passes over the data: half as many take half the time, and learn less from each frame"
        return [Finding(text, f"agent.epochs={fewer}", whole_gain(share, epochs / fewer), learns_otherwise=True)]
    if (every := config.get("frames_per_update")) is not None:
        text = f"an update every {every:g} frames: half as many take half the time, and learn less from each frame"
        return [Finding(text, f"agent.frames_per_update={2 * every:g}", whole_gain(share, 2), learns_otherwise=True)]
    return []


def _threads(diagnosis: Mapping[str, Any], by_share: Mapping[str, float]) -> list[Finding]:
    """The number of threads that is best for stepping and learning together, by their shares."""
    tests, now = diagnosis["tests"], diagnosis["subject"]["threads"]
    weights = {"env": _share(by_share, "simulation"), "learn": _share(by_share, "learn")}
    rates: dict[str, dict[int, float]] = {
        name: {point["threads"]: point["per_second"] for point in tests.get(name, {}).get("threads", [])}
        for name in weights
    }
    measured = {name: found for name, found in rates.items() if now in found}
    if not measured or (any(weights[name] is None for name in measured) and len(measured) > 1):
        return []

    def time(count: int) -> float:
        return sum((weights[name] or 1.0) * found[now] / found[count] for name, found in measured.items())

    known = set.intersection(*(set(found) for found in measured.values()))
    best, rest = min(known, key=time), 1 - sum(weights[name] or 1.0 for name in measured)
    gain = (time(now) + rest) / (time(best) + rest)
    if gain < WORTH:
        return []
    return [Finding(f"{best} threads are quicker than {now}", f"threads={best}", gain if by_share else None)]


def _devices(diagnosis: Mapping[str, Any], by_share: Mapping[str, float]) -> list[Finding]:
    subject, machine, gpu = diagnosis["subject"], diagnosis["machine"], diagnosis["tests"].get("gpu", {})
    if subject["device"] == "cpu":
        return [Finding("a GPU is there and not used; not measured", "device=cuda")] if machine["gpu"] else []
    found = []
    if (busy := gpu.get("gpu_percent")) is not None and busy < 50:
        text = f"the GPU is busy {busy:.0f} % of the time: larger batches of worlds and updates fill it"
        found.append(Finding(text, f"env.{subject['size_option']}" if subject["size_option"] else None))
    for what in ("step", "update"):
        waits = gpu.get(what, {}).get("synchronisations", 0)
        if waits > 4:
            at = next(iter(gpu[what]["waits_at"]), "?")
            found.append(Finding(f"the CPU waits for the GPU {waits:.0f} times in a {what}, most often at {at}"))
    return found


def _storing(diagnosis: Mapping[str, Any], by_share: Mapping[str, float]) -> list[Finding]:
    share, steps = _share(by_share, "store"), diagnosis["config"]["collector"]["steps_per_batch"]
    if share is None or share < _NOTABLE:
        return []
    text = f"storing takes {share:.0%}: batches of more steps than {steps} have less overhead; not measured"
    return [Finding(text, f"collector.steps_per_batch={4 * steps}")]


def _logging(diagnosis: Mapping[str, Any], by_share: Mapping[str, float]) -> list[Finding]:
    share, every = _share(by_share, "log"), diagnosis["config"]["log_every"]
    if share is None or share < 0.05:
        return []
    return [Finding(f"logging takes {share:.0%}", f"log_every={4 * every}", whole_gain(share, 4))]


def _acting(diagnosis: Mapping[str, Any], by_share: Mapping[str, float]) -> list[Finding]:
    share, found = _share(by_share, "policy"), diagnosis["tests"].get("inference")
    if share is None or share < _NOTABLE or found is None:
        return []
    better = best_setting(found["sweep"], "batch", "decisions_per_second", found["batch"])
    if better is None or better[0]["batch"] < found["batch"]:
        text = f"the policy takes {share:.0%}, whatever the number of worlds: smaller networks act sooner"
        return [Finding(text, "agent.hidden")]
    (point, factor), option = better, diagnosis["subject"]["size_option"]
    text = f"for {point['batch']:,} worlds the policy makes {factor:.1f} times as many decisions a second"
    return [Finding(text, option and f"env.{option}={point['batch']}", whole_gain(share, factor))]


def _busy_machine(diagnosis: Mapping[str, Any], by_share: Mapping[str, float]) -> list[Finding]:
    used = diagnosis["machine"].get("cpu_share")
    if used is None or used > 0.7 or diagnosis["subject"]["clock"] == "cpu":
        return []
    text = (
        f"this process had only {used:.0%} of a core: other programs make all times too long, clock=cpu leaves them out"
    )
    return [Finding(text)]


_RULES: tuple[Callable[[Mapping[str, Any], Mapping[str, float]], list[Finding]], ...] = (
    *(_more_worlds, _compile, _workers, _observations, _larger_batches, _fewer_updates),
    *(_threads, _devices, _storing, _logging, _acting, _busy_machine),
)
