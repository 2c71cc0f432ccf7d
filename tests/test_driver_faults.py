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
        return failed

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


@fake_cuda.needs_kernels
@pytest.mark.parametrize("fast", ["tall", "pairs"])
def test_without_memory_portable_kernels_multiply(fast: str) -> None:
    """But where C is overwritten, of which the kernels that had none may have changed a part."""
    script = """
        import os
        from bsrgemm._matmul import product
        from fake_cuda import noted

        rng, size = np.random.default_rng(0), 64 * 40
        blocks = rng.random((40, 40)) < 0.3
        indptr = np.concatenate([[0], blocks.sum(1).cumsum()]).astype(np.int32)
        data = DeviceArray.from_host(np.ones((indptr[-1], 64, 64), np.float16))
        matrix = lambda: bsrgemm.bsr_array((data, blocks.nonzero()[1], indptr), (size, size))
        c, dense, out = (DeviceArray.from_host(np.ones((size, size), np.float16)) for _ in "123")
        x = matrix() if "{fast}" == "pairs" else dense

        def kernels(a, c=None, beta=0.0, family="auto"):
            call = lambda: product(a, x, c, 1.0, beta, out, 0, family)
            return [launch.about for launch in noted(call, "cuLaunchKernelEx")]

        def without_memory(*arguments):
            a = matrix()
            portable = kernels(a, family="portable")  # whose plan is uploaded now
            os.environ["FAKE_CUDA_FAIL"] = "cuMemAlloc_v2:2"
            try:
                return kernels(a, *arguments) == portable
            except MemoryError as problem:
                assert "has no room for" in str(problem), problem
                assert not fake.fake_noted()
                return False
            finally:
                del os.environ["FAKE_CUDA_FAIL"]

        assert "{fast}_f16" in kernels(matrix())[0]
        assert without_memory()
        assert without_memory(c, 1.0)
        assert without_memory(out, 0.0)
        assert not without_memory(out, 1.0)
        assert not without_memory(c, 1.0, "{fast}")
    """
    fake_cuda.run(_script(script.format(fast=fast)))


@fake_cuda.needs_kernels
def test_an_update_that_fails_leaves_no_pattern() -> None:
    script = """
        pattern = bsrgemm.DynamicPattern((128, 128), (64, 64), 3)
        mask = DeviceArray.from_host(np.ones((2, 2), np.uint8))
        a = pattern.array(DeviceArray.from_host(np.ones((3, 64, 64), np.float16)))
        x = DeviceArray.from_host(np.ones((128, 8), np.float16))
        uses = lambda: pattern.nnzb, lambda: a @ x, lambda: pattern.gather(x), a.to_bsr
        failed = 0
        for at in range(20):
            fake.fake_fail_at(at, OTHER)
            try:
                pattern.update(mask)
            except RuntimeError:
                failed += 1
            fake.fake_fail_at(-1, 0)
            for use in uses if fake.fake_calls() > at else ():
                try:
                    use()
                except RuntimeError as error:
                    assert "last update has failed" in str(error), error
                else:
                    raise AssertionError(f"call {at} of the update failed")
            try:
                pattern.update(x)
            except TypeError:  # which changes nothing
                pass
        pattern.update(mask)
        a @ x
        print(failed)
    """
    assert int(fake_cuda.run(_script(script))) > 3


@fake_cuda.needs_kernels
@pytest.mark.parametrize("blocksize", [64, 16])
def test_counters_of_the_per_thread_stream(blocksize: int) -> None:
    """Which is many streams: kernels that draw uneven tiles have a counter of their own there, in
    scratch memory."""
    script = f"""
        import os

        space, rng, size = OwnDevice(), np.random.default_rng(0), {blocksize}
        blocks = rng.random((4096 // size, 512 // size)) < rng.random((4096 // size, 1))
        indptr = np.concatenate([[0], blocks.sum(1).cumsum()]).astype(np.int32)
        data = np.zeros((indptr[-1], size, size), np.float16)
        a = bsrgemm.bsr_array((space.array(data), blocks.nonzero()[1], indptr), (4096, 512))
        x, y = (space.array(np.zeros((rows, 4096), np.float16)) for rows in a.shape[::-1])
        q = space.array(np.zeros((1, 64, 1024, 64), np.float16))

        def multiply(stream):
            bsrgemm.matmul(a, x, out=y, stream=stream)

        def attend(stream):
            bsrgemm.attention(q, q, q, is_causal=True, stream=stream)

        for call in (multiply, attend):
            check(call.__name__, lambda: call(2))
            os.environ["FAKE_CUDA_FAIL"] = "cuMemsetD32Async:719"
            call(7)
            before = live()
            try:
                call(2)
            except RuntimeError as problem:
                assert "cuMemsetD32Async failed" in str(problem), problem
            else:
                raise AssertionError("no counter was set to zero")
            assert live() == before
            del os.environ["FAKE_CUDA_FAIL"]
    """
    fake_cuda.run(_script(script))


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


@fake_cuda.needs_kernels
def test_uploads_that_fail_while_a_graph_is_captured() -> None:
    """What has been uploaded is freed in a way that the driver allows then."""
    script = """
        import os

        data = DeviceArray.from_host(np.ones((3, 64, 64), np.float16), stream=7)
        x = DeviceArray.from_host(np.ones((128, 8), np.float16), stream=7)
        y = DeviceArray.empty((128, 8), "float16", stream=7)

        def multiply():
            a = bsrgemm.bsr_array((data, [0, 1, 1], [0, 2, 3]), (128, 128))
            bsrgemm.matmul(a, x, out=y, stream=7)

        multiply()  # loads its kernel
        os.environ["FAKE_CUDA_STRICT"] = "1"
        failed = 0
        for at in range(40):
            before = live()
            os.environ["FAKE_CUDA_CAPTURING"] = "7"
            fake.fake_fail_at(at, OUT_OF_MEMORY)
            try:
                multiply()
            except (MemoryError, RuntimeError):
                pass
            failed += fake.fake_calls() > at
            fake.fake_fail_at(-1, 0)
            del os.environ["FAKE_CUDA_CAPTURING"]
            assert fake.fake_refused_calls() == 0, at
            assert live() == before, at
        print(failed)
    """
    assert int(fake_cuda.run(_script(script))) > 5


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
