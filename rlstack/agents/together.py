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

from rlstack.data.collector import stack_steps
from rlstack.envs.foundation.tensors import unchecked
from rlstack.envs.world import World
from rlstack.losses.base import Loss as LossModule

from .base import Agent
from .optimizer import Info, Loss, Optimizer

Request = tuple[Loss, TensorDictBase]
"""The loss of one agent, and its batch."""
Stepped = tuple[Tensor, Tensor, Info]
"""What :meth:`Optimizer.minimize` returns."""
_Slot = tuple[nn.Module, str]
"""A module, and the name of one of its own parameters or buffers."""

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
        self._optimizers: dict[str, list[Optimizer]] = {
            name: [agent.optimizers[name] for agent in agents] for name in agents[0].optimizers
        }
        self._rows = {name: _Rows(optimizers) for name, optimizers in self._optimizers.items()}
        trained = {id(parameter) for agent in agents for parameter in agent.parameters()}
        self.slots = list(zip(*(list(_slots(agent)) for agent in agents)))
        for slots in self.slots:
            tensors = [getattr(*slot) for slot in slots]
            if id(tensors[0]) not in trained:
                _lay(tensors)
        self._traces: dict[Any, _Trace] = {}
        self._policy: Callable[..., Any] | None = None
        self._joint: Any = None

    def minimize(self, name: str, requests: Sequence[Request]) -> list[Stepped] | None:
        """Makes one step of the optimisers ``name`` of all agents; returns what each would have returned alone.

        Returns None, and does nothing, if their losses are not of one kind or their batches not of one shape.
        """
        batches = _alike([batch for _, batch in requests])
        if batches is None or len({getattr(loss, "__qualname__", id(loss)) for loss, _ in requests}) > 1:
            return None
        value, info, norms = self._step(name, [loss for loss, _ in requests], batches)
        columns = [{key: entry[number] for key, entry in info.items()} for number in range(len(requests))]
        return list(zip(value.unbind(), norms.amax(1).unbind(), columns))

    def learn(self, batches: Sequence[TensorDictBase]) -> list[dict[str, Any]] | None:
        """Makes the epochs of :meth:`PPO.update` of all agents, each on its rollout; returns the metrics of each.

        Returns None, and does nothing, if the rollouts are not of one size.
        """
        agents: Any = self.agents
        c, rows, whole = agents[0].config, len(batches[0]), _alike(batches)
        if whole is None or c.target_kl is not None or rows < agents[0].LEAST_DECISIONS:
            return None
        if c.normalize_advantage and not agents[0].normalizes_steps:
            whole = _alike([agent.with_normalized_advantages(batch) for agent, batch in zip(agents, batches)])
        sizes = agents[0].minibatch_sizes(rows, c.minibatch_size)
        plain, full = ([getattr(agent, name) for agent in agents] for name in ("plain_step", "full_step"))
        shifts = torch.arange(0, rows * len(agents), rows, device=batches[0].device).unsqueeze(1)
        metrics: list[dict[str, Any]] = []
        for _ in range(c.epochs):
            orders = [torch.randperm(rows, generator=generator, device=shifts.device) for generator in self.generators]
            mixed = _shuffled(whole, torch.stack(orders) + shifts)
            for left, part in zip(reversed(range(len(sizes))), mixed.split(sizes, 1)):
                value, info, norms = self._step("lr", plain if left else full, part)
                for agent in agents:
                    agent.updates += 1
        for number, agent in enumerate(agents):
            own = {key: entry[number] for key, entry in info.items()}
            metrics.append(agent.metrics(value[number], norms[number].amax(), own))
        return metrics

    @torch.no_grad()
    def collect(self, collectors: Sequence[Any]) -> list[TensorDictBase] | None:
        """Collects the batches ``[W, T]`` of all agents, whose worlds step as one batch of worlds.

        Returns None, and does nothing, if these worlds must step by themselves (:attr:`World.draws_to_restart_alone`).
        """
        worlds: list[Any] = [collector.env for collector in collectors]
        if not all(isinstance(world, World) and world.draws_to_restart_alone for world in worlds):
            return None
        each = worlds[0].num_worlds
        if self._joint is None:
            self._joint = _joined(worlds)
        joint = self._joint
        states = [world._state_to_save() for world in worlds]
        joint._load_state({name: torch.cat([state[name] for state in states]) for name in states[0]})
        whole = _alike([collector.carrier for collector in collectors])
        assert whole is not None
        carrier = _filled(whole, {key: part.flatten(0, 1) for key, part in _leaves(whole)}, size=joint.batch_size)
        act, steps = self._acting(collectors[0].policy, each), []
        for _ in range(collectors[0].frames_per_batch):
            act(carrier)
            done, carrier = joint.step_and_maybe_reset(carrier)
            steps.append(done)
        left = joint._state_to_save()
        for number, (world, collector) in enumerate(zip(worlds, collectors)):
            own = slice(number * each, (number + 1) * each)
            world._load_state({name: part[own] for name, part in left.items()})
            collector.carrier = carrier[own]
        return list(stack_steps(steps, 1).split(each))

    def _acting(self, policy: Any, each: int) -> Callable[[TensorDictBase], None]:
        """Returns a function that adds the actions of all agents to the entries of all worlds, ``[S W]``.

        Args:
            policy: that of the first agent.
            each: number of worlds W.
        """
        count, (key, *masks), names = len(self.agents), policy.in_keys, policy.out_keys
        tensors = self.stacked()

        def alone(agent: Tensor, tensors: list[Tensor], observation: Tensor, masks: list[Tensor]) -> list[Tensor]:
            with self.holding(tensors), _Draws(agent):
                acted = policy.entries(observation, *masks)
            return [acted[name] for name in names]

        def all_of_them(*inputs: Tensor) -> Any:
            tensors, (observation, *masks) = list(inputs[: len(self.slots)]), inputs[len(self.slots) :]
            agents = torch.arange(count, device=observation.device)
            return torch.vmap(alone)(agents, tensors, observation, masks)

        def act(carrier: TensorDictBase) -> None:
            inputs = (*tensors, *(carrier.get(name).unflatten(0, (count, each)) for name in (key, *masks)))
            if self._policy is None:
                with _drawing_from([torch.Generator(tensors[0].device) for _ in self.agents]):
                    self._policy = _lean(make_fx(all_of_them)(*inputs)).forward
            with _drawing_from(self.generators):
                for name, entry in zip(names, self._policy(*inputs)):
                    carrier.set(name, entry.flatten(0, 1))

        return act

    def _step(self, name: str, losses: Sequence[Loss], batch: TensorDictBase) -> tuple[Tensor, Info, Tensor]:
        """Makes a step on batches ``[S, N]``; returns losses, reports and norms of gradients, ``[S, ...]`` each."""
        layout = [(key, part.shape, part.dtype) for key, part in _leaves(batch)]
        key = (name, getattr(losses[0], "__qualname__", id(losses[0])), *layout)
        rows = self._rows[name]
        if key not in self._traces:
            self._traces[key] = _Trace(self, rows, losses[0], batch[0])
        value, info, gradients = self._traces[key]([part for _, part in _leaves(batch)])
        return value, info, rows.step(self._optimizers[name], value, info, gradients, batch)

    def stacked(self) -> list[Tensor]:
        """Returns the parameters and buffers of all agents, ``[S, ...]`` each."""
        return [_whole([getattr(*slot) for slot in slots]) for slots in self.slots]

    @contextmanager
    def holding(self, tensors: Sequence[Tensor]) -> Iterator[None]:
        """A context in which the networks of the first agent compute with other parameters and buffers."""
        slots = [slots[0] for slots in self.slots]
        before = [getattr(*slot) for slot in slots]
        try:
            for (module, name), tensor, own in zip(slots, tensors, before):
                if isinstance(own, nn.Parameter):  # whose name takes parameters alone
                    delattr(module, name)
                setattr(module, name, tensor)
            yield
        finally:
            for (module, name), own in zip(slots, before):  # all of a module, which restores their order
                if isinstance(own, nn.Parameter):
                    delattr(module, name)
                    module.register_parameter(name, own)
                else:
                    setattr(module, name, own)

    def scheduled(self) -> dict[str, Tensor]:
        """Returns the present values ``[S]`` of what losses read from schedules."""
        known, dtype = self.agents[0].schedules, self.agents[0].interface.dtype
        names = [name for name in SCHEDULED if name in known and not getattr(known[name], "constant", False)]
        return {name: torch.tensor([agent.scheduled[name] for agent in self.agents], dtype=dtype) for name in names}


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
        self, optimizers: Sequence[Optimizer], value: Tensor, info: Info, gradients: Tensor, batch: TensorDictBase
    ) -> Tensor:
        """Clips gradients ``[S, P]`` and takes a step of each agent whose numbers are finite.

        Returns the norm of each group's gradient, ``[S, groups]``.
        """
        norms = torch.stack([torch.linalg.vector_norm(gradients[:, low:high], dim=1) for low, high in self.parts], 1)
        limit = optimizers[0].max_grad_norm
        if limit is not None:
            for (low, high), norm in zip(self.parts, norms.unbind(1)):
                gradients[:, low:high] *= (limit / (norm + 1e-6)).clamp(max=1.0).unsqueeze(1)
        rows = list(zip(*(whole.unbind() for whole in (self.values, gradients, self.means, self.squares))))
        by_rate: dict[float, list[int]] = {}
        for number, is_sound in enumerate((norms.sum(1) + value).isfinite().tolist()):
            if is_sound:
                by_rate.setdefault(optimizers[number].lr, []).append(number)
                continue
            parts = gradients[number].split([parameter.numel() for parameter in optimizers[number].parameters])
            optimizers[number].refuse({key: entry[number] for key, entry in info.items()}, batch[number], parts)
        for same in by_rate.values():
            Optimizer.descend_rows([optimizers[number] for number in same], [rows[number] for number in same])
        for optimizer in optimizers:
            optimizer.constrain()
        return norms


class _Trace:
    """The loss of all agents and its gradients, as a function of batches of one layout.

    Args:
        loss: the loss of the first agent, which is traced with its networks.
        batch: a batch of one agent.
    """

    def __init__(self, together: Together, rows: _Rows, loss: Any, batch: TensorDictBase) -> None:
        self._together, names, count = together, [name for name, _ in _leaves(batch)], len(together.agents)
        trained = {id(parameters[0]): place for place, parameters in enumerate(rows.parameters)}
        slots = [slots[0] for slots in together.slots]
        module: Any = loss.__self__ if isinstance(loss.__self__, LossModule) else loss.__self__.loss
        self._scheduled = list(together.scheduled())
        self._infos: list[str] = []

        def alone(agent: Tensor, tensors: list[Tensor], entries: list[Tensor], scheduled: list[Tensor]) -> Any:
            before = {name: getattr(module, name) for name in self._scheduled}
            try:
                for name, number in zip(self._scheduled, scheduled):
                    setattr(module, name, number)
                with together.holding(tensors), _Draws(agent):
                    value, info = loss(_filled(batch, dict(zip(names, entries))))
            finally:
                for name, number in before.items():
                    setattr(module, name, number)
            self._infos = list(info)
            return value, list(info.values())

        def all_of_them(*inputs: Tensor) -> Any:
            given = iter(inputs)
            tensors, entries, scheduled = ([next(given) for _ in part] for part in (slots, names, self._scheduled))
            with torch.enable_grad():
                leaves = [tensor.detach() for tensor in tensors]
                wanted: dict[int, Tensor] = {}
                for place, slot in enumerate(slots):
                    if (number := trained.get(id(getattr(*slot)))) is not None:
                        leaves[place] = wanted.setdefault(number, leaves[place].requires_grad_())
                agents = torch.arange(count, device=leaves[0].device)
                values, infos = torch.vmap(alone)(agents, leaves, entries, scheduled)
                wrt = [wanted[number] for number in range(len(trained))]
                gradients = torch.autograd.grad(values.sum(), wrt, allow_unused=True, materialize_grads=True)
            flat = torch.cat([gradient.reshape(count, -1) for gradient in gradients], 1)
            return values.detach(), flat, *(info.detach() for info in infos)

        self._function = all_of_them
        self._traced: Callable[..., Any] | None = None

    @torch.no_grad()
    def __call__(self, entries: list[Tensor]) -> tuple[Tensor, Info, Tensor]:
        """Returns the losses ``[S]``, what they report, and the gradients ``[S, P]``."""
        together = self._together
        inputs = (*together.stacked(), *entries, *together.scheduled().values())
        traced = self._traced
        if traced is None:
            with _drawing_from([torch.Generator(entries[0].device) for _ in together.agents]):
                traced = self._traced = _lean(make_fx(self._function)(*inputs)).forward
        with _drawing_from(together.generators):
            value, gradients, *infos = traced(*inputs)
        return value, dict(zip(self._infos, infos)), gradients


_VIEWS = ("detach.default", "view.default", "_unsafe_view.default", "expand.default")
"""Operations that leave a tensor of the same shape as it is."""


def _lean(module: Any) -> Any:
    """Removes the operations of a trace that change nothing."""
    graph = module.graph
    for node in graph.nodes:
        if node.op != "call_function" or not node.args or not isinstance(source := node.args[0], torch.fx.Node):
            continue
        here, there = node.meta.get("val"), source.meta.get("val")
        if not (isinstance(here, Tensor) and isinstance(there, Tensor)):
            continue
        if (here.shape, here.stride()) != (there.shape, there.stride()):
            continue
        name = str(node.target).removeprefix("aten.")
        if name in _VIEWS or (name == "mul.Scalar" and node.args[1] == 1):
            node.replace_all_uses_with(source)
    graph.eliminate_dead_code()
    module.recompile()
    return module


def _joined(worlds: Sequence[Any]) -> Any:
    """Returns as many worlds as these batches have together; each begins episodes by the draws of its own batch."""
    first, each = worlds[0], worlds[0].num_worlds
    arguments, options = first._given
    joint = type(first)(*arguments, **{**options, "num_worlds": each * len(worlds)})
    restart, bounds = joint._restart, torch.arange(0, each * len(worlds) + 1, each, device=first.device)

    def restart_each(ended: Tensor) -> None:
        ends = torch.searchsorted(ended, bounds).tolist()
        for world, start, stop in zip(worlds, ends, ends[1:]):
            if stop > start:
                joint.generator = world.generator
                restart(ended[start:stop])

    joint._restart, joint._begun = restart_each, True
    return joint


# -- tensors side by side ----------------------------------------------------------------------------------------------


def _slots(agent: Agent) -> Iterator[_Slot]:
    """Yields where the networks and targets of an agent keep their parameters and buffers."""
    roots: list[nn.Module] = []
    for network in (*agent.networks.values(), *(target.network for target in agent.targets.values()), agent.loss):
        roots += network.called().values() if isinstance(network, LossModule) else [network]
    modules = dict.fromkeys(module for root in roots for module in root.modules())
    for module in modules:
        for named in (module.named_parameters, module.named_buffers):
            yield from ((module, name) for name, _ in named(recurse=False, remove_duplicate=False))


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


def _alike(batches: Sequence[TensorDictBase]) -> TensorDictBase | None:
    """Returns batches ``[N]`` of one layout as one ``[S, N]``; None if their layouts differ."""
    entries = [dict(_leaves(batch)) for batch in batches]
    if len({tuple((key, part.shape, part.dtype) for key, part in own.items()) for own in entries}) > 1:
        return None
    stacked = {key: torch.stack([own[key] for own in entries]) for key in entries[0]}
    return _filled(batches[0], stacked, size=torch.Size((len(batches), *batches[0].batch_size)))


def _shuffled(batch: TensorDictBase, places: Tensor) -> TensorDictBase:
    """Returns a batch ``[S, N]`` with the entries at ``places [S, N]``, counted through all rows."""
    index = places.flatten()
    return _filled(
        batch, {key: part.flatten(0, 1).index_select(0, index).view_as(part) for key, part in _leaves(batch)}
    )


def _leaves(batch: TensorDictBase, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yields the tensors of a batch by their path."""
    for key, value in batch.items():
        if isinstance(value, TensorDictBase):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _filled(
    batch: TensorDictBase, tensors: dict[str, Tensor], prefix: str = "", size: torch.Size | None = None
) -> TensorDictBase:
    """Returns a batch of the same structure with other tensors, and perhaps of another size."""
    entries: dict[str, Any] = {
        key: _filled(value, tensors, f"{prefix}{key}.", size)
        if isinstance(value, TensorDictBase)
        else tensors[prefix + key]
        for key, value in batch.items()
    }
    return unchecked(entries, batch.batch_size if size is None else size, batch.device)


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
    Tensor.exponential_: "exponential_",
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
