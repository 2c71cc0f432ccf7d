"""Scores for top-k masks, and which blocks are to be kept."""

from __future__ import annotations

import numpy as np

COUNTS = (0, 1, 3, 6, 7, 100)
KINDS = ("normal", "ties", "equal", "nan", "special", "tiny")


def make_scores(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """float32 that 16-bit dtypes have too, but for roundings that make ties."""
    scores = rng.standard_normal(shape).astype(np.float32)
    if kind == "ties":
        return np.round(scores)
    if kind == "equal":
        return np.full(shape, scores.flat[0])
    if kind == "nan":
        return np.where(rng.random(shape) < 0.5, np.float32(np.nan), scores)
    if kind == "special":
        values = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1.0, -1.0], np.float32)
        return rng.choice(values, shape)
    if kind == "tiny":  # subnormal in 16 bits
        return rng.integers(-3, 4, shape).astype(np.float32) * np.float32(2.0**-24)
    assert kind == "normal"
    return scores


def expected_blocks(scores: np.ndarray, k: int, below: np.ndarray | None = None) -> np.ndarray:
    """Row by row, by sorting. ``below`` says which blocks compete, all without it."""
    scores = scores.astype(np.float64).reshape((1,) * (4 - scores.ndim) + scores.shape)
    blocks = np.zeros(scores.shape, bool)
    for at in np.ndindex(scores.shape[:3]):
        columns = range(scores.shape[3]) if below is None else np.flatnonzero(below[at[2]])
        keys = [(bool(np.isnan(scores[at][c])), -scores[at][c], c) for c in columns]
        numbers = sorted((True, 0.0, c) if nan else (nan, score, c) for nan, score, c in keys)
        blocks[at][[c for _, _, c in numbers[:k]]] = True
    return blocks
