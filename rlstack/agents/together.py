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
from functools import partial
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode

from rlstack.data.collector import stack_steps
from rlstack.data.graphs import flattened, unflattened
from rlstack.envs.world import World
from rlstack.losses.base import Loss as LossModule

from .base import Agent
from .on_policy import minibatches
from .optimizer import Info, Loss, Optimizer, clip

Request = tuple[Loss, TensorDictBase]
"""The loss of one agent, a method, and its batch."""
Stepped = tuple[Tensor, Tensor, Info]
"""What :meth:`Optimizer.minimize` returns."""
_Slot = tuple[nn.Module, str]
"""A module, and the name of one of its own parameters or buffers."""


class Together:
    """Agents of one configuration that make each step together.

    Args:
        agents: the agents, on one device, restored if they resume.
        generators: the generator of each agent.
    """

    def __init__(self, agents: Sequence[Agent], generators: Sequence[torch.Generator]) -> None:
        self.agents, self.generators = agents, generators
        self._rows = {name: _Rows([agent.optimizers[name] for agent in agents]) for name in agents[0].optimizers}
        trained = {id(parameter) for agent in agents for parameter in agent.parameters()}
        self.slots = list(zip(*(list(_slots(agent)) for agent in agents)))
        for slots in self.slots:
            tensors = [getattr(*slot) for slot in slots]
            if id(tensors[0]) not in trained:
                _lay_in_rows([[tensor] for tensor in tensors])
        self._traces: dict[Any, Callable[..., Any]] = {}
        self._joint: Any = None

    def minimize(self, name: str, requests: Sequence[Request]) -> list[Stepped] | None:
        """Makes one step of the optimisers ``name`` of all agents; returns what each would have returned alone.

        Returns None, and does nothing, if their losses are not of one kind or their batches not of one size.
        """
        losses: list[Any] = [loss for loss, _ in requests]
        batches = [batch for _, batch in requests]
        if len({loss.__func__ for loss in losses}) > 1 or len({batch.batch_size for batch in batches}) > 1:
            return None
        return self._step(name, losses[0].__func__, losses[0], stack_steps(batches, 0))

    def learn(self, batches: Sequence[TensorDictBase]) -> list[dict[str, Any]] | None:
        """Makes the epochs of :meth:`PPO.update` of all agents, each on its rollout; returns the metrics of each.

        Returns None, and does nothing, if the rollouts are not of one size, or too small to learn from.
        """
        agents: Any = self.agents
        if agents[0].config.target_kl is not None or len({batch.batch_size for batch in batches}) > 1:
            return None
        stepped: list[Stepped] = []

        def loss(batch: TensorDictBase, report: bool) -> tuple[Tensor, Info]:
            return agents[0].objective(agents[0].for_step(batch), report=report)

        epochs = zip(*(agent.epochs(*own) for agent, *own in zip(agents, batches, self.generators)))
        joint = ((stack_steps([batch for batch, _ in epoch], 0), epoch[0][1]) for epoch in epochs)
        for part, is_last in minibatches(joint, 1):
            stepped = self._step("lr", is_last, partial(loss, report=is_last), part)
            for agent in agents:
                agent.updates += 1
        return [agent.metrics(*own) for agent, own in zip(agents, stepped)] or None

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
        carrier: Any = torch.cat([collector.carrier for collector in collectors])
        tensors, steps = self.stacked(), []
        for _ in range(collectors[0].frames_per_batch):
            self._act(collectors[0].policy, carrier, each, tensors)
            done, carrier = joint.step_and_maybe_reset(carrier)
            steps.append(done)
        left = joint._state_to_save()
        for number, (world, collector) in enumerate(zip(worlds, collectors)):
            own = slice(number * each, (number + 1) * each)
            world._load_state({name: part[own] for name, part in left.items()})
            collector.carrier = carrier[own]
        return list(stack_steps(steps, 1).split(each))

    def _act(self, policy: Any, carrier: TensorDictBase, each: int, tensors: list[Tensor]) -> None:
        """Adds the actions of all agents to the entries of all worlds, ``[S W]``.

        Args:
            policy: that of the first agent.
            each: number of worlds W.
            tensors: see :meth:`stacked`.
        """
        (key, *masks), names = policy.in_keys, policy.out_keys

        def alone(agent: Tensor, tensors: list[Tensor], observation: Tensor, *masks: Tensor) -> list[Tensor]:
            with self.holding(tensors), _Draws(agent):
                acted = policy.entries(observation, *masks)
            return [acted[name] for name in names]

        seen = [carrier.get(name).unflatten(0, (len(self.agents), each)) for name in (key, *masks)]
        for name, entry in zip(names, self._run("act", torch.vmap(alone), tensors, *seen)):
            carrier.set(name, entry.flatten(0, 1))

    @torch.no_grad()
    def _step(self, name: str, kind: Any, loss: Any, batch: TensorDictBase) -> list[Stepped]:
        """Makes a step on batches ``[S, N]``; returns what each agent's optimiser would have returned.

        Args:
            name: name of the optimiser.
            kind: what tells this loss from the others of the optimiser.
            loss: the loss of the first agent, which is traced with its networks.
        """
        rows, scheduled = self._rows[name], self.scheduled()
        parts: list[Any] = []
        key = name, kind, flattened(batch, parts)
        function = partial(self._gradients, rows, loss, batch, list(scheduled))
        values, gradients, infos = self._run(key, function, self.stacked(), *parts, *scheduled.values())
        columns = [{name: info[number] for name, info in infos.items()} for number in range(len(self.agents))]
        norms = rows.step(values, gradients, columns, batch)
        return list(zip(values.unbind(), norms.amax(1).unbind(), columns))

    def _gradients(
        self,
        rows: _Rows,
        loss: Any,
        batch: TensorDictBase,
        scheduled: list[str],
        agents: Tensor,
        tensors: list[Tensor],
        *others: Tensor,
    ) -> tuple[Tensor, Tensor, Info]:
        """Returns the losses ``[S]``, their gradients ``[S, P]`` and what they report.

        Args:
            batch: an example of batches.
            scheduled: names of the attributes of losses that follow schedules.
            others: the tensors of the batches, and the values of these attributes.
        """
        module: Any = self.agents[0].loss
        structure = flattened(batch[0], [])
        trained = {id(parameter): place for place, parameter in enumerate(rows.optimizers[0].parameters)}

        def alone(agent: Tensor, tensors: list[Tensor], *others: Tensor) -> Any:
            before = {name: getattr(module, name) for name in scheduled}
            split = len(others) - len(scheduled)
            try:
                for name, value in zip(scheduled, others[split:]):
                    setattr(module, name, value)
                with self.holding(tensors), _Draws(agent):
                    return loss(unflattened(structure, iter(others[:split])))
            finally:
                for name, value in before.items():
                    setattr(module, name, value)

        with torch.enable_grad():
            leaves = [tensor.detach() for tensor in tensors]
            wanted: dict[int, Tensor] = {}
            for place, slots in enumerate(self.slots):
                if (number := trained.get(id(getattr(*slots[0])))) is not None:
                    leaves[place] = wanted.setdefault(number, leaves[place].requires_grad_())
            values, infos = torch.vmap(alone)(agents, leaves, *others)
            wrt = [wanted[number] for number in range(len(trained))]
            gradients = torch.autograd.grad(values.sum(), wrt, allow_unused=True, materialize_grads=True)
        flat = torch.cat([gradient.reshape(len(agents), -1) for gradient in gradients], 1)
        return values.detach(), flat, {name: info.detach() for name, info in infos.items()}

    def _run(self, key: Any, function: Callable[..., Any], tensors: list[Tensor], *others: Tensor) -> Any:
        """Returns ``function(agents, tensors, *others)``, which is traced at its first call under a key.

        Args:
            tensors: see :meth:`stacked`.
            others: further tensors ``[S, ...]``.
        """
        if key not in self._traces:
            count, device, split = len(self.agents), tensors[0].device, len(tensors)

            def flat(*inputs: Tensor) -> Any:
                return function(torch.arange(count, device=device), list(inputs[:split]), *inputs[split:])

            with _drawing_from([torch.Generator(device) for _ in self.agents]):
                self._traces[key] = _lean(make_fx(flat)(*tensors, *others)).forward
        with _drawing_from(self.generators):
            return self._traces[key](*tensors, *others)

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
        follows = getattr(self.agents[0].loss, "SCHEDULED", ())
        names = [name for name in follows if name in known and not known[name].constant]
        return {name: torch.tensor([agent.scheduled[name] for agent in self.agents], dtype=dtype) for name in names}


class _Rows:
    """The parameters and moments that some optimisers train, a row ``[P]`` for each agent.

    Args:
        optimizers: that of each agent, with Adam.
    """

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self.optimizers = optimizers
        moments = [optimizer.moments() for optimizer in optimizers]
        self.values = _lay_in_rows([optimizer.parameters for optimizer in optimizers])
        self.means, self.squares = (_lay_in_rows([own[kind] for own in moments]) for kind in ("exp_avg", "exp_avg_sq"))
        self.widths = [sum(parameter.numel() for parameter in group) for group in optimizers[0].groups]

    def step(self, values: Tensor, gradients: Tensor, infos: Sequence[Info], batch: TensorDictBase) -> Tensor:
        """Clips gradients ``[S, P]`` and takes a step of each agent whose numbers are finite.

        Returns the norm of each group's gradient, ``[S, groups]``.
        """
        optimizers, groups = self.optimizers, gradients.split(self.widths, 1)
        norms = torch.stack([torch.linalg.vector_norm(group, dim=1) for group in groups], 1)
        if (limit := optimizers[0].max_grad_norm) is not None:
            for group, norm in zip(groups, norms.unbind(1)):
                clip([group], norm.unsqueeze(1), limit)
        by_rate: dict[float, list[int]] = {}
        for number, is_sound in enumerate((norms.sum(1) + values).isfinite().tolist()):
            if is_sound:
                by_rate.setdefault(optimizers[number].lr, []).append(number)
                continue
            parts = gradients[number].split([parameter.numel() for parameter in optimizers[number].parameters])
            optimizers[number].refuse(infos[number], batch[number], parts)
        rows = list(zip(*(whole.unbind() for whole in (self.values, gradients, self.means, self.squares))))
        for same in by_rate.values():
            Optimizer.descend_rows([optimizers[number] for number in same], [rows[number] for number in same])
        for optimizer in optimizers:
            optimizer.constrain()
        return norms


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


def _lay_in_rows(columns: Sequence[Sequence[Tensor]]) -> Tensor:
    """Lays all tensors of each agent into a row; returns the rows ``[S, P]``."""
    rows = torch.stack([torch.cat([tensor.detach().flatten() for tensor in tensors]) for tensors in columns])
    for row, tensors in zip(rows.unbind(), columns):
        for part, tensor in zip(row.split([tensor.numel() for tensor in tensors]), tensors):
            tensor.data = part.view_as(tensor)
    return rows


def _whole(tensors: Sequence[Tensor]) -> Tensor:
    """Returns tensors as one ``[S, ...]``, without a copy if they lie at equal distances in one storage."""
    first, storage = tensors[0].detach(), tensors[0].untyped_storage().data_ptr()
    places = [tensor.storage_offset() for tensor in tensors]
    step = places[1] - places[0] if len(places) > 1 else 0
    apart = any(tensor.untyped_storage().data_ptr() != storage for tensor in tensors)
    if apart or step <= 0 or places != list(range(places[0], places[0] + step * len(places), step)):
        return torch.stack([tensor.detach() for tensor in tensors])
    return first.as_strided((len(tensors), *first.shape), (step, *first.stride()), places[0])


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
