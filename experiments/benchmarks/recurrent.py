"""Compares our recurrent layers on sequences that contain ends of episodes with TorchRL's modules, on one thread.

    python -m experiments.benchmarks.recurrent

Figures are CPU milliseconds of a forward and backward pass over ``[N, L, F]``, in which an episode ends after a step
with probability 0, .02 or .2 (drawn again for every round), and of a single step of acting. ``pad`` is TorchRL's
default backend of ``LSTMModule`` and ``GRUModule``, which splits sequences where episodes end; ``loop`` is a loop over
torch's cells with a mask. All use the same weights, and equal outputs are checked first. The result goes to
``results/recurrent.json``.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torchrl.modules import GRUModule, LSTMModule, set_recurrent_mode

from experiments.results import markdown
from rlstack.networks.recurrent import Core, Segments

from .timing import in_turns, write

SHAPES = [(16, 32, 4, 64), (16, 32, 64, 64), (64, 64, 64, 64), (32, 32, 4, 128)]
"""N, L, F and H."""
ENDS = (0.0, 0.02, 0.2)
ROUNDS, REPEATS = 7, 10


def torchrl_module(core: Core, inputs: int) -> tuple[Any, list[str]]:
    """Returns TorchRL's module with the weights of a core, and the keys of its states."""
    lstm = core.kind == "lstm"
    keys = ["recurrent_state_h", "recurrent_state_c"] if lstm else ["recurrent_state"]
    module, keys_out = LSTMModule if lstm else GRUModule, ["out", *[("next", key) for key in keys]]
    made = module(inputs, core.size, in_keys=["features", *keys], out_keys=keys_out, default_recurrent_mode=True)
    getattr(made, core.kind).load_state_dict(core.cells.state_dict())
    return made, keys


def ways(core: Core, x: Tensor, starts: Tensor) -> dict[str, Callable[[], Tensor]]:
    """Returns functions that compute outputs ``[N, L, H]``, from zero recurrent states."""
    rows, steps, inputs = x.shape
    active = torch.ones_like(starts)
    module, keys = torchrl_module(core, inputs)
    zeros = {key: torch.zeros(rows, steps, 1, core.size) for key in keys}
    data = TensorDict({"features": x, "is_init": starts[..., None], **zeros}, [rows, steps])
    keep = (~starts).to(x.dtype)[..., None]

    def rlstack() -> Tensor:
        segments = Segments(starts, active)
        layout = segments.layout(core.pads(segments))
        begun = segments.begin(torch.zeros(rows, core.memory_size))
        return layout.gather(core.unroll(layout.lay(x), begun, layout.sizes))

    def pad() -> Tensor:
        return module(data.clone(False)).get("out")

    def loop() -> Tensor:
        memory, outputs = torch.zeros(rows, core.memory_size), []
        for t in range(steps):
            out, memory = core.step(x[:, t], memory * keep[:, t])
            outputs.append(out)
        return torch.stack(outputs, 1)

    return {"rlstack": rlstack, "pad": pad, "loop": loop}


def passes(kind: Any, shape: tuple[int, int, int, int], ends: float) -> Iterator[dict[str, Callable[[], None]]]:
    """Yields forward and backward passes on new data, whose outputs are equal."""
    rows, steps, inputs, size = shape
    torch.manual_seed(0)
    core = Core(kind, inputs, size)
    while True:
        starts = torch.rand(rows, steps) < ends
        starts[:, 0] = True
        forward = ways(core, nn.Parameter(torch.randn(rows, steps, inputs)), starts)
        with torch.no_grad():
            for way in forward.values():
                torch.testing.assert_close(way(), forward["loop"](), rtol=0, atol=1e-5)
        yield {name: lambda way=way: way().sum().backward() for name, way in forward.items()}  # type: ignore[misc]


def compare(kind: Any, shape: tuple[int, int, int, int], ends: float) -> dict[str, Any]:
    """Returns milliseconds of each way, the median over the rounds, and the ratio to ``pad``."""
    data = passes(kind, shape, ends)
    in_turns(next(data), 1, REPEATS)  # warms up
    rounds = [in_turns(next(data), 1, REPEATS) for _ in range(ROUNDS)]
    medians = {name: 1e3 * statistics.median(times[name][0] for times in rounds) for name in rounds[0]}
    return {**medians, "times_faster_than_pad": medians["pad"] / medians["rlstack"]}


def step(kind: Any, rows: int = 16, inputs: int = 4, size: int = 64) -> dict[str, float]:
    """Returns microseconds of one step while acting."""
    core = Core(kind, inputs, size)
    module, keys = torchrl_module(core, inputs)
    x, memory = torch.randn(rows, inputs), torch.zeros(rows, core.memory_size)
    starts, zeros = torch.zeros(rows, 1, dtype=torch.bool), {key: torch.zeros(rows, 1, size) for key in keys}
    data = TensorDict({"features": x, "is_init": starts, **zeros}, [rows])
    acting = {"rlstack": lambda: core.step(x, memory), "torchrl": lambda: module(data.clone(False))}
    with torch.no_grad(), set_recurrent_mode(False):
        in_turns(acting, 1)  # warms up
        return {name: 1e6 * times[0] for name, times in in_turns(acting, 1, 500).items()}


def table(result: dict[str, Any]) -> str:
    """Returns a result's sequences with 64 inputs in milliseconds, then one step in microseconds."""
    rows: list[list[str]] = []
    for row in result["milliseconds"]:
        *shape, size = row["shape"]
        if shape[-1] == 64:
            times = [f"{row[way]:.1f} ms" for way in ("rlstack", "pad", "loop")]
            rows.append([f"{row['kind'].upper()} {shape} -> {size}", f"{row['ends']:g}", *times])
    for kind, times in result["step_microseconds"].items():
        name = f"one step of 16 rows, {kind.upper()}"
        rows.append([name, "", f"{times['rlstack']:.0f} us", f"{times['torchrl']:.0f} us", ""])
    return markdown("core, [sequences, steps, inputs] -> size | ends | rlstack | TorchRL pad | loop of cells", rows)


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    cases = [(kind, shape, ends) for kind in ("lstm", "gru") for shape in SHAPES for ends in ENDS]
    rows = [{"kind": kind, "shape": shape, "ends": ends, **compare(kind, shape, ends)} for kind, shape, ends in cases]
    steps = {kind: step(kind) for kind in ("lstm", "gru")}
    print(table(write("recurrent", {"milliseconds": rows, "step_microseconds": steps})))
