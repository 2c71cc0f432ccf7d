"""Kernels on a CPU, fiber by fiber: see tests/emulator. No GPU is needed for that."""

from __future__ import annotations

from pathlib import Path

import emulation
import fake_cuda
import pytest

pytest.importorskip("hypothesis", reason="hypothesis is not installed")
pytest.importorskip("ml_dtypes", reason="NumPy has bfloat16 only with ml_dtypes")
pytest.importorskip("torch", reason="torch is not installed")

# Those of products on Hopper alone, in front of kernels that are not emulated.
NOT_USED = {"stream_pack", "stream_pack_transposed"}
NAMES = tuple(
    sorted(
        path.stem for path in (emulation.KERNELS / "sm80").glob("*.cu") if path.stem not in NOT_USED
    )
)


@pytest.fixture(scope="module")
def kernels() -> Path:
    return emulation.library(NAMES)


ANY_CALL = """
    import warnings
    import hypothesis
    from hypothesis import given, settings
    from drawn_calls import calls, check
    from drawn_products import Target
    from spaces import OwnDevice, import_torch
    from strategies import GPU_COLUMNS, GPU_SIDES, profile

    import_torch()
    warnings.simplefilter("ignore")
    space, target = OwnDevice(), Target(on_gpu=True, hopper=False, own=True)
    called = 0

    @profile({count})
    @given(calls(GPU_SIDES, GPU_SIDES, GPU_COLUMNS))
    def run(drawn):
        global called
        called += 1
        check(drawn, space, target)

    run()
    print(called)
"""


@fake_cuda.needs_kernels
def test_any_call(kernels: Path, request: pytest.FixtureRequest) -> None:
    """As on a GPU before Hopper: computed as it should be, or refused with a reason."""
    count = 3000 if request.config.getoption("--thorough") else 200
    said = fake_cuda.run(ANY_CALL.format(count=count), arch=80, kernels=kernels)
    assert int(said.splitlines()[-1]) >= count // 2
