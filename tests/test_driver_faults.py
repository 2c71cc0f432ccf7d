"""Every call of the driver that an operation makes fails once, in turn: an error says so, nothing
stays behind, and the operation works when it is asked again.

With the driver of tests/c/fake_cuda.c, so this sees what the host does and not what kernels do.
"""

from __future__ import annotations

import fake_cuda
import pytest

SCRIPT = """
    import gc
    import sys
    import bsrgemm, calls, numpy as np
    from bsrgemm import DeviceArray, _core
    from fake_cuda import driver
    from spaces import OwnDevice

    OUT_OF_MEMORY, OTHER = 2, 719
    fake = driver()

    def live():
        gc.collect()
        return fake.fake_live_objects(), fake.fake_live_bytes()

    def sweep(name, call):
        '''Until none of its calls is left to fail.'''
        failed = 0
        for error in (OUT_OF_MEMORY, OTHER):
            for at in range(10_000):
                fake.fake_fail_at(at, error)
                try:
                    call()
                except (MemoryError, RuntimeError) as problem:
                    text = str(problem)
                    assert "CUDA_ERROR_" in text or "has no room for" in text, problem
                    failed += 1
                done = fake.fake_calls() <= at
                fake.fake_fail_at(-1, 0)
                if done:
                    break
        assert failed, f"{name}: nothing failed"
        call()

    def check(name, call):
        sweep(name, call)  # its plans stay, and where memory ran out those of other kernels
        before = live()
        sweep(name, call)
        assert live() == before, f"{name}: {before} objects and bytes before, {live()} after"
"""


@fake_cuda.needs_kernels
def test_operations() -> None:
    script = """
        made = calls.calls(OwnDevice(), np.random.default_rng(0), "float16", {blocksize})
        for name, call in made.items():
            check(name, call)
        print(len(made))
    """
    assert all(
        int(fake_cuda.run(_script(script.format(blocksize=blocksize)))) > 12
        for blocksize in ((64, 64), (16, 16))
    )


def test_preparing_a_device() -> None:
    """Nothing of a device that could not be prepared is kept, and it is prepared later."""
    script = """
        for at in range(100):
            fake.fake_fail_at(at, OUT_OF_MEMORY)
            try:
                _core.cuda_devices()
            except (MemoryError, RuntimeError):
                assert live() == (0, 0), f"call {at}: {live()}"
            else:
                break
        print(at)
        fake.fake_fail_at(-1, 0)
        assert _core.cuda_devices()[0]["name"] == "Fake GPU"
    """
    assert int(fake_cuda.run(_script(script))) > 8


@pytest.mark.parametrize("way", ["to_host", "dlpack"])
def test_arrays(way: str) -> None:
    script = """
        host = np.arange(12.0).reshape(3, 4)

        def call():
            array = DeviceArray.from_host(host, stream=7)
            if "{way}" == "to_host":
                assert np.array_equal(array.reshape(4, 3).to_host(), host.reshape(4, 3))
            else:
                array.__dlpack__(stream=2, max_version=(1, 0))

        check("{way}", call)
    """
    fake_cuda.run(_script(script.format(way=way)))


def _script(end: str) -> str:
    import textwrap

    return textwrap.dedent(SCRIPT) + textwrap.dedent(end)
