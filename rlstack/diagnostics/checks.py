"""The checks of ``rlstack explain``: each looks at the evidence about a run, and returns what is wrong, or None.

A check that cannot tell, since the agent lacks what it looks at, returns None. Causes that lie in the set-up or the
world (``FAULT``) come before symptoms (``SYMPTOM``), which a fault often explains, and these before remarks
(``REMARK``).
Symptoms and remarks are left out where the agent is clearly better than random actions, because agents that learn show
many of them as well.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rlstack.losses.ppo import estimate

from .evidence import Evidence, mean_error
from .signs import AT_BOUND, act, undisturbed

FAULT, SYMPTOM, REMARK = "fault", "symptom", "remark"
_ORDER = (FAULT, SYMPTOM, REMARK)


@dataclass(frozen=True)
class Finding:
    """Something that keeps an agent from learning.

    Attributes:
        name: name of the check.
        severity: ``fault``, ``symptom`` or ``remark``.
        title: what is wrong, in one sentence.
        measured: what was measured.
        usual: what is usual.
        source: who says so.
        change: what to change.
        options: the change as overrides of ``rlstack train``; empty if it cannot be written as options.
    """

    name: str
    severity: str
    title: str
    measured: str
    usual: str
    source: str
    change: str
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """Describes the finding in lines."""
        lines = (
            f"{self.title} ({self.severity})",
            f"  measured: {self.measured}",
            f"  usual:    {self.usual} ({self.source})",
            f"  change:   {self.change}",
        )
        return "\n".join(lines)


Check = Callable[[Evidence], Finding | None]


def findings(evidence: Evidence) -> list[Finding]:
    """Returns what the checks find, the likeliest cause first."""
    found = [finding for check in CHECKS if (finding := check(evidence)) is not None]
    if evidence.learned:
        found = [finding for finding in found if finding.severity == FAULT]
    return sorted(found, key=lambda finding: _ORDER.index(finding.severity))


# -- the set-up ------------------------------------------------------------------------------------------------------


def learning_rate(evidence: Evidence) -> Finding | None:
    """Learning rates far from those that Adam is used with."""
    agent, total = evidence.agent, max(int(evidence.config.get("total_frames") or 1), 1)
    for name in agent.optimizers:
        most = max(float(agent.schedules[name](round(total * part / 20))) for part in range(21))
        usual = "1e-5 to 1e-2, most often about 3e-4"
        source = "Andrychowicz et al. 2021, arXiv 2006.05990; the search space of rl-zoo3"
        if not 1e-6 <= most <= 0.02:
            side = "large" if most > 1e-3 else "small"
            change, options = f"agent.{name}=3e-4", {f"agent.{name}": 3e-4}
            text = f"The learning rate agent.{name} is too {side}"
            return Finding(
                name="learning_rate",
                severity=FAULT,
                title=text,
                measured=f"{most:g} at its highest",
                usual=usual,
                source=source,
                change=change,
                options=options,
            )
    return None


def horizon(evidence: Evidence) -> Finding | None:
    """A discount that does not see the rewards, or that lets values grow without bound."""
    gamma = float(evidence.option("gamma", 0.99))
    lengths = [episode.length for episode in evidence.ends]
    long = sum(lengths) / len(lengths) if lengths else float(evidence.random.sequences.shape[1])
    source = "Andrychowicz et al. 2021, arXiv 2006.05990; the search space of rl-zoo3 is 0.9 to 0.9999"
    usual = "0.9 to 0.9999, a horizon 1 / (1 - gamma) that reaches the rewards"
    change, options = "agent.gamma=0.99", {"agent.gamma": 0.99}
    if gamma < 0.9 and long > 5 / (1 - gamma):
        text = "The discount hides what lies more than a few steps ahead"
        steps = f"agent.gamma={gamma:g}, a horizon of {1 / (1 - gamma):.3g} steps; episodes have {long:.0f} on average"
        return Finding(
            name="horizon",
            severity=FAULT,
            title=text,
            measured=steps,
            usual=usual,
            source=source,
            change=change,
            options=options,
        )
    if gamma == 1.0 and not any(episode.terminated for episode in evidence.ends):
        text = "Without a discount, values of episodes that do not terminate have no bound"
        steps = f"agent.gamma=1 and no termination in {len(lengths)} episodes"
        return Finding(
            name="horizon",
            severity=FAULT,
            title=text,
            measured=steps,
            usual=usual,
            source=source,
            change=change,
            options=options,
        )
    return None


def not_begun(evidence: Evidence) -> Finding | None:
    """No update so far, or schedules that were over before the first one."""
    starts, frames = float(evidence.option("learning_starts", 0) or 0), evidence.frames
    usual, source = "learning begins within the first hundredth of a run", "Mnih et al. 2015"
    change, options = f"agent.learning_starts={frames // 100}", {"agent.learning_starts": frames // 100}
    updates = evidence.agent.updates
    if frames and not updates and starts >= frames:
        measured = f"no update in {frames:,} frames, agent.learning_starts={starts:,.0f}"
        return Finding(
            name="not_begun",
            severity=FAULT,
            title="The agent has not begun to learn",
            measured=measured,
            usual=usual,
            source=source,
            change=change,
            options=options,
        )
    for name, schedule in evidence.agent.schedules.items():
        begins, then = float(schedule(0)), float(schedule(int(starts)))
        if name.startswith(("lr", "epsilon")) and starts and begins > 0 and then < 0.06 * begins:
            text = f"The schedule of agent.{name} is over before the agent begins to learn"
            measured = f"{begins:g} at the beginning, {then:g} at frame {starts:,.0f}, when learning begins"
            return Finding(
                name="not_begun",
                severity=SYMPTOM,
                title=text,
                measured=measured,
                usual=usual,
                source=source,
                change=change,
                options=options,
            )
    return None


def few_updates(evidence: Evidence) -> Finding | None:
    """Hardly any, or very many, updates on what was collected."""
    agent, frames = evidence.agent, evidence.frames
    if hasattr(agent, "replay") and frames and agent.updates:
        per_frame = agent.updates * float(evidence.option("batch_size", 1)) / frames
        usual = "each transition is drawn between 1 time (Ape-X) and 5,000 times (REDQ), 8 in DQN, 256 in SAC"
        source = "Mnih et al. 2015; Haarnoja et al. 2018; Chen et al. 2021, arXiv 2101.05982"
        measured = f"{agent.updates:,} updates in {frames:,} frames: each transition is drawn {per_frame:.2g} times"
        if not 0.1 <= per_frame <= 10_000:
            side = "rarely" if per_frame < 1 else "often"
            change, every = "agent.frames_per_update=1", {"agent.frames_per_update": 1}
            return Finding(
                name="few_updates",
                severity=SYMPTOM,
                title=f"Transitions are learned from too {side}",
                measured=measured,
                usual=usual,
                source=source,
                change=change,
                options=every,
            )
        return None
    steps = evidence.option("steps_per_batch") or evidence.config.get("collector", {}).get("steps_per_batch")
    env, total = evidence.config["env"], float(evidence.config.get("total_frames") or 0)
    worlds = env.get("num_worlds") or env.get("num_envs") or 1
    if hasattr(agent, "replay") or not isinstance(steps, int) or not total:
        return None
    batches = total / (steps * worlds * agent.interface.agents)
    if batches >= 30:
        return None
    text = "The run is too short for its batches: the policy changes only a few times"
    measured = f"{batches:.0f} batches of {steps} steps in {worlds} worlds"
    source = "Stable-Baselines3 #1625: with more worlds, as many frames mean fewer updates"
    change, fewer = "fewer worlds, shorter batches, or more frames", max(int(worlds) // 8, 1)
    options = {"env.num_worlds" if "num_worlds" in env else "env.num_envs": fewer} if worlds > 1 else {}
    return Finding(
        name="few_updates",
        severity=SYMPTOM,
        title=text,
        measured=measured,
        usual="a hundred batches or more",
        source=source,
        change=change,
        options=options,
    )


# -- the world -------------------------------------------------------------------------------------------------------


def reward_reachable(evidence: Evidence) -> Finding | None:
    """Episodes without any reward."""
    episodes = evidence.ends
    rewarded = any(
        bool((part.sequences.get(("next", "reward")) != 0).any()) for part in (evidence.random, evidence.explored)
    )
    if rewarded or len(episodes) < 4:
        return None
    source = "Bellemare et al. 2016, arXiv 1606.01868"
    change = "a denser reward, an easier start (curriculum=), imitation.expert=, or agent.rnd={coefficient: 1.0}"
    measured = f"a reward other than zero in 0 of {len(episodes)} episodes, of random actions and of the present policy"
    return Finding(
        name="reward_reachable",
        severity=FAULT,
        title="No episode reaches a reward, so that there is nothing to learn from",
        measured=measured,
        usual="random actions find a reward now and then",
        source=source,
        change=change,
    )


def reward_scale(evidence: Evidence) -> Finding | None:
    """Returns that are tiny or huge beside what networks put out and Adam moves."""
    std = evidence.return_std
    if std is None or std == 0 or 1e-2 <= std <= 1e4:
        return None
    side = "small" if std < 1 else "large"
    change, options = "agent.normalize_rewards=true", {"agent.normalize_rewards": True}
    if evidence.agent.reward_scaler is not None:
        change, options = "the scale of the reward in the world", {}
    return Finding(
        name="reward_scale",
        severity=FAULT,
        title=f"Returns are too {side} for the value function",
        measured=f"the discounted returns have a standard deviation of {std:.2g}",
        usual="about 0.1 to 100",
        source="Henderson et al. 2018, arXiv 1709.06560; Engstrom et al. 2020, arXiv 2005.12729",
        change=change,
        options=options,
    )


def terminations(evidence: Evidence) -> Finding | None:
    """Ends that are reported as cut by a time limit although they come at any time."""
    ends = evidence.ends
    if len(ends) < 8 or any(episode.terminated for episode in ends):
        return None
    longest = max(episode.length for episode in ends)
    early = sum(episode.length < longest for episode in ends) / len(ends)
    if early < 0.3 or len({episode.length for episode in ends}) < 4:
        return None
    return Finding(
        name="terminations",
        severity=FAULT,
        title="The world reports the ends of episodes as time limits, so that values go on beyond them",
        measured=f"terminated in 0 of {len(ends)} ends, truncated in all; {early:.0%} before step {longest}",
        usual="a time limit ends episodes after one number of steps",
        source="Pardo et al. 2018, arXiv 1712.00378",
        change="report terminated=True where the task itself ends",
    )


def time_limits(evidence: Evidence) -> Finding | None:
    """A time limit that is reported as the end of the task."""
    ends = evidence.ends
    if len(ends) < 4 or not all(episode.terminated for episode in ends):
        return None
    length, count = Counter(episode.length for episode in ends).most_common(1)[0]
    if count < max(0.3 * len(ends), 4) or length < 10 or length < max(episode.length for episode in ends):
        return None
    return Finding(
        name="time_limits",
        severity=FAULT,
        title="A time limit counts as the end of the task, so that the future is worth nothing there",
        measured=f"{count} of {len(ends)} episodes terminate after exactly {length} steps, none is truncated",
        usual="a time limit sets truncated, and values are bootstrapped",
        source="Pardo et al. 2018, arXiv 1712.00378",
        change="report truncated=True and terminated=False at the limit, or show the time left in the observation",
    )


def one_sided_actions(evidence: Evidence) -> Finding | None:
    """Actions on one side of zero that all have the same effect."""
    if not evidence.no_effect:
        return None
    low, high = next(iter(evidence.no_effect.values()))
    which = ", ".join(str(number) for number in evidence.no_effect)
    return Finding(
        name="one_sided_actions",
        severity=FAULT,
        title="The world clips actions to one side",
        measured=f"actions from {low:g} to {high:g} have the same effect in dimension {which} of the action",
        usual="all actions between the bounds differ in their effect",
        source="Stable-Baselines3, Reinforcement Learning Tips and Tricks: symmetric, normalised action spaces",
        change="declare bounds that the world uses: actions in [-1, 1] are scaled to them",
    )


def masks(evidence: Evidence) -> Finding | None:
    """Choices that the world never allows."""
    allowed = [part.sequences.get("action_mask", None) for part in (evidence.random, evidence.explored)]
    if any(mask is None for mask in allowed):
        return None
    legal = torch.cat([mask.flatten(0, 1) for mask in allowed]).bool()  # type: ignore[union-attr]
    never, single = ~legal.any(0), float((legal.sum(-1) == 1).float().mean())
    if float(never.float().mean()) < 0.5 and single < 0.95:
        return None
    measured = f"{int(never.sum())} of {len(never)} choices were never allowed in {len(legal):,} decisions"
    return Finding(
        name="masks",
        severity=FAULT,
        title="The action mask leaves no choice",
        measured=f"{measured}; in {single:.0%} of them one alone was",
        usual="every choice is allowed at times",
        source="Huang & Ontanon 2022, arXiv 2006.14171",
        change="the mask of the world: True (or 1) marks a legal choice",
    )


# -- data and acting -------------------------------------------------------------------------------------------------


def normalizer(evidence: Evidence) -> Finding | None:
    """Statistics of the normaliser that do not fit what the agent sees."""
    agent, inputs = evidence.agent, evidence.inputs
    if agent.normalizer is None or evidence.frames < 1000:
        return None
    moments: list[Any] = list(agent.normalizer.moments)
    count = min(float(entry.count) for entry in moments)
    off = 0.0 if inputs is None else float(inputs.mean(0).abs().max())
    spread = 1.0 if inputs is None else float(inputs.std(0).max())
    if count >= 0.05 * evidence.frames and off < 5 and spread < 5:
        return None
    return Finding(
        name="normalizer",
        severity=FAULT,
        title="The normaliser has lost its statistics",
        measured=f"{count:,.0f} observations in {evidence.frames:,} frames; inputs are up to {off:.2g} from 0",
        usual="as many observations as frames, inputs of mean 0 and standard deviation 1",
        source="Stable-Baselines3 #1256 and the guide to VecNormalize: save and load the statistics with the agent",
        change="resume=runs/<run>, which restores them; init= and a file of weights alone do not",
    )


def greedy_without_normalizer(evidence: Evidence) -> Finding | None:
    """A greedy policy that acts on raw observations although the agent learned on normalised ones."""
    if evidence.greedy_normalizes is not False:
        return None
    greedy, explored = float(evidence.greedy.returns.mean()), float(evidence.explored.returns.mean())
    return Finding(
        name="greedy_without_normalizer",
        severity=FAULT,
        title="Evaluations act without the normaliser that the agent learned with",
        measured=f"greedy actions ignore the statistics; mean return {greedy:.4g} greedy, {explored:.4g} exploring",
        usual="both policies see the same inputs",
        source="Stable-Baselines3 #1556 and #2091",
        change="the greedy policy of your algorithm: pass observations through self.normalized",
    )


def evaluations(evidence: Evidence) -> Finding | None:
    """A greedy policy, or evaluations, much worse than the policy that explores."""
    greedy, explored, random = (part.returns for part in (evidence.greedy, evidence.explored, evidence.random))
    gain = float(explored.mean() - random.mean())
    error = math.sqrt(sum(float(part.var(unbiased=False)) / max(len(part), 1) for part in (greedy, explored)))
    usual, source = "greedy actions score as well as exploring ones, or better", "Stable-Baselines3 #2091"
    if evidence.learned and float(explored.mean() - greedy.mean()) > max(0.5 * gain, 4 * error):
        change = "agent.greedy=sample, if the algorithm has it; otherwise look at how the greedy policy is made"
        options = {"agent.greedy": "sample"} if "greedy" in evidence.config["agent"] else {}
        means = f"mean return {float(greedy.mean()):.4g} greedy, {float(explored.mean()):.4g} exploring"
        title = "The greedy policy is much worse than the exploring one"
        return Finding(
            name="evaluations",
            severity=FAULT,
            title=title,
            measured=means,
            usual=usual,
            source=source,
            change=change,
            options=options,
        )
    return None


def replay(evidence: Evidence) -> Finding | None:
    """A replay buffer that holds old data alone."""
    held, frames = evidence.replay, evidence.frames
    if held is None or evidence.config.get("data") is not None:
        return None
    wanted = min(held["capacity"], float(frames))
    if held["size"] >= 0.5 * wanted or wanted < 500:
        return None
    return Finding(
        name="replay",
        severity=FAULT,
        title="The replay buffer no longer takes in what the agent does",
        measured=f"{held['size']:,.0f} transitions after {frames:,} frames, with room for {held['capacity']:,.0f}",
        usual="as many as there were frames, until it is full",
        source="Fedus et al. 2020, arXiv 2007.06700: agents learn better from younger data",
        change="the algorithm's extend and agent.replay: new data have to reach the buffer",
    )


def exploration(evidence: Evidence) -> Finding | None:
    """A policy that hardly tried anything from the beginning on."""
    agent, interface = evidence.agent, evidence.agent.interface
    source = "Ahmed et al. 2019, arXiv 1811.11214; Jones 2021, Debugging Reinforcement Learning Systems"
    if "epsilon" in agent.schedules and type(agent).__name__ != "SAC" and not interface.continuous:
        total = max(int(evidence.config.get("total_frames") or 1), 1)
        most = max(float(agent.schedules["epsilon"](round(total * part / 20))) for part in range(21))
        noisy = any(key == "noise_std" for key in evidence.config["agent"])
        if most < 0.01 and not noisy and not evidence.option("random_frames"):
            usual = "from 1 down to 0.05 in the first tenth of the run (Mnih et al. 2015)"
            change, options = "agent.epsilon={kind: linear, start: 1.0, end: 0.05, duration: 0.1}", {}
            text = "The agent never explores"
            return Finding(
                name="exploration",
                severity=FAULT,
                title=text,
                measured=f"agent.epsilon={most:g}",
                usual=usual,
                source=source,
                change=change,
                options=options,
            )
        return None
    entropy = evidence.early("policy/entropy")
    log_std = getattr(getattr(agent, "actor", None), "log_std", None)
    change, options = "agent.entropy_coefficient=0.01", dict[str, Any]()
    if "entropy_coefficient" in evidence.config["agent"]:
        options = {"agent.entropy_coefficient": 0.01}
    if interface.choices and entropy is not None:
        most = sum(math.log(count) for count in interface.choices)
        if most > 0 and entropy < 0.05 * most:
            measured = f"an entropy of {entropy:.2g} in the first tenth of the run, of at most {most:.2g}"
            usual = "near its greatest value at first, then falling"
            gain = {"agent.policy_gain": 0.01} if "policy_gain" in evidence.config["agent"] else {}
            change = "agent.policy_gain=0.01, agent.entropy_coefficient=0.01" if gain else change
            return Finding(
                name="exploration",
                severity=FAULT,
                title="The policy has no entropy from the beginning on, so that it tries nothing",
                measured=measured,
                usual=usual,
                source=source,
                change=change,
                options={**gain, **options},
            )
    if isinstance(log_std, Tensor) and interface.continuous:
        std, began = float(log_std.detach().exp().max()), float(evidence.option("initial_std", 1.0))
        if max(std, began) < 0.02:
            measured = f"a standard deviation of {began:.2g} at first, {std:.2g} now, for actions in [-1, 1]"
            usual, change = "1 at first, rarely below 0.05", "agent.initial_std=1.0, agent.entropy_coefficient=0.01"
            return Finding(
                name="exploration",
                severity=FAULT,
                title="The policy has no entropy from the beginning on, so that it tries nothing",
                measured=measured,
                usual=usual,
                source=source,
                change=change,
                options={"agent.initial_std": 1.0, **options},
            )
    temperature = evidence.option("alpha")
    if temperature is not None and not evidence.option("learn_alpha", True) and float(temperature) < 1e-4:
        text, measured = (
            "The temperature leaves no entropy to the policy",
            f"agent.alpha={float(temperature):.2g}, fixed",
        )
        usual, source = "0.05 to 1, or learned", "Haarnoja et al. 2018, arXiv 1812.05905"
        change, options = "agent.learn_alpha=true agent.alpha=1.0", {"agent.learn_alpha": True, "agent.alpha": 1.0}
        return Finding(
            name="exploration",
            severity=FAULT,
            title=text,
            measured=measured,
            usual=usual,
            source=source,
            change=change,
            options=options,
        )
    return None


# -- networks --------------------------------------------------------------------------------------------------------


def dormant(evidence: Evidence) -> Finding | None:
    """Layers of units that no longer respond."""
    if not evidence.layers:
        return None
    worst = max(share for share, _ in evidence.layers)
    if worst < 0.8:
        return None
    source = "Sokar et al. 2023, arXiv 2302.12902; Lu et al. 2019, arXiv 1903.06733"
    change, options = "agent.activation=elu, a smaller learning rate", {"agent.activation": "elu"}
    if "layer_norm" in evidence.config["agent"]:
        change, options = "agent.layer_norm=true, a smaller learning rate", {"agent.layer_norm": True}
    if evidence.option("network"):
        change, options = "the initial weights and biases of your network, or a smaller learning rate", {}
    measured = f"{worst:.0%} of the units of a layer are dormant: activity below 0.025 of the layer's mean, or none"
    severity = FAULT if worst > 0.98 else SYMPTOM
    return Finding(
        name="dormant",
        severity=severity,
        title="Hidden units are dead",
        measured=measured,
        usual="below a third",
        source=source,
        change=change,
        options=options,
    )


def saturated(evidence: Evidence) -> Finding | None:
    """Layers of saturated units."""
    worst = max((share for _, share in evidence.layers), default=0.0)
    if worst < 0.8:
        return None
    return Finding(
        name="saturated",
        severity=SYMPTOM,
        title="Hidden units are saturated, so that no gradient passes through them",
        measured=f"{worst:.0%} of the units of a layer are above 0.97 on average",
        usual="below 50 %",
        source="Glorot & Bengio 2010",
        change="agent.activation=relu, normalised inputs",
        options={"agent.activation": "relu"},
    )


def feature_rank(evidence: Evidence) -> Finding | None:
    """Features that have collapsed to a few directions."""
    if evidence.rank is None or evidence.rank[0] > max(0.02 * evidence.rank[1], 1) or evidence.rank[1] < 16:
        return None
    rank, size = evidence.rank
    return Finding(
        name="feature_rank",
        severity=SYMPTOM,
        title="The last hidden layer tells states hardly apart",
        measured=f"an effective rank of {rank} of {size} features",
        usual="a tenth of the features or more",
        source="Kumar et al. 2021, arXiv 2010.14498",
        change="fewer updates per frame, a smaller learning rate, agent.layer_norm=true",
    )


def inputs_scale(evidence: Evidence) -> Finding | None:
    """Inputs far from unit scale."""
    inputs = evidence.inputs
    if inputs is None or evidence.agent.normalizer is not None or len(inputs) < 2:
        return None
    most = float(torch.maximum(inputs.mean(0).abs(), inputs.std(0)).max())
    constant = float((inputs.std(0) == 0).float().mean())
    if math.isfinite(most) and most <= 20:
        return None
    change, options = "agent.normalize_observations=true", {"agent.normalize_observations": True}
    return Finding(
        name="inputs_scale",
        severity=SYMPTOM,
        title="Inputs of the networks are far from unit scale",
        measured=f"means or standard deviations reach {most:.3g}; {constant:.0%} of the inputs never change",
        usual="mean 0 and standard deviation 1",
        source="Andrychowicz et al. 2021, arXiv 2006.05990",
        change=change,
        options=options,
    )


# -- learning --------------------------------------------------------------------------------------------------------


def policy_change(evidence: Evidence) -> Finding | None:
    """A policy that changes too much in one batch."""
    kl, clipped = evidence.late("policy/kl"), evidence.late("policy/clipped")
    if (kl or 0.0) < 0.2 and (clipped or 0.0) < 0.6:
        return None
    measured = f"a KL divergence of {kl or 0:.2g} a batch, {clipped or 0:.0%} of the probability ratios clipped"
    rate = evidence.agent.scheduled.get("lr")
    options = {"agent.lr": float(rate) / 10} if rate else {}
    return Finding(
        name="policy_change",
        severity=SYMPTOM,
        title="The policy changes too much in one batch",
        measured=measured,
        usual="0.01 to 0.05, 10 to 30 % clipped",
        source="Achiam 2018, Spinning Up: target_kl; Schulman et al. 2017",
        change="a learning rate ten times smaller, fewer agent.epochs, or agent.target_kl=0.03",
        options=options,
    )


def clipped_gradients(evidence: Evidence) -> Finding | None:
    """Gradients that clipping always shortens by much."""
    limit = evidence.option("max_grad_norm")
    norms = {row: values for row in ("grad/all", "grad/critic", "grad/actor") if (values := evidence.curve(row))}
    if not isinstance(limit, int | float) or not norms:
        return None
    name, values = max(norms.items(), key=lambda entry: sorted(entry[1])[len(entry[1]) // 2])
    middle = sorted(values)[len(values) // 2]
    if middle < 50 * limit:
        return None
    return Finding(
        name="clipped_gradients",
        severity=SYMPTOM,
        title="Clipping shortens every gradient to a small part",
        measured=f"the median norm of {name} is {middle:.3g}, agent.max_grad_norm={limit:g}",
        usual="a limit between half of the average norm and ten times it",
        source="Pascanu et al. 2013, arXiv 1211.5063",
        change="agent.normalize_rewards=true: large errors come from large returns",
        options={"agent.normalize_rewards": True},
    )


def explained_variance(evidence: Evidence) -> Finding | None:
    """Values that do not predict the returns that follow."""
    found = mean_error(evidence)
    if found is None or found["explained"] > 0.0:
        return None
    return Finding(
        name="explained_variance",
        severity=SYMPTOM,
        title="The value function predicts returns no better than a constant",
        measured=f"an explained variance of {found['explained']:.2g} over {found['count']:,.0f} fresh decisions",
        usual="rises towards 1; at 0 or below, the mean would predict as well",
        source="Stable-Baselines3, Logger: explained_variance",
        change="more epochs or larger agent.value_coefficient; inputs that tell states apart",
    )


def value_bias(evidence: Evidence) -> Finding | None:
    """Values far above, or below, the returns that followed."""
    found = mean_error(evidence)
    if found is None or abs(found["bias"]) < 3:
        return None
    over = found["bias"] > 0
    change = (
        "agent=td3 or agent=sac, which take the smaller of two values; agent.double=true" if over else "more updates"
    )
    options = {"agent.double": True} if over and evidence.option("double") is False else {}
    return Finding(
        name="value_bias",
        severity=SYMPTOM,
        title=f"Values are far {'above' if over else 'below'} the returns that followed",
        measured=f"by {abs(found['bias']):.2g} standard deviations of the returns, {found['count']:,.0f} decisions",
        usual="within one standard deviation",
        source="Fujimoto et al. 2018, arXiv 1802.09477; van Hasselt et al. 2016",
        change=change,
        options=options,
    )


def advantages(evidence: Evidence) -> Finding | None:
    """Advantages whose signs say nothing about what followed."""
    values, returns, known = evidence.values, evidence.returns, evidence.known
    if values is None or returns is None or known is None or evidence.option("gae_lambda") is None:
        return None
    if values.shape[1] < 2 or int(known.sum()) < 256:
        return None
    following = evidence.explored.sequences[: len(values)].get("next")
    after = torch.cat((values[:, 1:], values[:, -1:]), 1).unsqueeze(-1).double()
    reward, done, terminated = following.get("reward").double(), following.get("done"), following.get("terminated")
    if evidence.agent.reward_scaler is not None:
        reward = evidence.agent.reward_scaler(reward)
    gamma, decay = float(evidence.option("gamma")), float(evidence.option("gae_lambda"))
    guess, _ = estimate(gamma, decay, values.unsqueeze(-1).double(), after, reward, done, terminated)
    actual = returns - values
    guess = guess[..., 0]
    guess, actual = guess - guess[known].mean(), actual - actual[known].mean()
    agree = float(((guess > 0) == (actual > 0))[known].double().mean())
    if agree >= 0.55:
        return None
    return Finding(
        name="advantages",
        severity=SYMPTOM,
        title="Advantages say nothing about what follows an action",
        measured=f"their sign agrees with what followed in {agree:.0%} of {int(known.sum()):,} decisions",
        usual="well above 50 %, which is chance",
        source="Schulman et al. 2016, arXiv 1506.02438",
        change="agent.gae_lambda nearer to 1, a better value function",
        options={"agent.gae_lambda": 0.99},
    )


def at_bounds(evidence: Evidence) -> Finding | None:
    """Actions that are nearly all at their bounds."""
    interface, sequences = evidence.agent.interface, evidence.greedy.sequences
    if not interface.continuous:
        return None
    action = interface.from_env(sequences.get("action"))[sequences.get("active")]
    share = float((action.abs() >= AT_BOUND).float().mean())
    if share < 0.95:
        return None
    return Finding(
        name="at_bounds",
        severity=SYMPTOM,
        title="The policy acts at the bounds of its actions alone",
        measured=f"{share:.0%} of the greedy actions",
        usual="below half, unless the task asks for full thrust",
        source="Hausknecht & Stone 2016, arXiv 1511.04143",
        change="smaller rewards or learning rates; agent.raw_penalty, if it has one",
    )


def no_variety(evidence: Evidence) -> Finding | None:
    """A greedy policy that does the same in every state."""
    agent, sequences = evidence.agent, evidence.explored.sequences[:, -32:]
    if not agent.interface.choices:
        return None
    with undisturbed(agent):
        chosen: Any = act(agent, agent.policy(explore=False), sequences)
    if not isinstance(chosen, Tensor):
        return None
    share = Counter(chosen.flatten().tolist()).most_common(1)[0][1] / chosen.numel()
    if share < 0.999 or chosen.numel() < 64:
        return None
    return Finding(
        name="no_variety",
        severity=SYMPTOM,
        title="The greedy policy makes the same choice in every state",
        measured=f"{share:.0%} of {chosen.numel():,} decisions",
        usual="choices follow the state",
        source="Jones 2021",
        change="agent.entropy_coefficient=0.01 or more exploration; inputs that tell states apart",
    )


def cut_episodes(evidence: Evidence) -> Finding | None:
    """Episodes that hardly ever end by themselves, with a limit far shorter than the agent's horizon."""
    ends, gamma = evidence.explored.episodes, float(evidence.option("gamma", 0.99))
    if len(ends) < 8 or gamma >= 1:
        return None
    cut = [episode for episode in ends if not episode.terminated]
    longest = max(episode.length for episode in ends)
    if len(cut) < 0.95 * len(ends) or longest > 0.2 / (1 - gamma):
        return None
    return Finding(
        name="cut_episodes",
        severity=REMARK,
        title="The time limit cuts episodes long before the rewards that the agent is to see",
        measured=f"{len(cut)} of {len(ends)} episodes are cut, by step {longest}; the horizon is {1 / (1 - gamma):.0f}",
        usual="limits of several horizons",
        source="Pardo et al. 2018, arXiv 1712.00378",
        change="a longer time limit (env.max_steps)",
    )


CHECKS: tuple[Check, ...] = (
    *(learning_rate, not_begun, masks, one_sided_actions, terminations, time_limits, normalizer),
    *(greedy_without_normalizer, replay, dormant, horizon, reward_reachable, reward_scale, exploration, evaluations),
    *(inputs_scale, policy_change, saturated, clipped_gradients, at_bounds, explained_variance, value_bias),
    *(advantages, no_variety, feature_rank, few_updates, cut_episodes),
)
"""All checks; among findings of one severity, the first stands first."""
