"""Draw the pictures of docs/kernels.md into docs/pictures: ``python tools/draw_kernels.py``."""

from __future__ import annotations

import argparse
import heapq
import random
import sys
from collections.abc import Callable
from pathlib import Path

from svg import Picture

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "pictures"


def tall() -> Picture:
    """The ring of stages between the producers and two consumer warpgroups, and who works when."""
    p = Picture(760, 430, "The tall kernel: a ring of four stages between TMA and two warpgroups")
    p.text(20, 28, "A tile: 128 rows × 256 columns of Y, a step of 64 k at a time", style="head")
    p.text(20, 62, "stages in shared memory, filled in turn by TMA")
    for stage in range(4):
        x = 20 + stage * 120
        p.frame(x, 72, 110, 116)
        for strip, fill in enumerate(("a", "a2")):
            p.rect(x + 6, 78 + strip * 54, 44, 50, fill)
            p.text(x + 28, 107 + strip * 54, "64×64", "middle", "label")
        p.rect(x + 56, 78, 48, 104, "x")
        p.text(x + 80, 134, "64×256", "middle", "label")
    p.text(20, 208, "blue: strips 0 and 1 of A; orange: rows of X, for both strips", style="small")
    p.line([(500, 130), (534, 130)], arrow=True)
    for group, y in enumerate((72, 134)):
        p.rect(540, y, 200, 54, "y")
        p.text(640, y + 24, f"warpgroup {group + 1}: strip {group}", "middle")
        p.text(640, y + 42, "64 × 256 sums in registers", "middle", "label")
    p.text(540, 208, "WGMMA reads A and X where they lie", style="small")

    p.text(20, 244, "Who works when", style="head")
    for name, y in (("producers", 262), ("warpgroup 1", 296), ("warpgroup 2", 330)):
        p.text(20, y + 18, name)
        p.line([(130, y + 28), (740, y + 28)])
    p.text(20, 382, "stores")
    p.line([(130, 392), (740, 392)])
    step, of_tile = 46, 6
    for i in range(12):
        at = 130 + i * step
        p.rect(at, 264, step - 4, 22, "x" if i < of_tile else "x2")
        p.text(at + step / 2 - 2, 280, f"{i % 4}", "middle", "label")
    for group, y in enumerate((298, 332)):
        for i in range(10):
            # Between two tiles the sums are rounded and handed to the stores.
            at = 130 + (i + 1.2 + 0.5 * group + (0.5 if i >= of_tile else 0)) * step
            p.rect(at, y, step - 4, 22, "y" if i < of_tile else "y2")
            p.text(at + step / 2 - 2, y + 16, f"{i % 4}", "middle", "label")
        p.rect(130 + (7.25 + 0.5 * group) * step, 366, 0.5 * step - 3, 22, "y")
    p.text(
        20,
        416,
        "Numbers are stages. Muted: the next tile, whose loads do not wait for this one's stores.",
        style="small",
    )
    return p


def stream() -> Picture:
    """Which block columns a tile of small blocks uses, and the stage that they are packed into."""
    rows, columns, used_limit = 8, 20, 8
    rng = random.Random(3)
    stored = [[rng.random() < 0.1 for _ in range(columns)] for _ in range(rows)]
    used = [c for c in range(columns) if any(stored[r][c] for r in range(rows))]
    blocks = sum(map(sum, stored))
    p = Picture(760, 400, "Streaming: the block columns that a tile uses, packed into stages")
    p.text(20, 28, f"A tile of {rows} block rows stores {blocks} blocks", style="head")
    cell = 18
    for r in range(rows):
        for c in range(columns):
            fill = ("a" if r < rows // 2 else "a2") if stored[r][c] else "none"
            p.rect(20 + c * cell, 44 + r * cell, cell - 2, cell - 2, fill)
    p.text(20, 206, f"blocks in {len(used)} of {columns} block columns", style="small")
    x_left = 420
    p.text(x_left, 28, "the rows of X, by block columns", style="head")
    for c in range(columns):
        fill = "x" if c in used else "none"
        p.rect(x_left + (c // 10) * 160, 44 + c % 10 * 16, 140, 13, fill)
    p.text(x_left, 220, "grey rows are never read", style="small")

    p.text(20, 252, f"Stages of up to {used_limit} block columns", style="head")
    stages = [used[i : i + used_limit] for i in range(0, len(used), used_limit)]
    for number, part in enumerate(stages):
        y = 268 + number * 52
        p.frame(20, y, 700, 42)
        for i in range(len(part)):
            p.rect(26 + i * 30, y + 6, 26, 30, "x")
        p.text(278, y + 26, "rows of X; blocks:", style="small")
        held = [(r, c) for c in part for r in range(rows) if stored[r][c]]
        for i, (r, _) in enumerate(held):
            p.rect(420 + i * 20, y + 13, 16, 16, "a" if r < rows // 2 else "a2")
    p.text(
        20,
        268 + len(stages) * 52 + 18,
        "Each warpgroup (two here, in two blues; the kernel has three) multiplies the blocks of "
        "its rows by what the stage holds.",
        style="small",
    )
    return p


def regroup() -> Picture:
    """Stored blocks of 8 × 8 seen as parts of blocks of 16 × 16, and how many zeros that makes."""
    size, factor = 16, 2
    rng = random.Random(11)
    p = Picture(760, 330, "Regrouping: small blocks as parts of larger ones, with zeros between")
    for number, density in enumerate((0.12, 0.75)):
        stored = [[rng.random() < density for _ in range(size)] for _ in range(size)]
        new = {(r // factor, c // factor) for r in range(size) for c in range(size) if stored[r][c]}
        held = sum(map(sum, stored))
        share = held / (len(new) * factor**2)
        x0, cell = 20 + number * 375, 15
        p.text(x0, 28, f"{held} blocks of 8 × 8 lie in {len(new)} of 16 × 16", style="head")
        for r in range(size):
            for c in range(size):
                inside = (r // factor, c // factor) in new
                fill = "a" if stored[r][c] else "x2" if inside else "none"
                p.rect(x0 + c * cell, 44 + r * cell, cell - 1, cell - 1, fill)
        for r, c in sorted(new):
            step = factor * cell
            p.frame(x0 + c * step - 0.5, 44 + r * step - 0.5, step, step)
        p.text(x0, 304, f"{share:.0%} of what is multiplied is stored", style="small")
    p.text(
        20,
        322,
        "Blue: stored. Orange: zeros that are multiplied. The planner compares both costs for each "
        "pattern.",
        style="small",
    )
    return p


def drawn(lengths: list[int], workers: int) -> list[tuple[int, int, int]]:
    """(worker, begin, length) of tiles that are drawn one by one by whoever is free first."""
    free = [(0, w) for w in range(workers)]
    placed = []
    for length in lengths:
        begin, worker = heapq.heappop(free)
        placed.append((worker, begin, length))
        heapq.heappush(free, (begin + length, worker))
    return placed


def schedule() -> Picture:
    """The same tiles on six SMs: dealt in turn, drawn in their order, drawn longest first."""
    rng = random.Random(8)
    workers = 6
    lengths = [rng.choice((2, 3, 3, 4, 5)) for _ in range(34)]
    lengths.insert(24, 14)
    dealt, ends = [], [0] * workers
    for i, length in enumerate(lengths):
        dealt.append((i % workers, ends[i % workers], length))
        ends[i % workers] += length
    plans = (
        ("Dealt in turn: SM i takes tiles i, i + 6, …", dealt),
        ("Drawn from a counter, in the order of rows", drawn(lengths, workers)),
        ("Drawn from a counter, longest first", drawn(sorted(lengths, reverse=True), workers)),
    )
    last = max(begin + length for _, plan in plans for _, begin, length in plan)
    unit, height = 640 / last, 13
    p = Picture(760, 3 * 128 + 40, "Tiles of uneven length on six SMs")
    for number, (title, plan) in enumerate(plans):
        y0 = 20 + number * 128
        end = max(begin + length for _, begin, length in plan)
        p.text(20, y0 + 12, title, style="head")
        for w in range(workers):
            p.rect(20, y0 + 22 + w * height, end * unit, height - 2, "none")
        for worker, begin, length in plan:
            fill = "x" if length > 5 else "a" if length > 2 else "a2"
            y = y0 + 22 + worker * height
            p.rect(20 + begin * unit, y, length * unit - 1.5, height - 2, fill)
        p.text(26 + end * unit, y0 + 22 + workers * height - 4, f"{end} steps", style="small")
    p.text(
        20,
        3 * 128 + 24,
        f"{sum(lengths)} steps of work, at best {sum(lengths) / workers:.0f} each. Grey: idle. "
        "A very long tile (orange) can also be cut in parts.",
        style="small",
    )
    return p


PICTURES: dict[str, Callable[[], Picture]] = {
    "tall": tall,
    "stream": stream,
    "regroup": regroup,
    "schedule": schedule,
}


def main() -> int:
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw().render())
    return 0


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    sys.exit(main())
