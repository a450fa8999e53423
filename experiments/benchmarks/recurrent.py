"""Compares our recurrent layers on sequences that contain ends of episodes with TorchRL's modules, on one thread.

    python -m experiments.benchmarks.recurrent [--rounds 7]

Figures are CPU milliseconds of a forward and backward pass over ``[N, L, F]``, in which an episode ends after a step
with probability 0, .02 or .2 (drawn again for every round), and of a single step of acting. ``pad`` is TorchRL's
default backend of ``LSTMModule`` and ``GRUModule``, which splits sequences where episodes end; ``loop`` is a loop over
torch's cells with a mask. All use the same weights, and equal outputs are checked first. The result goes to
``results/recurrent.json``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from experiments.results import markdown
from rlstack.networks.recurrent import Core, Segments
from rlstack.training.environment import machine

RESULT = Path(__file__).parent / "results" / "recurrent.json"
SHAPES = [(16, 32, 4, 64), (16, 32, 64, 64), (64, 64, 64, 64), (32, 32, 4, 128)]
"""N, L, F and H."""
ENDS = (0.0, 0.02, 0.2)
REPEATS = 10


def torchrl_module(core: Core, inputs: int) -> Any:
    """TorchRL's module with the weights of a core."""
    from torchrl.modules import GRUModule, LSTMModule

    keys = ["recurrent_state_h", "recurrent_state_c"] if core.kind == "lstm" else ["recurrent_state"]
    module = LSTMModule if core.kind == "lstm" else GRUModule
    keys_in, keys_out = ["features", *keys], ["out", *[("next", key) for key in keys]]
    made = module(inputs, core.size, in_keys=keys_in, out_keys=keys_out, default_recurrent_mode=True)
    own = made.lstm if core.kind == "lstm" else made.gru
    own.load_state_dict(core.cells.state_dict())
    return made


def ways(core: Core, x: Tensor, starts: Tensor) -> dict[str, Callable[[], Tensor]]:
    """Returns functions that compute outputs ``[N, L, H]``, from zero recurrent states."""
    rows, steps, inputs = x.shape
    active = torch.ones_like(starts)
    module = torchrl_module(core, inputs)
    states = 2 if core.kind == "lstm" else 1
    keys = ["recurrent_state_h", "recurrent_state_c"] if states == 2 else ["recurrent_state"]
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


def compare(kind: Any, shape: tuple[int, int, int, int], ends: float, rounds: int) -> dict[str, Any]:
    """Milliseconds of each way, median over the rounds, and the ratio to ``pad``."""
    rows, steps, inputs, size = shape
    torch.manual_seed(0)
    core, spent = Core(kind, inputs, size), {}
    for turn in range(-1, rounds):
        x = nn.Parameter(torch.randn(rows, steps, inputs))
        starts = torch.rand(rows, steps) < ends
        starts[:, 0] = True
        found = ways(core, x, starts)
        _check(found)
        for name in list(found) if turn % 2 else list(found)[::-1]:
            before = time.process_time()
            for _ in range(REPEATS):
                found[name]().sum().backward()
            if turn >= 0:
                spent.setdefault(name, []).append((time.process_time() - before) / REPEATS * 1e3)
    medians = {name: statistics.median(spent[name]) for name in ("rlstack", "pad", "loop")}
    return {**medians, "times_faster_than_pad": medians["pad"] / medians["rlstack"]}


def _check(found: dict[str, Callable[[], Tensor]]) -> None:
    with torch.no_grad():
        wanted = found["loop"]()
        for way in found.values():
            torch.testing.assert_close(way(), wanted, rtol=0, atol=1e-5)


def step(kind: Any, rows: int = 16, inputs: int = 4, size: int = 64, repeats: int = 500) -> dict[str, float]:
    """Microseconds of one step while acting."""
    core = Core(kind, inputs, size)
    module, states = torchrl_module(core, inputs), 2 if kind == "lstm" else 1
    keys = ["recurrent_state_h", "recurrent_state_c"] if states == 2 else ["recurrent_state"]
    x, memory = torch.randn(rows, inputs), torch.zeros(rows, core.memory_size)
    starts = torch.zeros(rows, 1, dtype=torch.bool)
    data = TensorDict({"features": x, "is_init": starts, **{key: torch.zeros(rows, 1, size) for key in keys}}, [rows])
    from torchrl.modules import set_recurrent_mode

    def theirs() -> None:
        with set_recurrent_mode(False):
            module(data.clone(False))

    times = {}
    with torch.no_grad():
        for name, act in (("rlstack", lambda: core.step(x, memory)), ("torchrl", theirs)):
            act()
            before = time.process_time()
            for _ in range(repeats):
                act()
            times[name] = (time.process_time() - before) / repeats * 1e6
    return times


def table(result: dict[str, Any], inputs: int | None = None) -> str:
    """Returns a result's sequences (with so many inputs alone) in milliseconds, then one step in microseconds."""
    rows: list[list[str]] = []
    for row in result["milliseconds"]:
        count, steps, width, size = row["shape"]
        if inputs in (None, width):
            cells = [f"{row['kind'].upper()} [{count}, {steps}, {width}] -> {size}", f"{row['ends']:g}"]
            rows.append(cells + [f"{row[way]:.1f} ms" for way in ("rlstack", "pad", "loop")])
    for kind, times in result["step_microseconds"].items():
        name = f"one step of 16 rows, {kind.upper()}"
        rows.append([name, "", f"{times['rlstack']:.0f} us", f"{times['torchrl']:.0f} us", ""])
    return markdown("core, [sequences, steps, inputs] -> size | ends | rlstack | TorchRL pad | loop of cells", rows)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows: list[dict[str, Any]] = []
    for kind in ("lstm", "gru"):
        for shape in SHAPES:
            for ends in ENDS:
                rows.append(
                    {"kind": kind, "shape": shape, "ends": ends, **compare(kind, shape, ends, arguments.rounds)}
                )
                print(" ".join(f"{v:.2f}" if isinstance(v, float) else str(v) for v in rows[-1].values()), flush=True)
    steps = {kind: step(kind) for kind in ("lstm", "gru")}
    print("one step, microseconds:", steps)
    result = {"machine": machine(), "torch": torch.__version__, "milliseconds": rows, "step_microseconds": steps}
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
