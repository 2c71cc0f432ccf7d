"""Every test here needs a GPU: without one it is skipped with the reason that the library gives."""

from __future__ import annotations

from typing import Any

import device_cases
import numpy as np
import pytest
from bsrgemm import DeviceUnavailableError, _core
from spaces import import_torch


def pytest_configure(config: pytest.Config) -> None:
    device_cases.brief = config.getoption("--brief")


@pytest.fixture(scope="session")
def gpu() -> dict[str, Any]:
    """Properties of cuda:0."""
    try:
        return _core.cuda_devices()[0]
    except DeviceUnavailableError as error:
        pytest.skip(f"no GPU: {error}")


@pytest.fixture(autouse=True)
def _needs_gpu(gpu: dict[str, Any]) -> None:
    """Applies ``gpu`` to every test of this folder."""


@pytest.fixture
def hopper(gpu: dict[str, Any]) -> None:
    if gpu["sm_arch"] != 90:
        pytest.skip(f"needs a Hopper GPU (sm_90), this one is sm_{gpu['sm_arch']}")


@pytest.fixture(params=["hopper", "portable"])
def backend(request: pytest.FixtureRequest, gpu: dict[str, Any]) -> str:
    """Of attention."""
    if request.param == "hopper" and gpu["sm_arch"] != 90:
        pytest.skip(f"needs a Hopper GPU (sm_90), this one is sm_{gpu['sm_arch']}")
    return request.param


@pytest.fixture
def torch(rng: np.random.Generator) -> Any:
    """torch with a GPU, seeded from ``rng``, its dense products as exact as it can make them."""
    module = import_torch()
    if not module.cuda.is_available():
        pytest.skip("this torch cannot use the GPU")
    module.manual_seed(int(rng.integers(2**62)))
    module.backends.cuda.matmul.allow_tf32 = False
    module.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    module.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    return module
