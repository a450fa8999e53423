"""What is written over an Arena picture: health, phase, score, time, and how the game ended."""

from __future__ import annotations

import numpy as np

from ..drawing.canvas import Canvas, Colour
from ..drawing.font import HEIGHT
from .recording import Snapshot
from .rules import Rules

PAPER: Colour = (225, 240, 255)
_FAINT: Colour = (130, 150, 190)
WIN, LOSS, LATE = (90, 255, 130), (255, 60, 80), (255, 190, 70)
_PIP: Colour = (180, 100, 255)
STEPS_PER_SECOND = 60
_INTRO_STEPS = 90


def draw_hud(canvas: Canvas, now: Snapshot, rules: Rules, title: str) -> None:
    """Writes over a picture; letters are as large as it allows."""
    height, width = canvas.picture.shape[:2]
    block = max(1, round(height / 300))
    margin, row = 6 * block, (HEIGHT + 4) * block
    _draw_health(canvas, now, rules, margin, block)
    _draw_phase(canvas, now, rules, width // 2, margin, block)
    left = max(0, rules.max_steps - now.step) // STEPS_PER_SECOND
    canvas.text(f"SCORE {now.score:.0f}", width - margin, margin, block, PAPER, align=1)
    late = LOSS if left < 5 else PAPER
    canvas.text(f"TIME {left // 60}:{left % 60:02}", width - margin, margin + row, block, late, align=1)
    share = max(0.0, 1 - now.step / rules.max_steps)
    canvas.box(0, height - block, round(width * share), block, _FAINT, 0.8)
    small = max(1, block // 2)
    canvas.text(f"{now.kills} KILLS", margin, margin + row, block, _FAINT)
    canvas.text(title, margin, height - block - (HEIGHT + 4) * small, small, _FAINT)
    if now.over(rules):
        _draw_end(canvas, now, rules, block)
    elif (age := now.step - now.phase_start) < _INTRO_STEPS:
        text, size = f"PHASE {now.phase + 1}", 3 * block
        canvas.text(text, width // 2, height // 3, size, PAPER, 0.5, min(1.0, 2 - 2 * age / _INTRO_STEPS))


def _draw_health(canvas: Canvas, now: Snapshot, rules: Rules, margin: int, block: int) -> None:
    """One cell per hit that the player can take."""
    share = max(0.0, now.health) / rules.max_health
    colour = WIN if share > 0.5 else LATE if share > 0.25 else LOSS
    cells = round(rules.max_health / rules.shot_damage)
    full = int(np.ceil(share * cells))
    for cell in range(cells):
        left = margin + cell * 6 * block
        canvas.box(
            left, margin, 5 * block, HEIGHT * block, colour if cell < full else _FAINT, 0.95 if cell < full else 0.2
        )
    canvas.text(f"{max(0.0, now.health):.0f}", margin + cells * 6 * block + 3 * block, margin, block, PAPER)


def _draw_phase(canvas: Canvas, now: Snapshot, rules: Rules, middle: int, top: int, block: int) -> None:
    """The phase, and below it one pip per spawner, bright while it stands."""
    phases = len(rules.phases)
    phase = min(now.phase, phases - 1)
    canvas.text(f"PHASE {phase + 1}/{phases}", middle, top, block, PAPER, align=0.5)
    pips, standing = len(rules.phases[phase].anchors), int((now.spawner_health > 0).sum())
    left, top = middle - (9 * pips - 3) * block // 2, top + (HEIGHT + 4) * block
    for pip in range(pips):
        canvas.box(left + 9 * pip * block, top, 6 * block, 4 * block, _PIP, 1.0 if pip < standing else 0.2)


def _draw_end(canvas: Canvas, now: Snapshot, rules: Rules, block: int) -> None:
    height, width = canvas.picture.shape[:2]
    if now.won(rules):
        text, colour = "YOU WIN", WIN
    elif now.health <= 0:
        text, colour = "GAME OVER", LOSS
    else:
        text, colour = "TIME UP", LATE
    top = round(0.36 * height)
    canvas.box(0, top - 12 * block, width, 60 * block, (0, 0, 0), 0.6)
    for edge in (top - 12 * block, top + 48 * block):
        canvas.box(0, edge, width, block, colour)
    canvas.text(text, width // 2, top, 4 * block, colour, align=0.5)
    canvas.text(f"SCORE {now.score:.0f}", width // 2, top + 35 * block, block, PAPER, align=0.5)
