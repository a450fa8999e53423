"""Steps of several agents of one configuration as one batch: their parameters lie side by side in memory.

Each agent keeps its networks, optimisers and replay buffer, whose tensors become views of one tensor for all agents. A
step computes the losses of all by ``torch.vmap``, their gradients from the sum of the losses, since no loss depends on
another agent's parameters, and one step of Adam. The first step with batches of some shape is traced
(``torch.fx.experimental.proxy_tensor.make_fx``); later ones run the operations of the trace alone, without the Python
code of losses and networks and without autograd, which is where a small network spends its time.

Random numbers inside a loss come from the generator of each agent, in the order in which it would draw them alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode

from rlstack.envs.foundation.tensors import unchecked
from rlstack.losses.base import Loss as LossModule

from .base import Agent
from .optimizer import Info, Loss, Optimizer

Request = tuple[Loss, TensorDictBase]
"""The loss of one agent, and its batch."""
Stepped = tuple[Tensor, Tensor, Info]
"""What :meth:`Optimizer.minimize` returns."""
_Slot = tuple[dict[str, Any], str]
"""The parameters or buffers of a module, and a name among them."""

SCHEDULED = ("clip", "entropy_coefficient")
"""Attributes of losses that follow schedules."""


class Together:
    """Agents of one configuration that make each step together.

    Args:
        agents: the agents, on one device, restored if they resume.
        generators: the generator of each agent.
    """

    def __init__(self, agents: Sequence[Agent], generators: Sequence[torch.Generator]) -> None:
        self.agents, self.generators = agents, generators
        self._optimizers = {name: [agent.optimizers[name] for agent in agents] for name in agents[0].optimizers}
        self._rows = {name: _Rows(optimizers) for name, optimizers in self._optimizers.items()}
        trained = {id(parameter) for agent in agents for parameter in agent.parameters()}
        self._slots = list(zip(*(list(_slots(agent)) for agent in agents)))
        for slots in self._slots:
            tensors = [owner[key] for owner, key in slots]
            if id(tensors[0]) not in trained:
                _lay(tensors)
        self._traces: dict[Any, _Trace] = {}

    def minimize(self, name: str, requests: Sequence[Request]) -> list[Stepped] | None:
        """Makes one step of the optimisers ``name`` of all agents; returns what each would have returned alone.

        Returns None, and does nothing, if their losses are not of one kind or their batches not of one shape.
        """
        optimizers, rows = self._optimizers[name], self._rows[name]
        batches = [dict(_leaves(batch)) for _, batch in requests]
        layouts = [
            (getattr(loss, "__qualname__", id(loss)), *((key, part.shape, part.dtype) for key, part in entries.items()))
            for (loss, _), entries in zip(requests, batches)
        ]
        if len(set(layouts)) > 1:
            return None
        key = (name, layouts[0])
        if key not in self._traces:
            self._traces[key] = _Trace(self, rows, requests[0])
        entries = [torch.stack([batch[place] for batch in batches]) for place in batches[0]]
        value, info, gradients = self._traces[key](entries)
        return rows.step(optimizers, requests, value, info, gradients)

    def stacked(self) -> list[Tensor]:
        """Returns the parameters and buffers of all agents, ``[S, ...]`` each."""
        return [_whole([owner[key] for owner, key in slots]) for slots in self._slots]

    @contextmanager
    def holding(self, tensors: Sequence[Tensor]) -> Iterator[None]:
        """A context in which the networks of the first agent compute with other parameters and buffers."""
        slots = [slots[0] for slots in self._slots]
        before = [owner[key] for owner, key in slots]
        try:
            for (owner, key), tensor in zip(slots, tensors):
                owner[key] = tensor
            yield
        finally:
            for (owner, key), tensor in zip(slots, before):
                owner[key] = tensor

    def scheduled(self) -> dict[str, Tensor]:
        """Returns the present values ``[S]`` of what losses read from schedules."""
        names = [name for name in SCHEDULED if not getattr(self.agents[0].schedules.get(name), "constant", True)]
        return {name: torch.tensor([float(agent.scheduled[name]) for agent in self.agents]) for name in names}


class _Rows:
    """The parameters and moments that some optimisers train, a row ``[P]`` for each agent.

    Args:
        optimizers: that of each agent, with Adam.
    """

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self.parameters = list(zip(*(optimizer.parameters for optimizer in optimizers)))
        sizes = [parameter.numel() for parameter in optimizers[0].parameters]
        moments = [optimizer.moments() for optimizer in optimizers]
        self.values = _lay_in_rows([optimizer.parameters for optimizer in optimizers])
        self.means, self.squares = (_lay_in_rows([own[kind] for own in moments]) for kind in ("exp_avg", "exp_avg_sq"))
        ends = torch.tensor([0, *sizes]).cumsum(0).tolist()
        self.parts, first = [], 0
        for group in optimizers[0].groups:
            self.parts.append((ends[first], ends[first + len(group)]))
            first += len(group)

    @torch.no_grad()
    def step(
        self,
        optimizers: Sequence[Optimizer],
        requests: Sequence[Request],
        value: Tensor,
        info: dict[str, Tensor],
        gradients: Tensor,
    ) -> list[Stepped]:
        """Clips gradients ``[S, P]`` and takes a step of each agent whose numbers are finite."""
        norms = torch.stack([torch.linalg.vector_norm(gradients[:, low:high], dim=1) for low, high in self.parts], 1)
        limit = optimizers[0].max_grad_norm
        if limit is not None:
            for (low, high), norm in zip(self.parts, norms.unbind(1)):
                gradients[:, low:high] *= (limit / (norm + 1e-6)).clamp(max=1.0).unsqueeze(1)
        sound = (norms.isfinite().all(1) & value.isfinite()).tolist()
        infos = [{name: entry[number] for name, entry in info.items()} for number in range(len(optimizers))]
        for number, optimizer in enumerate(optimizers):
            if not sound[number]:
                optimizer.refuse(infos[number], requests[number][1], gradients[number])
        taken = [number for number, is_sound in enumerate(sound) if is_sound]
        for lr in {optimizers[number].lr for number in taken}:
            same = [number for number in taken if optimizers[number].lr == lr]
            columns = (
                [whole[number] for number in same] for whole in (self.values, gradients, self.means, self.squares)
            )
            Optimizer.descend_rows([optimizers[number] for number in same], *columns)
        largest = norms.amax(1)
        for number, optimizer in enumerate(optimizers):
            optimizer.norms = list(norms[number].unbind())
            optimizer.constrain()
        return [(value[number], largest[number], own) for number, own in enumerate(infos)]


class _Trace:
    """The loss of all agents and its gradients, as a function of batches of one layout.

    Args:
        request: that of the first agent, whose networks and loss are traced.
    """

    def __init__(self, together: Together, rows: _Rows, request: Request) -> None:
        loss, batch = request
        self._together, names = together, [name for name, _ in _leaves(batch)]
        trained = {id(parameters[0]): place for place, parameters in enumerate(rows.parameters)}
        slots = [slots[0] for slots in together._slots]
        owner = getattr(loss, "__self__", None)
        module: Any = owner if isinstance(owner, LossModule) else getattr(owner, "loss", None)
        count = len(together.agents)
        self._infos: list[str] = []

        def alone(seed: Tensor, tensors: list[Tensor], entries: list[Tensor], scheduled: dict[str, Tensor]) -> Any:
            before = {name: getattr(module, name) for name in scheduled}
            try:
                for name, number in scheduled.items():
                    setattr(module, name, number)
                with together.holding(tensors), _Draws(seed):
                    value, info = loss(_filled(batch, dict(zip(names, entries))))
            finally:
                for name, number in before.items():
                    setattr(module, name, number)
            self._infos = list(info)
            return value, list(info.values())

        def all_of_them(tensors: list[Tensor], entries: list[Tensor], scheduled: dict[str, Tensor]) -> Any:
            with torch.enable_grad():
                leaves = [tensor.detach() for tensor in tensors]
                wanted: dict[int, Tensor] = {}
                for place, (owner, key) in enumerate(slots):
                    if (number := trained.get(id(owner[key]))) is not None:
                        leaves[place] = wanted.setdefault(number, leaves[place].requires_grad_())
                inputs = [wanted[number] for number in range(len(trained))]
                values, infos = torch.vmap(alone)(torch.arange(count), leaves, entries, scheduled)
                gradients = torch.autograd.grad(values.sum(), inputs, allow_unused=True, materialize_grads=True)
            flat = torch.cat([gradient.reshape(count, -1) for gradient in gradients], 1)
            return values.detach(), [info.detach() for info in infos], flat

        self._function, self._graph = all_of_them, None

    @torch.no_grad()
    def __call__(self, entries: list[Tensor]) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        """Returns the losses ``[S]``, what they report, and the gradients ``[S, P]``."""
        inputs = (self._together.stacked(), entries, self._together.scheduled())
        if self._graph is None:
            with _drawing_from([torch.Generator(entries[0].device) for _ in self._together.agents]):
                self._graph = make_fx(self._function)(*inputs)
            self._graph.graph.eliminate_dead_code()
            self._graph.recompile()
        with _drawing_from(self._together.generators):
            value, infos, gradients = self._graph(*inputs)
        return value, dict(zip(self._infos, infos)), gradients


# -- tensors side by side ----------------------------------------------------------------------------------------------


def _slots(agent: Agent) -> Iterator[_Slot]:
    """Yields where the networks and targets of an agent keep their parameters and buffers."""
    roots: list[nn.Module] = []
    for network in (*agent.networks.values(), *(target.network for target in agent.targets.values()), agent.loss):
        roots += network.called().values() if isinstance(network, LossModule) else [network]
    modules = dict.fromkeys(module for root in roots for module in root.modules())
    for module in modules:
        for owner in (module._parameters, module._buffers):
            yield from ((owner, key) for key, tensor in owner.items() if tensor is not None)


def _lay(tensors: Sequence[Tensor]) -> None:
    """Lays one tensor of each agent side by side, without a copy if they are already."""
    if _side_by_side(tensors) is None:
        whole = torch.stack([tensor.detach() for tensor in tensors])
        for tensor, own in zip(tensors, whole.unbind()):
            tensor.data = own


def _lay_in_rows(columns: Sequence[Sequence[Tensor]]) -> Tensor:
    """Lays all tensors of each agent into a row; returns the rows ``[S, P]``."""
    rows = torch.stack([torch.cat([tensor.detach().flatten() for tensor in tensors]) for tensors in columns])
    for row, tensors in zip(rows.unbind(), columns):
        for part, tensor in zip(row.split([tensor.numel() for tensor in tensors]), tensors):
            tensor.data = part.view_as(tensor)
    return rows


def _side_by_side(tensors: Sequence[Tensor]) -> Tensor | None:
    """Returns tensors that lie at equal distances in one storage as one tensor ``[S, ...]``; None if they do not."""
    first, storage = tensors[0].detach(), tensors[0].untyped_storage().data_ptr()
    places = [tensor.storage_offset() for tensor in tensors]
    step = places[1] - places[0] if len(places) > 1 else 0
    apart = any(tensor.untyped_storage().data_ptr() != storage for tensor in tensors)
    if apart or step <= 0 or places != list(range(places[0], places[0] + step * len(places), step)):
        return None
    return first.as_strided((len(tensors), *first.shape), (step, *first.stride()), places[0])


def _whole(tensors: Sequence[Tensor]) -> Tensor:
    found = _side_by_side(tensors)
    return torch.stack([tensor.detach() for tensor in tensors]) if found is None else found


def _leaves(batch: TensorDictBase, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yields the tensors of a batch by their path."""
    for key, value in batch.items():
        if isinstance(value, TensorDictBase):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _filled(batch: TensorDictBase, tensors: dict[str, Tensor], prefix: str = "") -> TensorDictBase:
    """Returns a batch of the same structure with other tensors."""
    entries = {
        key: _filled(value, tensors, f"{prefix}{key}.") if isinstance(value, TensorDictBase) else tensors[prefix + key]
        for key, value in batch.items()
    }
    return unchecked(entries, batch.batch_size, batch.device)


# -- random numbers ----------------------------------------------------------------------------------------------------

_generators: list[torch.Generator] = []


@contextmanager
def _drawing_from(generators: Sequence[torch.Generator]) -> Iterator[None]:
    """A context in which the draws of several agents come from these generators."""
    before, _generators[:] = list(_generators), generators
    try:
        yield
    finally:
        _generators[:] = before


@torch.library.custom_op("rlstack::draw", mutates_args=())
def _draw(agents: Tensor, kind: str, size: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Draws ``[*agents.shape, *size]``, from the generator of each agent; ``kind`` is a method such as ``normal_``."""
    drawn = torch.empty((*agents.shape, *size), dtype=dtype, device=agents.device)
    for row, generator in zip(drawn.view(-1, *size), _generators):
        getattr(row, kind)(generator=generator)
    return drawn


@_draw.register_vmap
def _(info: Any, in_dims: Any, agents: Tensor, kind: str, size: Sequence[int], dtype: torch.dtype) -> Any:
    return _draw(agents, kind, size, dtype), 0


_KINDS: dict[Callable[..., Any], str] = {
    torch.rand: "uniform_",
    torch.rand_like: "uniform_",
    torch.randn: "normal_",
    torch.randn_like: "normal_",
}


class _Draws(TorchFunctionMode):
    """A context in which torch's random functions draw for each agent under ``torch.vmap``.

    Args:
        agent: number of the agent, 0-d.
    """

    def __init__(self, agent: Tensor) -> None:
        super().__init__()
        self._agent = agent

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        if (kind := _KINDS.get(func)) is None:
            return func(*args, **options)
        like = isinstance(args[0], Tensor)
        size = args[0].shape if like else args if isinstance(args[0], int) else args[0]
        dtype = options.get("dtype") or (args[0].dtype if like else torch.get_default_dtype())
        return _draw(self._agent, kind, list(size), dtype)
