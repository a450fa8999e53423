"""The checks of ``rlstack explain``: each looks at the evidence about a run, and says what it measured if it is wrong.

The docstring of a check is the title of its finding. A check that cannot tell, since the agent lacks what it looks at,
says nothing. Causes that lie in the set-up or the world (``FAULT``) come before symptoms (``SYMPTOM``), which a fault
often explains, and these before remarks (``REMARK``). Symptoms and remarks are left out where the agent is clearly
better than random actions, because agents that learn show many of them as well. Among findings of one severity, the
check that stands first in this file stands first.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

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


class Wrong(NamedTuple):
    """What a check found: what it measured, the change as options, and what differs from the check's own words."""

    measured: str
    options: dict[str, Any] = {}
    words: dict[str, str] = {}


CHECKS: list[Callable[[Evidence], Finding | None]] = []
"""All checks, in the order of this file."""


def check(
    severity: str, *, usual: str, source: str, change: str
) -> Callable[[Callable[[Evidence], Wrong | None]], Callable[[Evidence], Finding | None]]:
    """Makes a function of the evidence a check with these words, and adds it to :data:`CHECKS`."""

    def made(look: Callable[[Evidence], Wrong | None]) -> Callable[[Evidence], Finding | None]:
        def checked(evidence: Evidence) -> Finding | None:
            if (wrong := look(evidence)) is None:
                return None
            title = str(look.__doc__).removesuffix(".")
            words = {"severity": severity, "title": title, "usual": usual, "source": source, "change": change}
            return Finding(look.__name__, measured=wrong.measured, options=wrong.options, **(words | wrong.words))

        CHECKS.append(checked)
        return checked

    return made


def findings(evidence: Evidence) -> list[Finding]:
    """Returns what the checks find, the likeliest cause first."""
    found = [finding for one in CHECKS if (finding := one(evidence)) is not None]
    if evidence.learned:
        found = [finding for finding in found if finding.severity == FAULT]
    return sorted(found, key=lambda finding: _ORDER.index(finding.severity))


def _highest(evidence: Evidence, schedule: str) -> float:
    """Returns the highest value of one of the agent's schedules over the run."""
    total = max(int(evidence.config.get("total_frames") or 1), 1)
    return max(float(evidence.agent.schedules[schedule](round(total * part / 20))) for part in range(21))


# -- causes in the set-up, the world and the data --------------------------------------------------------------------


@check(
    FAULT,
    usual="1e-5 to 1e-2, most often about 3e-4",
    source="Andrychowicz et al. 2021, arXiv 2006.05990; the search space of rl-zoo3",
    change="a learning rate of 3e-4",
)
def learning_rate(evidence: Evidence) -> Wrong | None:
    """The learning rate is far from the usual."""
    for name in evidence.agent.optimizers:
        if not 1e-6 <= (most := _highest(evidence, name)) <= 0.02:
            change = {"change": f"agent.{name}=3e-4"} if name in evidence.config["agent"] else {}
            return Wrong(f"agent.{name}={most:g} at its highest", {f"agent.{name}": 3e-4} if change else {}, change)
    return None


@check(
    FAULT,
    usual="learning begins within the first hundredth of a run",
    source="Mnih et al. 2015",
    change="a smaller agent.learning_starts",
)
def not_begun(evidence: Evidence) -> Wrong | None:
    """The agent has not begun to learn."""
    starts, frames = float(evidence.option("learning_starts", 0) or 0), evidence.frames
    options = {"agent.learning_starts": frames // 100}
    if frames and not evidence.agent.updates and starts >= frames:
        return Wrong(f"no update in {frames:,} frames, agent.learning_starts={starts:,.0f}", options)
    for name, schedule in evidence.agent.schedules.items():
        begins, then = float(schedule(0)), float(schedule(int(starts)))
        if name.startswith(("lr", "epsilon")) and starts and begins > 0 and then < 0.06 * begins:
            title = "A schedule is over before the agent begins to learn"
            measured = f"agent.{name}={begins:g} at first, {then:g} at frame {starts:,.0f}, when learning begins"
            return Wrong(measured, options, {"severity": SYMPTOM, "title": title})
    return None


@check(
    FAULT,
    usual="every choice is allowed at times",
    source="Huang & Ontanon 2022, arXiv 2006.14171",
    change="the mask of the world: True (or 1) marks a legal choice",
)
def masks(evidence: Evidence) -> Wrong | None:
    """The action mask leaves no choice."""
    allowed = [part.sequences.get("action_mask", None) for part in (evidence.random, evidence.explored)]
    if any(mask is None for mask in allowed):
        return None
    legal = torch.cat([mask.flatten(0, 1) for mask in allowed]).bool()  # type: ignore[union-attr]
    never, single = ~legal.any(0), float((legal.sum(-1) == 1).float().mean())
    if float(never.float().mean()) < 0.5 and single < 0.95:
        return None
    measured = f"{int(never.sum())} of {len(never)} choices were never allowed in {len(legal):,} decisions"
    return Wrong(f"{measured}; in {single:.0%} of them one alone was")


@check(
    FAULT,
    usual="all actions between the bounds differ in their effect",
    source="Stable-Baselines3, Reinforcement Learning Tips and Tricks: symmetric, normalised action spaces",
    change="declare bounds that the world uses: actions in [-1, 1] are scaled to them",
)
def one_sided_actions(evidence: Evidence) -> Wrong | None:
    """The world clips actions to one side."""
    if not evidence.no_effect:
        return None
    low, high = next(iter(evidence.no_effect.values()))
    which = ", ".join(str(number) for number in evidence.no_effect)
    return Wrong(f"actions from {low:g} to {high:g} have the same effect in dimension {which} of the action")


@check(
    FAULT,
    usual="a time limit ends episodes after one number of steps",
    source="Pardo et al. 2018, arXiv 1712.00378",
    change="report terminated=True where the task itself ends",
)
def terminations(evidence: Evidence) -> Wrong | None:
    """The world reports the ends of episodes as time limits, so that values go on beyond them."""
    ends = evidence.ends
    if len(ends) < 8 or any(episode.terminated for episode in ends):
        return None
    longest = max(episode.length for episode in ends)
    early = sum(episode.length < longest for episode in ends) / len(ends)
    if early < 0.3 or len({episode.length for episode in ends}) < 4:
        return None
    return Wrong(f"terminated in 0 of {len(ends)} ends, truncated in all; {early:.0%} before step {longest}")


@check(
    FAULT,
    usual="a time limit sets truncated, and values are bootstrapped",
    source="Pardo et al. 2018, arXiv 1712.00378",
    change="report truncated=True and terminated=False at the limit, or show the time left in the observation",
)
def time_limits(evidence: Evidence) -> Wrong | None:
    """A time limit counts as the end of the task, so that the future is worth nothing there."""
    ends = evidence.ends
    if len(ends) < 4 or not all(episode.terminated for episode in ends):
        return None
    length, count = Counter(episode.length for episode in ends).most_common(1)[0]
    if count < max(0.3 * len(ends), 4) or length < 10 or length < max(episode.length for episode in ends):
        return None
    return Wrong(f"{count} of {len(ends)} episodes terminate after exactly {length} steps, none is truncated")


@check(
    FAULT,
    usual="as many observations as frames, inputs of mean 0 and standard deviation 1",
    source="Stable-Baselines3 #1256 and the guide to VecNormalize: save and load the statistics with the agent",
    change="resume=runs/<run>, which restores them; init= and a file of weights alone do not",
)
def normalizer(evidence: Evidence) -> Wrong | None:
    """The normaliser has lost its statistics."""
    agent, inputs = evidence.agent, evidence.inputs
    if agent.normalizer is None or evidence.frames < 1000:
        return None
    moments: list[Any] = list(agent.normalizer.moments)
    count = min(float(entry.count) for entry in moments)
    off = 0.0 if inputs is None else float(inputs.mean(0).abs().max())
    spread = 1.0 if inputs is None else float(inputs.std(0).max())
    if count >= 0.05 * evidence.frames and off < 5 and spread < 5:
        return None
    frames = f"{count:,.0f} observations in {evidence.frames:,} frames"
    return Wrong(f"statistics of {frames}; inputs are up to {off:.2g} from zero")


@check(
    FAULT,
    usual="both policies see the same inputs",
    source="Stable-Baselines3 #1556 and #2091",
    change="the greedy policy of your algorithm: pass observations through self.normalized",
)
def greedy_without_normalizer(evidence: Evidence) -> Wrong | None:
    """Evaluations act without the normaliser that the agent learned with."""
    if evidence.greedy_normalizes is not False:
        return None
    greedy, explored = float(evidence.greedy.returns.mean()), float(evidence.explored.returns.mean())
    means = f"mean return {greedy:.4g} greedy, {explored:.4g} exploring"
    return Wrong(f"greedy actions ignore the statistics; {means}")


@check(
    FAULT,
    usual="as many transitions as there were frames, until it is full",
    source="Fedus et al. 2020, arXiv 2007.06700: agents learn better from younger data",
    change="the algorithm's extend and agent.replay: new data have to reach the buffer",
)
def replay(evidence: Evidence) -> Wrong | None:
    """The replay buffer no longer takes in what the agent does."""
    held, frames = evidence.replay, evidence.frames
    if held is None or evidence.config.get("data") is not None:
        return None
    wanted = min(held["capacity"], float(frames))
    if held["size"] >= 0.5 * wanted or wanted < 500:
        return None
    room = f"with room for {held['capacity']:,.0f}"
    return Wrong(f"{held['size']:,.0f} transitions after {frames:,} frames, {room}")


@check(
    SYMPTOM,
    usual="below a third",
    source="Sokar et al. 2023, arXiv 2302.12902; Lu et al. 2019, arXiv 1903.06733",
    change="a smaller learning rate, agent.activation=elu",
)
def dormant(evidence: Evidence) -> Wrong | None:
    """Hidden units are dead."""
    worst = max((share for share, _ in evidence.layers), default=0.0)
    if worst < 0.8:
        return None
    measured = f"{worst:.0%} of the units of a layer are dormant: activity below 0.025 of the layer's mean, or none"
    options: dict[str, Any] = {"agent.activation": "elu"}
    words = {"severity": FAULT} if worst > 0.98 else {}
    if evidence.option("network"):
        options, words = {}, {**words, "change": "the initial weights of your network, or a smaller learning rate"}
    elif "layer_norm" in evidence.config["agent"]:
        options = {"agent.layer_norm": True}
        words = {**words, "change": "a smaller learning rate, agent.layer_norm=true"}
    return Wrong(measured, options, words)


@check(
    FAULT,
    usual="0.9 to 0.9999, a horizon 1 / (1 - gamma) that reaches the rewards",
    source="Andrychowicz et al. 2021, arXiv 2006.05990; the search space of rl-zoo3 is 0.9 to 0.9999",
    change="agent.gamma=0.99",
)
def horizon(evidence: Evidence) -> Wrong | None:
    """The discount hides what lies more than a few steps ahead."""
    gamma, options = float(evidence.option("gamma", 0.99)), {"agent.gamma": 0.99}
    lengths = [episode.length for episode in evidence.ends]
    long = sum(lengths) / len(lengths) if lengths else float(evidence.random.sequences.shape[1])
    if gamma < 0.9 and long > 5 / (1 - gamma):
        reach = f"a horizon of {1 / (1 - gamma):.3g} steps; episodes have {long:.0f} on average"
        return Wrong(f"agent.gamma={gamma:g}, {reach}", options)
    if gamma == 1.0 and not any(episode.terminated for episode in evidence.ends):
        title = "Without a discount, values of episodes that do not terminate have no bound"
        return Wrong(f"agent.gamma=1 and no termination in {len(lengths)} episodes", options, {"title": title})
    return None


@check(
    FAULT,
    usual="random actions find a reward now and then",
    source="Bellemare et al. 2016, arXiv 1606.01868",
    change="a denser reward, an easier start (curriculum=), imitation.expert=, or agent.rnd={coefficient: 1.0}",
)
def reward_reachable(evidence: Evidence) -> Wrong | None:
    """No episode reaches a reward, so that there is nothing to learn from."""
    rollouts = (evidence.random, evidence.explored)
    rewarded = any(bool((part.sequences.get(("next", "reward")) != 0).any()) for part in rollouts)
    if rewarded or len(evidence.ends) < 4:
        return None
    return Wrong(f"no reward other than zero in {len(evidence.ends)} episodes, at random and of the present policy")


@check(
    FAULT,
    usual="about 0.1 to 100",
    source="Henderson et al. 2018, arXiv 1709.06560; Engstrom et al. 2020, arXiv 2005.12729",
    change="agent.normalize_rewards=true",
)
def reward_scale(evidence: Evidence) -> Wrong | None:
    """Returns have a scale that the value function cannot learn."""
    std = evidence.return_std
    if std is None or std == 0 or 1e-2 <= std <= 1e4:
        return None
    measured = f"the discounted returns have a standard deviation of {std:.2g}"
    if evidence.agent.reward_scaler is not None:
        return Wrong(measured, words={"change": "the scale of the reward in the world"})
    return Wrong(measured, {"agent.normalize_rewards": True})


@check(
    FAULT,
    usual="the entropy is near its greatest value at first, then falls",
    source="Ahmed et al. 2019, arXiv 1811.11214; Jones 2021, Debugging Reinforcement Learning Systems",
    change="more entropy at the beginning",
)
def exploration(evidence: Evidence) -> Wrong | None:
    """The agent has tried hardly anything from the beginning on."""
    agent, interface, given = evidence.agent, evidence.agent.interface, evidence.config["agent"]
    bonus = {"agent.entropy_coefficient": 0.01} if "entropy_coefficient" in given else {}
    entropy, log_std = evidence.early("policy/entropy"), getattr(getattr(agent, "actor", None), "log_std", None)
    acts_by_values = "epsilon" in agent.schedules and "alpha" not in given and not interface.continuous
    if acts_by_values and "noise_std" not in given and not evidence.option("random_frames"):
        if (most := _highest(evidence, "epsilon")) >= 0.01:
            return None
        usual = "from 1 down to 0.05 in the first tenth of the run (Mnih et al. 2015)"
        change = "agent.epsilon={kind: linear, start: 1.0, end: 0.05, duration: 0.1}"
        return Wrong(f"agent.epsilon={most:g} at its highest", words={"usual": usual, "change": change})
    if interface.choices and entropy is not None:
        most = sum(math.log(count) for count in interface.choices)
        if entropy < 0.05 * most:
            gain = {"agent.policy_gain": 0.01} if "policy_gain" in given else {}
            change = {"change": "agent.policy_gain=0.01 agent.entropy_coefficient=0.01"}
            measured = f"an entropy of {entropy:.2g} in the first tenth of the run, of at most {most:.2g}"
            return Wrong(measured, {**gain, **bonus}, change)
    if isinstance(log_std, Tensor) and interface.continuous:
        now, began = float(log_std.detach().exp().max()), float(evidence.option("initial_std", 1.0))
        if max(now, began) < 0.02:
            change = {"change": "agent.initial_std=1.0 agent.entropy_coefficient=0.01"}
            measured = f"a standard deviation of {began:.2g} at first, {now:.2g} now, for actions in [-1, 1]"
            return Wrong(measured, {"agent.initial_std": 1.0, **bonus}, change)
    if not evidence.option("learn_alpha", True) and float(evidence.option("alpha", 1.0)) < 1e-4:
        words = {
            "usual": "a temperature of 0.05 to 1, or a learned one",
            "change": "agent.learn_alpha=true agent.alpha=1",
        }
        options = {"agent.learn_alpha": True, "agent.alpha": 1.0}
        return Wrong(f"agent.alpha={float(evidence.option('alpha')):.2g}, fixed", options, words)
    return None


@check(
    FAULT,
    usual="greedy actions score as well as exploring ones, or better",
    source="Stable-Baselines3 #2091",
    change="agent.greedy=sample, if the algorithm has it; otherwise look at how the greedy policy is made",
)
def evaluations(evidence: Evidence) -> Wrong | None:
    """The greedy policy is much worse than the exploring one."""
    greedy, explored, random = (part.returns for part in (evidence.greedy, evidence.explored, evidence.random))
    gain = float(explored.mean() - random.mean())
    error = math.sqrt(sum(float(part.var(unbiased=False)) / max(len(part), 1) for part in (greedy, explored)))
    if not evidence.learned or float(explored.mean() - greedy.mean()) <= max(0.5 * gain, 4 * error):
        return None
    options = {"agent.greedy": "sample"} if "greedy" in evidence.config["agent"] else {}
    return Wrong(f"mean return {float(greedy.mean()):.4g} greedy, {float(explored.mean()):.4g} exploring", options)


# -- symptoms --------------------------------------------------------------------------------------------------------


@check(
    SYMPTOM,
    usual="mean 0 and standard deviation 1",
    source="Andrychowicz et al. 2021, arXiv 2006.05990",
    change="agent.normalize_observations=true",
)
def inputs_scale(evidence: Evidence) -> Wrong | None:
    """Inputs of the networks are far from unit scale."""
    inputs = evidence.inputs
    if inputs is None or evidence.agent.normalizer is not None or len(inputs) < 2:
        return None
    most = float(torch.maximum(inputs.mean(0).abs(), inputs.std(0)).max())
    if math.isfinite(most) and most <= 20:
        return None
    constant = float((inputs.std(0) == 0).float().mean())
    measured = f"means or standard deviations reach {most:.3g}; {constant:.0%} of the inputs never change"
    return Wrong(measured, {"agent.normalize_observations": True})


@check(
    SYMPTOM,
    usual="0.01 to 0.05, 10 to 30 % clipped",
    source="Achiam 2018, Spinning Up: target_kl; Schulman et al. 2017",
    change="a learning rate ten times smaller, fewer agent.epochs, or agent.target_kl=0.03",
)
def policy_change(evidence: Evidence) -> Wrong | None:
    """The policy changes too much in one batch."""
    kl, clipped = evidence.late("policy/kl") or 0.0, evidence.late("policy/clipped") or 0.0
    if kl < 0.2 and clipped < 0.6:
        return None
    rate = evidence.agent.scheduled.get("lr")
    measured = f"a KL divergence of {kl:.2g} a batch, {clipped:.0%} of the probability ratios clipped"
    return Wrong(measured, {"agent.lr": float(rate) / 10} if rate else {})


@check(
    SYMPTOM,
    usual="below half",
    source="Glorot & Bengio 2010",
    change="agent.activation=relu, normalised inputs",
)
def saturated(evidence: Evidence) -> Wrong | None:
    """Hidden units are saturated, so that no gradient passes through them."""
    worst = max((share for _, share in evidence.layers), default=0.0)
    if worst < 0.8:
        return None
    return Wrong(f"{worst:.0%} of the units of a layer are above 0.97 on average", {"agent.activation": "relu"})


@check(
    SYMPTOM,
    usual="a limit between half of the average norm and ten times it",
    source="Pascanu et al. 2013, arXiv 1211.5063",
    change="agent.normalize_rewards=true: large errors come from large returns",
)
def clipped_gradients(evidence: Evidence) -> Wrong | None:
    """Clipping shortens every gradient to a small part."""
    limit = evidence.option("max_grad_norm")
    norms = {name: values for name in ("grad/all", "grad/critic", "grad/actor") if (values := evidence.curve(name))}
    if not isinstance(limit, int | float) or not norms:
        return None
    middle, name = max((sorted(values)[len(values) // 2], name) for name, values in norms.items())
    if middle < 50 * limit:
        return None
    measured = f"the median norm of {name} is {middle:.3g}, agent.max_grad_norm={limit:g}"
    return Wrong(measured, {"agent.normalize_rewards": True})


@check(
    SYMPTOM,
    usual="below half, unless the task asks for full thrust",
    source="Hausknecht & Stone 2016, arXiv 1511.04143",
    change="smaller rewards or learning rates; agent.raw_penalty, if the algorithm has it",
)
def at_bounds(evidence: Evidence) -> Wrong | None:
    """The policy acts at the bounds of its actions alone."""
    interface, sequences = evidence.agent.interface, evidence.greedy.sequences
    if not interface.continuous:
        return None
    action = interface.from_env(sequences.get("action"))[sequences.get("active")]
    share = float((action.abs() >= AT_BOUND).float().mean())
    return None if share < 0.95 else Wrong(f"{share:.0%} of the greedy actions")


@check(
    SYMPTOM,
    usual="rises towards 1; at 0 or below, the mean would predict as well",
    source="Stable-Baselines3, Logger: explained_variance",
    change="more epochs or larger agent.value_coefficient; inputs that tell states apart",
)
def explained_variance(evidence: Evidence) -> Wrong | None:
    """The value function predicts returns no better than a constant."""
    found = mean_error(evidence)
    if found is None or found["explained"] > 0.0:
        return None
    return Wrong(f"an explained variance of {found['explained']:.2g} over {found['count']:,.0f} fresh decisions")


@check(
    SYMPTOM,
    usual="within one standard deviation",
    source="Fujimoto et al. 2018, arXiv 1802.09477; van Hasselt et al. 2016, arXiv 1509.06461",
    change="above: agent.double=true, or agent=td3 or sac, which take the smaller of two; below: more updates",
)
def value_bias(evidence: Evidence) -> Wrong | None:
    """Values are far from the returns that followed."""
    found = mean_error(evidence)
    if found is None or abs(found["bias"]) < 3:
        return None
    over = found["bias"] > 0
    options = {"agent.double": True} if over and evidence.option("double") is False else {}
    spread = f"{abs(found['bias']):.2g} standard deviations {'above' if over else 'below'} the returns"
    return Wrong(f"{spread}, over {found['count']:,.0f} decisions", options)


@check(
    SYMPTOM,
    usual="well above 50 %, which is chance",
    source="Schulman et al. 2016, arXiv 1506.02438",
    change="agent.gae_lambda nearer to 1, a better value function",
)
def advantages(evidence: Evidence) -> Wrong | None:
    """Advantages say nothing about what follows an action."""
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
    sides = [part - part[known].mean() > 0 for part in (guess[..., 0], returns - values)]
    agree = float((sides[0] == sides[1])[known].double().mean())
    if agree >= 0.55:
        return None
    measured = f"their sign agrees with what followed in {agree:.0%} of {int(known.sum()):,} decisions"
    return Wrong(measured, {"agent.gae_lambda": 0.99})


@check(
    SYMPTOM,
    usual="choices follow the state",
    source="Jones 2021, Debugging Reinforcement Learning Systems",
    change="agent.entropy_coefficient=0.01 or more exploration; inputs that tell states apart",
)
def no_variety(evidence: Evidence) -> Wrong | None:
    """The greedy policy makes the same choice in every state."""
    agent, sequences = evidence.agent, evidence.explored.sequences[:, -32:]
    if not agent.interface.choices:
        return None
    with undisturbed(agent):
        chosen: Any = act(agent, agent.policy(explore=False), sequences)
    if not isinstance(chosen, Tensor) or chosen.numel() < 64:
        return None
    share = Counter(chosen.flatten().tolist()).most_common(1)[0][1] / chosen.numel()
    return None if share < 0.999 else Wrong(f"{share:.0%} of {chosen.numel():,} decisions")


@check(
    SYMPTOM,
    usual="an effective rank of a tenth of the features or more",
    source="Kumar et al. 2021, arXiv 2010.14498",
    change="fewer updates per frame, a smaller learning rate, agent.layer_norm=true",
)
def feature_rank(evidence: Evidence) -> Wrong | None:
    """The last hidden layer tells states hardly apart."""
    if evidence.rank is None:
        return None
    rank, size = evidence.rank
    if size < 16 or rank > max(0.02 * size, 1):
        return None
    return Wrong(f"an effective rank of {rank} of {size} features")


@check(
    SYMPTOM,
    usual="a transition is drawn about once (Ape-X) to 5,000 times (REDQ), 8 times in DQN, 256 times in SAC",
    source="Mnih et al. 2015; Haarnoja et al. 2018; Chen et al. 2021, arXiv 2101.05982",
    change="agent.frames_per_update=1",
)
def few_updates(evidence: Evidence) -> Wrong | None:
    """There are too few updates, or too many, for what is collected."""
    agent, frames, env = evidence.agent, evidence.frames, evidence.config["env"]
    if hasattr(agent, "replay"):
        drawn = agent.updates * float(evidence.option("batch_size", 1)) / max(frames, 1)
        if not agent.updates or 0.1 <= drawn <= 10_000:
            return None
        measured = f"{agent.updates:,} updates in {frames:,} frames: each transition is drawn {drawn:.2g} times"
        return Wrong(measured, {"agent.frames_per_update": 1})
    steps, total = evidence.option("steps_per_batch"), float(evidence.config.get("total_frames") or 0)
    name = "num_worlds" if "num_worlds" in env else "num_envs"
    worlds = env.get(name) or 1
    if not isinstance(steps, int) or not total or total >= 30 * steps * worlds * agent.interface.agents:
        return None
    batches = total / (steps * worlds * agent.interface.agents)
    words = {
        "usual": "a hundred batches or more",
        "source": "Stable-Baselines3 #1625: with more worlds, as many frames mean fewer updates",
        "change": "fewer worlds, shorter batches, or more frames",
    }
    options = {f"env.{name}": max(int(worlds) // 8, 1)} if worlds > 1 else {}
    return Wrong(f"{batches:.0f} batches of {steps} steps in {worlds} worlds", options, words)


@check(
    REMARK,
    usual="limits of several horizons",
    source="Pardo et al. 2018, arXiv 1712.00378",
    change="a longer time limit (env.max_steps)",
)
def cut_episodes(evidence: Evidence) -> Wrong | None:
    """The time limit cuts episodes long before the rewards that the agent is to see."""
    ends, gamma = evidence.explored.episodes, float(evidence.option("gamma", 0.99))
    if len(ends) < 8 or gamma >= 1:
        return None
    cut, longest = sum(not episode.terminated for episode in ends), max(episode.length for episode in ends)
    if cut < 0.95 * len(ends) or longest > 0.2 / (1 - gamma):
        return None
    return Wrong(f"{cut} of {len(ends)} episodes are cut, by step {longest}; the horizon is {1 / (1 - gamma):.0f}")
