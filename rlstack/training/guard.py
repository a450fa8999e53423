"""Finds numbers that are not finite in batches and in updates, names them, and keeps them out of the agent.

Each batch is checked by one sum over it, and the optimiser never takes a step whose loss or gradient is not finite (see
:class:`rlstack.agents.optimizer.Optimizer`). Only when one of these fails does the guard search for the entry.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from tensordict import TensorDictBase
from torch import Tensor

from rlstack.agents.base import Agent
from rlstack.config.errors import RunError
from rlstack.data.finite import LEARNED_FROM, Finding, Sum, find, leaves, total_of
from rlstack.data.flatten import flatten_agents
from rlstack.data.graphs import Recorded
from rlstack.runs.checkpoint import write_tensors
from rlstack.runs.seeding import seed_everything

from .config import GuardConfig
from .hooks import DropBatch, Hook, Training
from .monitor import count_frames

BAD_BATCH = "bad_batch.pt"


class Guard(Hook):
    """Keeps numbers that are not finite out of an agent: checks its batches and its updates.

    With ``error`` the guard does not wait for a GPU: it learns the result a little later, at the latest before the run
    logs or saves. ``skip`` and ``rollback`` need the result before the agent learns, and wait for it once a batch.

    Args:
        config: what to do about such numbers.
        agent: the learner.
        folder: the run's folder, for ``bad_batch.pt``.
        seed: the run's seed.
        unit: unit of frames; see ``CollectorConfig.count``.
    """

    name = "guard"

    def __init__(self, config: GuardConfig, agent: Agent, folder: Path, seed: int, unit: str) -> None:
        self._config, self._agent, self._file, self._seed, self._unit = config, agent, folder / BAD_BATCH, seed, unit
        self._written = False
        self._pending: deque[tuple[Sum, TensorDictBase, int]] = deque()
        self._refused_before = self._refused_earlier = 0  # in this process, and before the run was resumed
        self._in_a_row, self._dropped, self._rollbacks = 0, 0, 0
        self._sequences: TensorDictBase | None = None
        self._later = False
        self._total: Callable[[list[Tensor]], Tensor] = total_of
        if agent.compiler is not None and agent.compiler.graphs:
            self._total = Recorded(total_of, "checking a batch", (), agent.device, lent=True)

    # -- called by the loop --------------------------------------------------------------------------------------

    def on_start(self, training: Training) -> None:
        self._keep()

    def on_collected(self, training: Training, batch: TensorDictBase, sequences: TensorDictBase) -> None:
        """Drops a batch that is not finite.

        Raises:
            RunError: the options say that the run ends, at once or after this many batches.
        """
        self._sequences = sequences
        total = Sum([value for _, value in leaves(batch, LEARNED_FROM)], self._total)
        self._later = self._config.non_finite == "error" and total.of_gpu
        if self._later:
            self._pending.append((total, batch, training.previous))
            self._look_back(wait=False)
            return
        finding = None if total.is_finite() else find(batch)
        fault = "" if finding is None else self._describe(finding, batch, training.previous)
        if self._config.non_finite != "error":  # all ranks drop a batch, or none does
            fault = next(filter(None, training.ranks.everyone(fault)), "")
        if fault:
            self._dropped += 1
            self._act(fault, None if finding is None else batch, training.frames)
            raise DropBatch

    def on_batch(self, training: Training, batch: TensorDictBase, metrics: Mapping[str, Any]) -> None:
        """Checks the agent's updates; drops a batch after which the agent was restored.

        Raises:
            RunError: an update was not finite, and the options say that the run ends.
        """
        sequences, self._sequences = self._sequences, None
        if not self._later and not self._goes_on(sequences, training.frames):
            raise DropBatch

    def on_checkpoint(self, training: Training) -> None:
        """Keeps an agent that is not finite from being saved.

        Raises:
            RunError: a network of the agent is not finite, or an earlier batch or update was not.
        """
        self._settle()
        for name, network in self._agent.networks.items():
            for part, value in network.state_dict().items():
                if isinstance(value, Tensor) and value.is_floating_point() and value.isnan().any():
                    raise RunError(f"not finite: {part} of the agent's {name}; checkpoints stay as they were")
        self._keep()  # a resumed run goes back to its checkpoint

    def on_log(self, training: Training) -> Mapping[str, Any]:
        """Returns metrics ``guard/...`` once something has been found; keeps the agent for ``rollback``.

        Raises:
            RunError: a batch on a GPU was not finite.
        """
        self._settle()
        self._keep()
        refused = self._refused_earlier + self._refused_before
        counts = {"dropped_batches": self._dropped, "refused_steps": refused, "rollbacks": self._rollbacks}
        return {f"guard/{name}": float(count) for name, count in counts.items() if count}

    def state_dict(self) -> dict[str, Any]:
        """Returns the counts so far."""
        refused = self._refused_earlier + self._refused_before
        counts = {"dropped": self._dropped, "in_a_row": self._in_a_row, "rollbacks": self._rollbacks}
        return {**counts, "refused": refused}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores :meth:`state_dict`."""
        self._dropped, self._in_a_row, self._rollbacks = (state[key] for key in ("dropped", "in_a_row", "rollbacks"))
        self._refused_earlier = state["refused"]

    # -- consequences --------------------------------------------------------------------------------------------

    def _keep(self) -> None:
        if self._config.non_finite == "rollback":
            self._good = deepcopy(self._agent.state_dict())

    def _settle(self) -> None:
        """Waits for the results of all batches so far."""
        self._look_back(wait=True)
        if self._config.non_finite == "error":
            self._goes_on(None, self._agent.frames)

    def _look_back(self, wait: bool) -> None:
        """Checks the sums of earlier batches that the GPU has finished."""
        while self._pending and (wait or self._pending[0][0].is_there()):
            total, batch, before = self._pending.popleft()
            if total.is_finite():
                continue
            if (finding := find(batch)) is not None:
                self._act(self._describe(finding, batch, before), batch, before)
            else:  # a later batch has been written into the same tensors
                self._act(f"something in the batch after frame {before:,}", None, before)

    def _goes_on(self, sequences: TensorDictBase | None, frames: int) -> bool:
        """Acts on updates that the optimisers have refused since the last call; False if the agent was restored."""
        optimizers = self._agent.optimizers
        refused = int(sum(float(optimizer.refused) for optimizer in optimizers.values()))
        if refused == self._refused_before:
            self._in_a_row = 0
            return True
        self._refused_before = refused
        culprits = ", ".join(name for name, optimizer in optimizers.items() if float(optimizer.refused))
        what, batch = f"the loss or a gradient (optimiser {culprits})", sequences
        names = {
            id(parameter): f"{network}.{name}"
            for network, module in self._agent.networks.items()
            for name, parameter in module.named_parameters()
        }
        for name, optimizer in reversed(optimizers.items()):  # the first one is named
            if (refusal := optimizer.refusal) is not None:
                terms = f"the loss ({', '.join(refusal.terms)})" if refusal.terms else "the loss"
                bad = [names.get(id(parameter), "a parameter") for parameter in refusal.parameters]
                more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
                gradients = f"the gradient of {', '.join(bad[:3])}{more}" if bad else "no gradient by itself"
                what, batch = f"{terms} or {gradients} (optimiser {name})", refusal.batch
                optimizer.refusal = None
        self._act(f"{what}, in an update at frame {frames:,}", batch, frames)
        return self._config.non_finite == "skip"

    def _act(self, what: str, batch: TensorDictBase | None, frames: int) -> None:
        """Ends the run, counts the case, or restores the agent."""
        kind, limit = self._config.non_finite, self._config.limit
        where = self._write(what, batch, frames)
        if kind == "error":
            raise RunError(f"not finite: {what}{where}; guard.non_finite=skip leaves such out, rollback goes back")
        self._in_a_row += 1
        if kind == "skip":
            if self._in_a_row > limit:
                raise RunError(f"not finite: {what}{where}; so were the {limit} batches before (guard.limit)")
            return
        if self._rollbacks >= limit:
            raise RunError(f"not finite: {what}{where}; the agent has gone back {limit} times (guard.limit)")
        self._rollbacks += 1
        self._agent.load_state_dict(self._good)
        self._agent.set_frames(frames)
        seed_everything((self._seed + self._rollbacks) % 2**32)

    def _write(self, what: str, batch: TensorDictBase | None, frames: int) -> str:
        """Saves the first bad batch and the agent for inspection; returns a phrase that names the file."""
        if not self._written and batch is not None:
            content = {"found": what, "frames": frames, "batch": batch.to_dict(), "agent": self._agent.state_dict()}
            try:
                write_tensors(self._file, content)
            except (OSError, RuntimeError) as error:
                return f"; the batch could not be written ({error})"
            self._written = True
        return f"; see {self._file}" if self._written else ""

    def _describe(self, finding: Finding, batch: TensorDictBase, before: int) -> str:
        """Describes the finding, with its frame in the run, in a batch that begins after ``before`` frames."""
        if finding.step:
            earlier = batch[..., : finding.step]
            before += int(count_frames(earlier, flatten_agents(earlier, self._agent.interface.group), self._unit))
        return f"{finding}, frame {before:,}"
