"""Two GPUs, with the driver of tests/c/fake_cuda.c: work is put on the one that has the operands,
and the caller's current context stays what it was.
"""

from __future__ import annotations

import textwrap

import fake_cuda
import pytest

SCRIPT = """
    import ctypes, gc
    import bsrgemm, calls, numpy as np
    from bsrgemm import BlockMask, DeviceArray, DynamicPattern, _core, bsr_array, matmul
    from fake_cuda import driver, noted
    from spaces import OwnDevice

    class Device(OwnDevice):
        def __init__(self, index):
            self.device = f"cuda:{index}"

        def array(self, x):
            return DeviceArray.from_host(np.asarray(x, order="C"), self.device)

    class Lent:
        def __init__(self, array):
            self.array, self.__cuda_array_interface__ = array, array.__cuda_array_interface__

    def ones(index, *shape, dtype=np.float16):
        return Device(index).array(np.ones(shape, dtype))

    def matrix(index):
        return bsr_array((ones(index, 3, 64, 64), [0, 1, 1], [0, 2, 3]), (128, 128))

    def current():
        context = ctypes.c_void_p()
        fake.cuCtxGetCurrent(ctypes.byref(context))
        return context.value

    fake = driver()
    fake.cuCtxPushCurrent_v2.argtypes = [ctypes.c_void_p]
    fake.cuDevicePrimaryCtxRetain.argtypes = [ctypes.c_void_p, ctypes.c_int]
    assert len(_core.cuda_devices()) == 2 and current() is None
    contexts = []
    for index in (0, 1):
        context = ctypes.c_void_p()
        fake.cuDevicePrimaryCtxRetain(ctypes.byref(context), index)
        contexts.append(context.value)
"""


# On the second device: also those whose results are on no device.
OPERATIONS = """
    array, host, scores = ones(1, 4), np.ones(4), ones(1, 1, 1, 2, 2, dtype=np.float32)

    def lend():
        for stream in (7, 9):
            array.__dlpack__(stream=stream)

    made = calls.calls(Device(1), np.random.default_rng(0))
    others = {
        "copy to it": lambda: Device(1).array(host),
        "copy from it": array.to_host,
        "lend": lend,
        "synchronize": lambda: _core.synchronize("cuda:1", 7),
        "top k": lambda: BlockMask.topk(scores, 1, (64, 64)),
    }
"""


def run(end: str) -> str:
    return fake_cuda.run("".join(map(textwrap.dedent, (SCRIPT, OPERATIONS, end))), devices=2)


@fake_cuda.needs_kernels
@pytest.mark.parametrize("context", ["None", "contexts[0]", "contexts[1]"])
def test_operations_on_the_second_device(context: str) -> None:
    """Whatever was current: nothing, as in new threads, or what another library has left there."""
    script = f"""
        context = {context}
        if context:
            fake.cuCtxPushCurrent_v2(context)

        def run(call, check):
            found = call()
            assert current() == context
            for one in found if isinstance(found, list) else [found]:
                assert not check or _core.describe(getattr(one, "data", one)).device == "cuda:1"
            del found, one
            gc.collect()  # which frees plans and results
            assert current() == context

        for name, call in (made | others).items():
            found = noted(lambda: run(call, name in made))
            assert {{one.device for one in found}} == {{1}}, name
            assert name in others or "cuLaunchKernelEx" in [one.function for one in found], name
        print(len(made))
    """
    assert int(run(script)) > 12


@fake_cuda.needs_kernels
def test_failures_leave_the_context_as_it_was() -> None:
    """Of every call of the driver, in turn."""
    script = """
        fake.cuCtxPushCurrent_v2(contexts[0])
        for name, call in (made | others).items():
            failed = 0
            for at in range(1000):
                fake.fake_fail_at(at, 719)
                try:
                    call()
                except RuntimeError:
                    failed += 1
                done = fake.fake_calls() <= at
                fake.fake_fail_at(-1, 0)
                assert current() == contexts[0], (name, at)
                if done:
                    break
            assert failed, name
    """
    run(script)


@fake_cuda.needs_kernels
def test_a_matrix_on_both_devices() -> None:
    """They share its structure. Each has a plan of its own, and kernels that are made ready."""
    script = """
        a = matrix(0)
        both = [a, a.to("cuda:1")]
        assert both[1].data.device == "cuda:1" and both[1].to("cuda:1") is both[1]
        assert both[1]._structure is a._structure
        x = [ones(index, 128, 40) for index in (0, 1)]
        HOW_OFTEN = "cuMemAlloc_v2", "cuKernelSetAttribute", "cuLaunchKernelEx"
        uploads = []
        for index in (0, 1):
            first = noted(lambda: both[index] @ x[index], *HOW_OFTEN)
            assert {one.device for one in first} == {index}
            names = [one.function for one in first]
            assert names[-2:] == ["cuKernelSetAttribute", "cuLaunchKernelEx"]
            uploads.append(names.count("cuMemAlloc_v2"))
        assert uploads[0] == uploads[1] > 0
        for index in (0, 1):
            again = noted(lambda: both[index] @ x[index], *HOW_OFTEN)
            assert [one.function for one in again] == ["cuLaunchKernelEx"]

        def drop():
            global a
            del a, both[:]
            gc.collect()

        freed = [one.device for one in noted(drop, "cuMemFree_v2")]
        assert sorted(freed) == [0] * uploads[0] + [1] * uploads[1]
    """
    run(script)


@fake_cuda.needs_kernels
def test_memory_of_other_libraries_is_where_the_driver_says() -> None:
    script = """
        a, x = matrix(1), ones(1, 128, 8)
        assert _core.describe(Lent(x)).device == "cuda:1"
        assert {one.device for one in noted(lambda: a @ Lent(x))} == {1}
        lent = bsr_array((Lent(a.data), [0, 1, 1], [0, 2, 3]), (128, 128))
        assert lent.device == "cuda:1" and (lent @ x).device == "cuda:1"
    """
    run(script)


@fake_cuda.needs_kernels
def test_operands_of_both_devices_are_refused() -> None:
    """By the names of both, before anything is launched."""
    script = """
        a, x, q, bias = ([make(index) for index in (0, 1)] for make in (
            matrix,
            lambda index: ones(index, 128, 8),
            lambda index: ones(index, 1, 2, 96, 64),
            lambda index: ones(index, 8),
        ))
        turned = [ones(index, 8, 128) for index in (0, 1)]
        pattern = DynamicPattern((128, 128), (64, 64), 3, "cuda:1")
        pattern.update(ones(1, 2, 2, dtype=np.uint8))
        dynamic = pattern.array(ones(1, 3, 64, 64))
        index = [DeviceArray.from_host(np.array(x, np.int32)) for x in ([0, 1, 1], [0, 2, 3])]

        def check(call, *names):
            try:
                found = noted(call, "cuLaunchKernelEx")
            except TypeError as error:
                for name in (*names, "cuda:0", "cuda:1"):
                    assert name in str(error), (name, error)
            else:
                raise AssertionError(f"not refused: {names}")
            assert b"cuLaunchKernelEx" not in fake.fake_noted()

        for i in (0, 1):
            check(lambda: a[i] @ x[1 - i], "b is on", "a.data is on")
            check(lambda: a[i] @ Lent(x[1 - i]), "b is on", "a.data is on")
            check(lambda: turned[1 - i] @ a[i], "a is on", "b.data is on")
            check(lambda: matmul(a[i], x[i], x[1 - i]), "c is on", "a.data is on")
            check(lambda: matmul(a[i], x[i], out=x[1 - i]), "out is on", "a.data is on")
            check(lambda: matmul(a[i], x[i], bias=bias[1 - i]), "bias is on", "a.data is on")
            check(lambda: a[i] @ a[1 - i], "b.data is on", "a.data is on")
            check(lambda: bsrgemm.sampled_matmul(x[i], turned[1 - i], a[i]), "b is on", "a is on")
            check(lambda: bsrgemm.attention(q[i], q[1 - i], q[i]), "k is on", "q is on")
            check(lambda: bsrgemm.attention(q[i], q[i], q[1 - i]), "v is on", "q is on")
        check(lambda: dynamic @ x[0], "b is on")
        check(lambda: pattern.array(ones(0, 3, 64, 64)), "values is on")
        check(lambda: pattern.gather(ones(0, 128, 128)), "dense is on")
        check(lambda: bsr_array((ones(1, 3, 64, 64), *index), (128, 128)), "indices is on")
        check(lambda: pattern.update(ones(0, 2, 2, dtype=np.uint8)), "mask is on")
        assert {one.device for one in noted(lambda: dynamic @ x[1])} == {1}  # still as it was
    """
    run(script)


@fake_cuda.needs_kernels
def test_refused_operands_stay_on_their_own_streams() -> None:
    """What a call refuses is not left on a stream of the other GPU."""
    script = """
        a, x, y = matrix(0), ones(1, 128, 8), ones(0, 128, 8)
        b = matrix(1)
        values = b.data
        matmul(b, ones(1, 128, 8), stream=6)
        matmul(matrix(1), ones(1, 128, 8), out=x, stream=5)
        matmul(a, ones(0, 128, 8), out=y, stream=7)
        try:
            matmul(a, x, out=y)
        except TypeError as error:
            assert "b is on" in str(error)
        else:
            raise AssertionError("not refused")
        assert x.__cuda_array_interface__["stream"] == 5
        assert y.__cuda_array_interface__["stream"] == 7

        class Streamed(Lent):
            def __init__(self, array):
                super().__init__(array)
                self.__cuda_array_interface__ = {**self.__cuda_array_interface__, "stream": 9}

        class Spoken:
            def __init__(self, array):
                self.__dlpack__, self.__dlpack_device__ = array.__dlpack__, array.__dlpack_device__

        for lend in (Lent, Streamed, Spoken):
            for stream in (None, 4):
                try:
                    matmul(lend(ones(0, 8, 128)), b, stream=stream)
                except TypeError as error:
                    assert "a is on" in str(error)
                else:
                    raise AssertionError(lend)
                assert values.__cuda_array_interface__["stream"] == 6, (lend, stream)
    """
    run(script)
