"""What happens in a process that steps worlds for a learner elsewhere, and what is sent between the two.

What acting depends on (networks, frames of the run, random numbers) is sent to all workers before every batch, and
their parts of the batch come back together: so they gather what one process would, however many they are.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.envs import EnvBase

from envs.processes import place_of
from envs.world import hooks_of
from rlstack.agents.base import Agent

from .collector import LEAN, LeanCollector
from .messages import from_file, to_file


class Share(NamedTuple):
    """What a worker works on: worlds, those from number ``first`` on of ``total``, and an agent like the learner's."""

    env: EnvBase
    agent: Agent
    first: int
    total: int


class Worker(LeanCollector):
    """The collector in a worker, which does what the learner's process asks for.

    Args:
        make: builds what it works on, from a seed.
        frames_per_batch: steps of its worlds, all together.
        options: of TorchRL's collectors in general, which this one has no use for.
    """

    closed, _use_buffers = True, False  # until it has begun

    def __init__(self, make: Callable[[int], Share], frames_per_batch: int, **options: Any) -> None:
        self._make, self._frames_asked = make, frames_per_batch
        self._level: int | None = None
        if _is_ours():  # signals are for the learner, which closes its workers
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def shutdown(self, *args: Any, **options: Any) -> None:
        """Closes the worlds; a process of ours ends."""
        super().shutdown(*args, **options)
        if _is_ours() and sys.exc_info()[0] is None:
            atexit._run_exitfuncs()
            os._exit(0)  # to take torch apart in good order takes seconds

    def obey(self, task: str, *given: Any) -> dict[str, Any]:
        """``{"done": answer}`` of a method, or ``{"failed": (reason, traceback)}``."""
        try:
            return {"done": getattr(self, task)(*given)}
        except (Exception, SystemExit) as error:
            trace, what = "".join(traceback.format_exception(error)), f"{type(error).__name__}: {error}"
            if isinstance(error, SystemExit):  # a world's own code, which ends nothing here
                name = type(self._share.env).__name__ if hasattr(self, "_share") else "a world"
                what = f"{name} called sys.exit({error.code!r}) in {place_of(error)}"
            return {"failed": (what, trace)}

    def begin(self, seed: int, steps: int) -> None:
        """Builds worlds and agent.

        Args:
            seed: of the worlds.
            steps: that the worlds have counted so far, for their schedules.
        """
        self._share = self._make(seed)
        env: Any = self._share.env
        hooks_of(env).count_on_from(steps)
        policy = self._share.agent.policy(explore=True)
        super().__init__(env, policy, frames_per_batch=self._frames_asked, total_frames=-1, **LEAN)
        self._batches = iter(self)

    def collect(self, learner: dict[str, Any], random: Any, level: int | None) -> tuple[Any, Any, int]:
        """A batch, the state of the random generator after it, and how many steps the worlds have counted.

        Args:
            learner: see :func:`acting_state`.
            random: state of torch's generator, with which all workers begin.
            level: stage of the worlds, see :meth:`envs.world.World.set_stage`; None where there are none.
        """
        env: Any = self._share.env
        act_as(self._share.agent, learner)
        self._take_memory()
        if level != self._level:
            env.set_stage(level)
            self._level = level
        torch.set_rng_state(torch.tensor(random))
        after = int(torch.randint(2**62, ()))
        torch.manual_seed(after + self._share.first)
        if env.device is not None and env.device.type == "cuda":
            torch.cuda.manual_seed(int(torch.randint(2**62, ())))
        batch = next(self._batches)
        return to_arrays(batch), torch.get_rng_state().numpy(), hooks_of(env).total_steps

    def _take_memory(self) -> None:
        """Of the memory of all worlds, with which a resumed agent goes on, leaves that of these."""
        first, here, total = self._share.first, self._share.env.batch_size.numel(), self._share.total
        for part in _sides(self._share.agent):
            if (memory := _restored(part)) is not None and len(memory) % total == 0:
                each = len(memory) // total
                part.restored = memory[first * each : (first + here) * each]

    def worlds(self) -> bytes:
        """The state of the worlds, see :func:`to_file`."""
        return to_file(self._share.env.state_dict())

    def go_on(self, saved: bytes) -> None:
        """Worlds go on from a state."""
        self._share.env.load_state_dict(from_file(saved))
        self.reset()


def _is_ours() -> bool:
    """This is a process of a multi-process collector, not one of Ray's."""
    return multiprocessing.parent_process() is not None


# -- what acting depends on ----------------------------------------------------------------------------------------


def acting_state(agent: Agent) -> dict[str, Any]:
    """What the exploring policy of an agent depends on, as arrays and numbers."""
    return {
        "networks": {name: _arrays(network.state_dict()) for name, network in agent.networks.items()},
        "counts": (agent.frames, agent.updates),
        "restored": [None if one is None else one.cpu().numpy() for one in map(_restored, _sides(agent))],
    }


def act_as(agent: Agent, state: dict[str, Any]) -> None:
    """Makes the exploring policy of an agent that of another, see :func:`acting_state`."""
    for name, network in agent.networks.items():
        network.load_state_dict({key: torch.tensor(value) for key, value in state["networks"][name].items()})
    for part, memory in zip(_sides(agent), state["restored"]):
        if hasattr(part, "restored"):
            part.restored = None if memory is None else torch.tensor(memory, device=part.device)
    frames, agent.updates = state["counts"]
    agent.set_frames(frames)


def _sides(agent: Agent) -> Sequence[Any]:
    return getattr(agent, "parts", [agent])


def _restored(agent: Any) -> Tensor | None:
    """The memory with which a resumed agent goes on, if it has one."""
    return getattr(agent, "restored", None)


def _arrays(state: dict[str, Any]) -> dict[str, Any]:
    return {key: value.detach().cpu().numpy() for key, value in state.items() if isinstance(value, Tensor)}


# -- batches -------------------------------------------------------------------------------------------------------


def to_arrays(batch: TensorDictBase) -> tuple[tuple[int, ...], dict[str, Any]]:
    """Batch size and entries of a tensordict, nested ones in the same way: arrays need no shared memory of torch's,
    whose files a worker that is killed would leave behind."""
    entries = {
        key: to_arrays(value) if isinstance(value, TensorDictBase) else value.detach().cpu().numpy()
        for key, value in batch.items()
    }
    return tuple(batch.batch_size), entries


def joined(parts: Sequence[Any], device: torch.device) -> TensorDict:
    """Batches ``[N, ...]`` of :func:`to_arrays`, of one shape, as one ``[workers * N, ...]`` on a device."""
    size, first = parts[0]
    entries = {
        key: joined([part[1][key] for part in parts], device)
        if isinstance(value, tuple)
        else torch.from_numpy(np.concatenate([part[1][key] for part in parts])).to(device)
        for key, value in first.items()
    }
    return TensorDict._new_unsafe(entries, batch_size=torch.Size((len(parts) * size[0], *size[1:])), device=device)
