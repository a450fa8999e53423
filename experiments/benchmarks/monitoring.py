"""Measures the cost of monitoring the machine during training: ``python -m experiments.benchmarks.monitoring``.

It prints the CPU time in microseconds of a reading, which happens once per log line, and of writing the line to
``metrics.csv``; with a GPU also the share of a core that its thread takes.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from rlstack.training.environment import machine
from rlstack.training.loggers import CsvSink
from rlstack.training.monitor import GpuWatch, Hardware

_ROUNDS, _CALLS = 7, 200


def microseconds(function: Callable[[], object]) -> float:
    """Returns the median CPU time of a call over rounds."""
    rounds = []
    for _ in range(_ROUNDS):
        before = time.process_time()
        for _ in range(_CALLS):
            function()
        rounds.append(1e6 * (time.process_time() - before) / _CALLS)
    return statistics.median(rounds)


def share_of_the_thread(seconds: float = 10.0) -> float:
    """Returns the CPU time of the thread that monitors a GPU as a share of wall-clock time."""
    watch = GpuWatch(torch.device("cuda", 0))
    watch.start()
    before = time.process_time()
    time.sleep(seconds)
    used = time.process_time() - before
    watch.stop()
    return used / seconds


def main() -> None:
    print(machine())
    hardware = Hardware("cuda:0" if torch.cuda.is_available() else "cpu")
    metrics = {f"train/number_{k}": 1 / (k + 1) for k in range(20)}
    with tempfile.TemporaryDirectory() as folder:
        sink = CsvSink(Path(folder) / "metrics.csv")
        print(f"a reading            {microseconds(lambda: hardware.read(1)):8.1f} us")
        print(f"a line of metrics.csv {microseconds(lambda: sink.log(1, metrics)):7.1f} us")
        sink.close()
    if torch.cuda.is_available():
        print(f"watching the GPU     {share_of_the_thread():8.2%} of a core")


if __name__ == "__main__":
    main()
