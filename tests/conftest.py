"""Fixtures of all tests. ``BSRGEMM_TEST_SEED`` repeats a run whose seed a failure has printed."""

from __future__ import annotations

import os
import secrets

import numpy as np
import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shard", default="1/1", help="i/n: every n-th test, from the i-th")
    parser.addoption(
        "--brief", action="store_true", help="smaller problems on the GPU: for tools that slow it"
    )
    parser.addoption(
        "--examples",
        choices=("short", "full"),
        default="short",
        help="how many random calls: full is 10,000 on the CPU, 2,000 on a GPU",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    first, count = map(int, config.getoption("--shard").split("/"))
    items[:] = items[first - 1 :: count]


@pytest.fixture
def rng() -> np.random.Generator:
    """Random numbers of a fresh seed, which pytest shows when the test fails."""
    seed = int(os.environ.get("BSRGEMM_TEST_SEED") or secrets.randbits(32))
    print(f"BSRGEMM_TEST_SEED={seed}")
    return np.random.default_rng(seed)
