"""Writes matplotlib figures to files atomically: a title, and panels in rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlstack.envs.foundation.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@contextmanager
def saved_figure(
    path: Path, title: str, panels: int = 1, columns: int = 1, size: tuple[float, float] = (7.0, 4.0), **sharing: Any
) -> Iterator[list[Axes]]:
    """Yields the panels of a figure, which is written when the context ends.

    Args:
        path: path of the file, whose ending determines its format.
        title: title above all panels.
        panels: number of panels, at most ``columns`` in a row.
        size: size of a panel in inches.
        sharing: options ``sharex`` and ``sharey`` of matplotlib's ``subplots``.
    """
    from matplotlib import rc_context  # slow to import, and not always needed
    from matplotlib.figure import Figure

    columns = min(columns, panels)
    rows = -(-panels // columns)
    with rc_context({"text.parse_math": False}):  # names may hold dollar signs
        figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
        figure.suptitle(title, fontsize=11)
        places = list(figure.subplots(rows, columns, squeeze=False, **sharing).flat)
        for axes in places[panels:]:
            axes.set_axis_off()
        for axes in places[:panels]:
            axes.grid(alpha=0.3)
            axes.spines[["top", "right"]].set_visible(False)
        yield places[:panels]
        for axes in places[:panels]:
            if axes.get_legend_handles_labels()[0]:
                axes.legend(fontsize=8)
        with replacing(path) as (partial,):
            figure.savefig(partial, dpi=120)
