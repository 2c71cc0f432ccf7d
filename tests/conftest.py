"""Fixtures of all tests. ``BSRGEMM_TEST_SEED`` repeats a run whose seed a failure has printed."""

from __future__ import annotations

import os
import secrets
from typing import Any

# Workers of pytest-xdist share the cores, and BLAS's threads spin while they wait for one, which
# doubles the time of tests. It has to be said before NumPy is loaded. This library's own threads do
# not spin, and tests are to have some.
if "PYTEST_XDIST_WORKER" in os.environ:
    for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(_name, "1")
    os.environ.setdefault("BSRGEMM_NUM_THREADS", "2")

import numpy as np
import pytest
from bsrgemm import _matmul, _sampled


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shard", default="1/1", help="i/n: the i-th of n parts of the tests")
    parser.addoption(
        "--brief", action="store_true", help="smaller problems on the GPU: for tools that slow it"
    )
    parser.addoption(
        "--thorough", action="store_true", help="1,000 repeats and 10,000 calls, not a tenth of it"
    )


# What takes longest goes first, so that workers of pytest-xdist end together. By itself it begins
# with the files of most tests.
LONG = ("test_c_core.py", "test_emulated.py", "test_instruction_sets.py", "test_torch_linear.py")
LONG += ("test_examples.py", "test_torch_patterns.py", "test_torch.py", "test_torch_autograd.py")


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Neighbours stay together: they need the same kernels, which take long to load under tools."""
    order = {name: i for i, name in enumerate(LONG)}
    items.sort(key=lambda item: order.get(item.path.name, len(LONG)))
    part, parts = map(int, config.getoption("--shard").split("/"))
    items[:] = items[(part - 1) * len(items) // parts : part * len(items) // parts]


@pytest.fixture
def rng() -> np.random.Generator:
    """Random numbers of a fresh seed, which pytest shows when the test fails."""
    seed = int(os.environ.get("BSRGEMM_TEST_SEED") or secrets.randbits(32))
    print(f"BSRGEMM_TEST_SEED={seed}")
    return np.random.default_rng(seed)


@pytest.fixture
def repeats(pytestconfig: pytest.Config) -> int:
    """How often the same is done again where that is what a test is about."""
    if pytestconfig.getoption("--brief"):
        return 20
    return 1000 if pytestconfig.getoption("--thorough") else 100


@pytest.fixture
def short_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The general way fails."""

    def fail(*args: Any, **options: Any) -> Any:
        raise AssertionError("the general way was taken")

    monkeypatch.setattr(_matmul, "product", fail)
    monkeypatch.setattr(_sampled, "sampled", fail)


@pytest.fixture
def seeded_torch(
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """PyTorch as it starts, with random numbers of that seed."""
    import torch

    torch.manual_seed(int(rng.integers(2**62)))
    torch._dynamo.reset()
    # Elsewhere lies what was compiled with other versions of an operator, taken for this one's.
    folder = tmp_path_factory.getbasetemp() / "inductor"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
