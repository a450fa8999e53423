"""Runs all tests of a training, and names the slowest part and the options to change, by rules on the measurements."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rlstack.agents import agent_class
from rlstack.agents.legacy import Legacy
from rlstack.config import ConfigError, to_plain
from rlstack.envs.foundation.work import counted
from rlstack.runs.seeding import seed_everything
from rlstack.training.environment import environment

from .measuring import MeasuredTraining, cores, measure_inference, measure_worlds
from .report import SCHEMA
from .training import measure_gpu, measure_iterations, measure_learning

TESTS: dict[str, Callable[[MeasuredTraining], dict[str, Any]]] = {
    "env": measure_worlds,
    "inference": measure_inference,
    "learn": measure_learning,
    "collect": measure_iterations,
    "gpu": measure_gpu,
}
_WITHOUT_LEARNING = ("env", "inference")


def diagnose(
    measured: MeasuredTraining,
    test: str = "all",
    tell: Callable[[str, dict[str, Any]], Any] = lambda name, record: None,
) -> dict[str, Any]:
    """Measures a training.

    Args:
        test: one of :data:`TESTS`, or ``all``; for an agent that cannot learn, all means the tests that apply.
        tell: called with the name and the results of each test when it ends.

    Returns the content of the file: ``schema``, ``created``, ``subject``, ``machine``, ``config``, ``tests`` (results
    by name) and ``verdict``, a list of ``text``, ``option`` and ``gain``.

    Raises:
        ConfigError: the test measures learning, and the agent cannot learn.
    """
    config = measured.config
    allowed = _WITHOUT_LEARNING if issubclass(agent_class(config.agent["algorithm"]), Legacy) else tuple(TESTS)
    if test not in ("all", *allowed):
        among = ", ".join(allowed)
        raise ConfigError(f"test: an agent from elsewhere is not trained here; allowed for it: all, {among}")
    names = allowed if test == "all" else (test,)
    wall, cpu, results = time.perf_counter(), time.process_time(), {}
    for name in counted(names, "measuring", "tests"):
        seed_everything(config.seed)
        results[name] = TESTS[name](measured)
        tell(name, results[name])
    alone = measured.device.type == "cpu" and not measured.processes  # this process's CPU threads do all the work
    used = (time.process_time() - cpu) / (time.perf_counter() - wall) if alone else None
    here = environment()
    machine = {name: here[name] for name in ("processor", "instruction_set", "gpu")} | here["versions"]
    machine |= {"cores": cores(), "cpu_share": used}
    options = {name: to_plain(getattr(config, name)) for name in ("agent", "env", "collector", "log_every", "data")}
    record: dict[str, Any] = {"schema": SCHEMA, "created": here["started"], "subject": described(measured)}
    record |= {"machine": machine, "config": options, "tests": results}
    return {**record, "verdict": [to_plain(advice) for advice in verdict(record)]}


def described(measured: MeasuredTraining) -> dict[str, Any]:
    """Returns the entry ``subject``: what is measured, and how."""
    env = measured.config.env
    return {
        "agent": measured.config.agent.get("name"),
        "env": str(env.get("id") or env.get("name")),
        "num_worlds": measured.num_worlds,
        "size_option": measured.size_option,
        "device": str(measured.device),
        "threads": torch.get_num_threads(),
        "clock": measured.clock.kind,
        "seconds": measured.seconds,
    }


WORTH = 1.15
"""A setting is proposed only if it makes its part at least this many times as fast."""
_LEAST_GAIN = 1.05
_GOOD = 0.9  # fraction of the best rate: the smallest setting that reaches it is proposed
_NOTABLE = 0.2  # fraction of an iteration
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
class Advice:
    """One line of the verdict.

    Attributes:
        text: the finding.
        option: the option to change, or None.
        gain: speed-up of a whole iteration computed from the measurements; None if it was not measured.
        learns_otherwise: whether the change also alters what the agent learns.
    """

    text: str
    option: str | None = None
    gain: float | None = None
    learns_otherwise: bool = False


def verdict(diagnosis: Mapping[str, Any]) -> list[Advice]:
    """Returns the bottleneck, then changes: the most effective first, those that alter learning last."""
    rules = VerdictRules(diagnosis)
    proposals = [advice for advice in rules.proposals() if (advice.gain or _LEAST_GAIN) >= _LEAST_GAIN]
    proposals.sort(key=lambda advice: (advice.learns_otherwise, -(advice.gain or 1.0)))
    return [*rules.bottleneck(), *proposals]


def shares(parts: Mapping[str, float]) -> dict[str, float]:
    """Returns the fractions of an iteration by part, largest first, with the parts of the simulation added up."""
    whole = sum(parts.values()) or 1.0
    grouped = {"simulation": sum(parts.get(name, 0.0) for name in _SIMULATION)}
    grouped |= {name: value for name, value in parts.items() if name not in _SIMULATION}
    return dict(sorted(((name, value / whole) for name, value in grouped.items()), key=lambda entry: -entry[1]))


def whole_gain(share: float | None, factor: float) -> float | None:
    """Returns the speed-up of the whole if a share of it becomes ``factor`` times as fast (Amdahl 1967).

    None if the share is unknown.
    """
    return None if share is None else 1 / (1 - share + share / factor)


def best_setting(
    points: Sequence[Mapping[str, Any]], size: str, rate: str, now: float
) -> tuple[Mapping[str, Any], float] | None:
    """Returns the smallest setting that nearly reaches the best rate, and its rate relative to that of ``now``.

    Returns None if the ratio is less than :data:`WORTH`, or the current setting was not measured.
    """
    present = next((point for point in points if point[size] == now), None)
    if present is None:
        return None
    best = max(point[rate] for point in points)
    chosen = min((point for point in points if point[rate] >= _GOOD * best), key=lambda point: point[size])
    factor = chosen[rate] / present[rate]
    return (chosen, factor) if factor >= WORTH else None


class VerdictRules:
    """The rules on a diagnosis; each yields its advice."""

    def __init__(self, diagnosis: Mapping[str, Any]) -> None:
        self.tests, self.machine, self.subject = (diagnosis[name] for name in ("tests", "machine", "subject"))
        self.config: Mapping[str, Any] = diagnosis["config"]
        self.parts: Mapping[str, float] = self.tests.get("collect", {}).get("parts_seconds", {})
        self.by_share = shares(self.parts) if self.parts else {}

    def share(self, *names: str) -> float | None:
        """Returns the share of an iteration that these parts take; None if iterations were not measured."""
        return sum(self.by_share.get(name, 0.0) for name in names) if self.by_share else None

    def bottleneck(self) -> Iterator[Advice]:
        if self.by_share:
            (first, most), *others = self.by_share.items()
            text = f"{_NAMES[first]} takes {most:.0%} of an iteration"
            if most < 0.5 and others and others[0][1] > _NOTABLE:
                yield Advice(f"no single bottleneck: {text}, {_NAMES[others[0][0]]} {others[0][1]:.0%}")
            else:
                yield Advice(f"bottleneck: {text}")

    def proposals(self) -> Iterator[Advice]:
        """Yields the advice of all rules."""
        for rule in (
            *(self.worlds, self.observations, self.larger_batches, self.fewer_updates, self.matrix_products),
            *(self.threads, self.devices, self.storing_and_logging, self.acting, self.busy_machine),
        ):
            yield from rule()

    def worlds(self) -> Iterator[Advice]:
        """Advises on the number of worlds, on compiling them, and on stepping them in other processes."""
        measurements, share = self.tests.get("env"), self.share("simulation")
        collected = self.share("simulation", "opponents", "policy", "store")
        if measurements is not None and (collected is None or collected >= _NOTABLE):
            now, option = measurements["num_worlds"], self.subject["size_option"]
            if (better := best_setting(measurements["sweep"], "num_worlds", "steps_per_second", now)) is not None:
                point, factor = better
                many, rate = point["num_worlds"], point["steps_per_second"]
                text = f"{many:,} worlds make {factor:.1f} times as many steps a second as {now:,} ({rate:,.0f})"
                text += "; batches grow as much, or agent.steps_per_batch shrinks" if many > now else ""
                # Policy and storing are assumed to gain nothing.
                yield Advice(text, f"env.{option}={many}", whole_gain(share, factor))
        if share is None or share < _NOTABLE:
            return
        if self.config["env"].get("compiled") is False:
            yield Advice(
                "the simulation can be compiled, which takes its minutes once; not measured", "env.compiled=true"
            )
        if measurements is not None and self.config["env"].get("workers") == 0 and self.machine["cores"] > 1:
            alone = 1e3 * measurements["ms_per_step"] / measurements["num_worlds"]
            if alone >= 200:  # microseconds; below them processes cost more than they save
                text = f"an environment takes {alone:,.0f} us a step: processes can share them; not measured"
                yield Advice(text, f"env.workers={min(self.machine['cores'], measurements['num_worlds'])}")

    def observations(self) -> Iterator[Advice]:
        whole = sum(self.parts.values())
        for name, what in (("observe", "making observations"), ("reset", "starting episodes")):
            if whole and self.parts.get(name, 0.0) > max(_NOTABLE * whole, self.parts.get("simulate", 0.0)):
                share = self.parts[name] / whole
                yield Advice(f"{what} takes longer than simulating ({share:.0%} of an iteration)")

    def larger_batches(self) -> Iterator[Advice]:
        measurements, share, config = self.tests.get("learn"), self.share("learn"), self.config["agent"]
        if measurements is None or not measurements["sweep"] or (share is not None and share < _NOTABLE):
            return
        sizes = [point["batch"] for point in measurements["sweep"]]
        now = min(sizes, key=lambda size: abs(size - measurements["batch"]))
        better = best_setting(measurements["sweep"], "batch", "samples_per_second", now)
        if better is None or (many := better[0]["batch"]) < now:
            return
        factor = better[1]
        option = "minibatch_size" if "minibatch_size" in config else "batch_size"
        text = f"updates of {many:,} learn from {factor:.1f} times as many samples a second as those of {now:,}"
        options, alike = f"agent.{option}={round(config[option] * many / now)}", ""
        if option == "batch_size":
            options += f" agent.frames_per_update={config['frames_per_update'] * many / now:g}"
            alike = "with as many samples per frame "
        text += f"; {alike}they are fewer, so compare learning curves"
        yield Advice(text, options, whole_gain(share, factor), learns_otherwise=True)

    def fewer_updates(self) -> Iterator[Advice]:
        share, config = self.share("learn"), self.config["agent"]
        if share is None or share < 0.5 or self.config.get("data") is not None:  # whose frames are draws for updates
            return
        less = "half as many take half the time, and learn less from each frame"
        if (epochs := config.get("epochs") or 0) >= 4:
            gain = whole_gain(share, epochs / (epochs // 2))
            yield Advice(f"{epochs} passes over the data: {less}", f"agent.epochs={epochs // 2}", gain, True)
        elif (every := config.get("frames_per_update")) is not None:
            option = f"agent.frames_per_update={2 * every:g}"
            yield Advice(f"an update every {every:g} frames: {less}", option, whole_gain(share, 2), True)

    def matrix_products(self) -> Iterator[Advice]:
        products, share = self.tests.get("learn", {}).get("matrix_products"), self.share("learn")
        if products and products["share"] >= 0.5 and (share is None or share >= _NOTABLE):
            text = f"matrix products are an unavoidable {min(products['share'], 1):.0%} of an update's time"
            yield Advice(f"{text}; only smaller networks or batches, fewer updates or a faster device would help")

    def threads(self) -> Iterator[Advice]:
        """Advises the number of threads that is best for stepping and learning together, weighted by their shares."""
        now, weights = self.subject["threads"], {"env": self.share("simulation"), "learn": self.share("learn")}
        measured: dict[str, dict[int, float]] = {}
        for name in weights:
            points = self.tests.get(name, {}).get("threads", [])
            if now in (rates := {point["threads"]: point["per_second"] for point in points}):
                measured[name] = rates
        if not measured or (len(measured) > 1 and not self.by_share):
            return

        def time(count: int) -> float:
            return sum((weights[name] or 1.0) * rates[now] / rates[count] for name, rates in measured.items())

        best = min(set.intersection(*(set(rates) for rates in measured.values())), key=time)
        rest = 1 - sum(weights[name] or 1.0 for name in measured)
        if (gain := (time(now) + rest) / (time(best) + rest)) >= WORTH:
            yield Advice(f"{best} threads are faster than {now}", f"threads={best}", gain if self.by_share else None)

    def devices(self) -> Iterator[Advice]:
        gpu, option = self.tests.get("gpu", {}), self.subject["size_option"]
        if self.subject["device"] == "cpu":
            if self.machine["gpu"]:
                yield Advice("a GPU is there and not used; not measured", "device=cuda")
            return
        if (busy := gpu.get("gpu_percent")) is not None and busy < 50:
            text = f"the GPU is busy {busy:.0f} % of the time: larger batches of worlds and updates fill it"
            yield Advice(text, option and f"env.{option}")
        for what in ("step", "update"):
            if (waits := gpu.get(what, {}).get("synchronisations", 0)) > 4:
                at = next(iter(gpu[what]["waits_at"]), "?")
                yield Advice(f"the CPU waits for the GPU {waits:.0f} times in a {what}, most often at {at}")

    def storing_and_logging(self) -> Iterator[Advice]:
        storing, logging = self.share("store") or 0.0, self.share("log") or 0.0
        if storing >= _NOTABLE:
            steps = self.config["collector"]["steps_per_batch"]
            text = f"storing takes {storing:.0%}: batches of more steps than {steps} have less overhead; not measured"
            yield Advice(text, f"collector.steps_per_batch={4 * steps}")
        every = self.config["log_every"]  # frames, or a share of the run
        if logging >= 0.05 and (every >= 1 or 4 * every < 1):
            option = f"log_every={4 * every}"
            yield Advice(f"logging takes {logging:.0%}", option, whole_gain(logging, 4))

    def acting(self) -> Iterator[Advice]:
        share, measurements, option = self.share("policy"), self.tests.get("inference"), self.subject["size_option"]
        if share is None or share < _NOTABLE or measurements is None:
            return
        better = best_setting(measurements["sweep"], "batch", "decisions_per_second", measurements["batch"])
        if better is None or better[0]["batch"] < measurements["batch"]:
            text = f"the policy takes {share:.0%}, whatever the number of worlds: smaller networks act sooner"
            yield Advice(text, "agent.hidden")
        else:
            point, factor = better
            text = f"for {point['batch']:,} worlds the policy makes {factor:.1f} times as many decisions a second"
            yield Advice(text, option and f"env.{option}={point['batch']}", whole_gain(share, factor))

    def busy_machine(self) -> Iterator[Advice]:
        used = self.machine.get("cpu_share")
        if used is not None and used <= 0.7 and self.subject["clock"] != "cpu":
            text = f"this process had only {used:.0%} of a core: other programs make all times too long"
            yield Advice(f"{text}, clock=cpu leaves them out")
