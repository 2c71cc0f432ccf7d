"""Random calls of any operation on the GPU, each computed as it should be or refused with a reason.

``--thorough`` makes 2,000, of which the shards share: ``pytest -n 14`` runs them side by side.
"""

from __future__ import annotations

from typing import Any

import device_cases
import pytest
from spaces import GPU_SPACES, import_torch

pytestmark = pytest.mark.gpu

SHARDS = 20


@pytest.mark.parametrize("shard", range(SHARDS))
def test_any_call(shard: int, gpu: dict[str, Any], request: pytest.FixtureRequest) -> None:
    pytest.importorskip("hypothesis", reason="hypothesis is not installed")
    pytest.importorskip("ml_dtypes", reason="NumPy has bfloat16 only with ml_dtypes")
    import_torch()
    from drawn_calls import Drawn, calls, check
    from drawn_products import Target
    from hypothesis import given
    from hypothesis import strategies as st
    from strategies import GPU_COLUMNS, GPU_SIDES, profile

    for space in GPU_SPACES:
        if space.name == "torch":
            space.check()
    full = request.config.getoption("--thorough")
    count = 2000 if full else 40 if device_cases.brief else 300
    target = Target(on_gpu=True, hopper=gpu["sm_arch"] == 90)
    # Those of CuPy have no bfloat16 and no 8 bits, and are arrays as any others.
    spaces = st.sampled_from((GPU_SPACES[0], GPU_SPACES[0], GPU_SPACES[2]))

    @profile(count // SHARDS)
    @given(calls(GPU_SIDES, GPU_SIDES, GPU_COLUMNS), spaces)
    def run(drawn: Drawn, space: Any) -> None:
        check(drawn, space, target._replace(own=space.name == "bsrgemm"))

    run()
