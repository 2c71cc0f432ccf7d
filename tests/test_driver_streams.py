"""What calls put on streams: launches that may begin early, and the events that order the uses of
a DeviceArray on one stream behind those on another.

With the driver of tests/c/fake_cuda.c, which notes all that.
"""

from __future__ import annotations

import textwrap

import fake_cuda
import pytest

SCRIPT = """
    import ctypes, gc, os
    import bsrgemm, numpy as np
    from bsrgemm import DeviceArray, matmul
    from fake_cuda import driver, noted

    fake = driver()
    data = DeviceArray.from_host(np.ones((3, 64, 64), np.float16))
    a = bsrgemm.bsr_array((data, [0, 1, 1], [0, 2, 3]), (128, 128))
    x, y, other = (DeviceArray.from_host(np.ones((128, 8), np.float16)) for _ in range(3))

    def multiply(stream, b=None, out=None):
        matmul(a, x if b is None else b, out=y if out is None else out, stream=stream)

    LAUNCH, RECORD, WAIT = "cuLaunchKernelEx", "cuEventRecord", "cuStreamWaitEvent"

    def order(call):
        '''Launches by their stream, and of each wait what it waits for: (9, 7) is 9 for 7.'''
        found, recorded = [], {}
        for one in noted(call, LAUNCH, RECORD, WAIT):
            if one.function == RECORD:
                recorded[one.about] = one.stream
            else:
                waits = one.function == WAIT
                found.append((one.stream, recorded[one.about]) if waits else one.stream)
        return found

    def freed(*functions):
        '''Where the memory of y goes back.'''
        global y
        def call():
            global y
            del y
            gc.collect()
        return [one.stream for one in noted(call, "cuMemFreeAsync", *functions)]
"""


def run(end: str, **variables: object) -> str:
    return fake_cuda.run(textwrap.dedent(SCRIPT) + textwrap.dedent(end), **variables)


# ---- early launches
# --------------------------------------------------------------------------------

OLD_PTX = {"ptx": 80}  # as the driver compiles for a chip that the build has no code for
PER_THREAD = 2


@fake_cuda.needs_kernels
@pytest.mark.parametrize(
    ("variables", "early"),
    [
        ({}, [0, 7, 9]),
        ({"capturing": 9}, [0, 7]),
        ({"capturing": 0}, [7, 9]),
        ({"fail": "cuStreamIsCapturing:900"}, []),
        ({"arch": 80}, []),
        ({"arch": 100}, []),
        (OLD_PTX, []),
    ],
    ids=str,
)
def test_launches_that_may_begin_early(variables: dict[str, object], early: list[int]) -> None:
    """Those of kernels that wait for the one before them, on streams of which it is known that no
    graph comes of it; not on the per-thread stream, which is many."""
    script = """
        def early():
            launches = [noted(lambda: multiply(stream), LAUNCH) for stream in (0, 1, 2, 7, 9)]
            assert all(launches)
            return {launch.stream for all_of_it in launches for launch in all_of_it if launch.early}
        found = early()
        assert early() == found
        print(sorted(found))
    """
    assert run(script, **variables) == f"{early}\n"


@fake_cuda.needs_kernels
@pytest.mark.parametrize(("value", "early"), [("0", False), ("1", True), ("", True)])
def test_early_launches_can_be_turned_off(
    value: str, early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BSRGEMM_EARLY_LAUNCH", value)
    found = run("print({launch.early for launch in noted(lambda: multiply(7), LAUNCH)})")
    assert found == f"{ {early} }\n"


@fake_cuda.needs_kernels
def test_every_launch_of_a_call_may_begin_early() -> None:
    """Also those that copy what has partial blocks."""
    script = """
        def ones(*shape):
            return DeviceArray.from_host(np.ones(shape, np.float16))

        zeros = DeviceArray.from_host(np.zeros((3, 64, 64), np.float16))
        a = bsrgemm.bsr_array((zeros, [0, 1, 1], [0, 2, 3]), (100, 101))
        c, q = ones(100, 256), ones(1, 2, 96, 64)
        for call in (
            lambda: matmul(a, ones(101, 256), c, beta=2.0, stream=7),
            lambda: matmul(a.T, c, stream=7),
            lambda: bsrgemm.softmax(a, stream=7),
            lambda: bsrgemm.attention(q, q, q, is_causal=True, stream=7),
            lambda: bsrgemm.sampled_matmul(c, ones(256, 101), a, stream=7),
        ):
            launches = noted(call, LAUNCH)
            assert {(launch.stream, launch.early) for launch in launches} == {(7, True)}
    """
    run(script)


# ---- events
# ----------------------------------------------------------------------------------------


@fake_cuda.needs_kernels
def test_a_stream_waits_for_the_one_that_made_the_array() -> None:
    """Once, and before the launch; nothing is waited for on the same stream."""
    script = """
        assert order(lambda: multiply(7)) == [7]  # from_host has waited for its copies
        assert order(lambda: multiply(7, y, other)) == [7]
        assert order(lambda: multiply(9)) == [(9, 7)] * 3 + [9]  # values, x and y
        assert order(lambda: multiply(9)) == [9]
        assert order(lambda: multiply(0)) == [(0, 9)] * 3 + [0]
        assert order(lambda: multiply(1)) == [0]  # the same stream by its other name
        assert order(lambda: multiply(7)) == [(7, 0)] * 3 + [7]
        assert order(lambda: multiply(7, x, other)) == [7]
    """
    run(script)


@fake_cuda.needs_kernels
def test_views_are_on_the_stream_of_their_memory() -> None:
    script = """
        multiply(7)
        view = y.reshape(64, 16).reshape(128, 8)
        assert order(lambda: multiply(9, view, other))[-2:] == [(9, 7), 9]
        assert order(lambda: multiply(9, y, other)) == [9]
        assert order(lambda: multiply(7, x, y))[-2:] == [(7, 9), 7]
        assert order(lambda: multiply(7, view, other)) == [(7, 9), 7]
        assert noted(view.to_host, "cuMemcpyDtoHAsync_v2")[0].stream == 7
    """
    run(script)


@fake_cuda.needs_kernels
def test_calls_without_a_stream_take_that_of_the_dense_operand() -> None:
    """What they make is on it, too; its memory was made on the default stream."""
    script = """
        multiply(7)
        made = []
        assert order(lambda: made.append(a @ x)) == [(7, 0), 7]
        assert order(lambda: made.append(a @ made[0])) == [(7, 0), 7]
        assert order(lambda: multiply(9, x, other))[-2:] == [(9, 7), 9]
        assert order(lambda: matmul(a, other, out=y)) == [(9, 7), 9]
    """
    run(script)


@fake_cuda.needs_kernels
@pytest.mark.parametrize(
    ("b", "error", "waits"),
    [("other", "RuntimeError", 3), ("other.reshape(64, 16)", "ValueError", 0)],
)
def test_calls_that_failed_are_waited_for(b: str, error: str, waits: int) -> None:
    """What they have launched may be under way. Of arguments that are refused, nothing is."""
    script = f"""
        os.environ["FAKE_CUDA_FAIL"] = "cuLaunchKernelEx:719"
        try:
            multiply(7, {b})
        except {error}:
            pass
        else:
            raise AssertionError("nothing has failed")
        del os.environ["FAKE_CUDA_FAIL"]
        assert order(lambda: multiply(9, other)) == [(9, 7)] * {waits} + [9]
    """
    run(script)


@fake_cuda.needs_kernels
def test_an_array_that_moves_while_a_call_uses_it() -> None:
    """By another thread: both streams come before what is put on the array's from then on."""
    script = """
        multiply(7)

        @ctypes.CFUNCTYPE(None)
        def meanwhile():
            y.__dlpack__(stream=9)

        fake.fake_at_launch(meanwhile)
        assert order(lambda: multiply(7)) == [7, (9, 7), (7, 9)]
        fake.fake_at_launch(None)
        assert order(lambda: multiply(7)) == [7]
        assert order(lambda: multiply(5))[-1] == 5
    """
    run(script)


@fake_cuda.needs_kernels
def test_memory_is_freed_behind_its_last_use() -> None:
    """By consumers, too, which are anywhere if another library has it: the legacy default stream
    waits for them."""
    run("multiply(7); multiply(9, y, other); assert freed() == [9]")
    run("multiply(9); assert freed(WAIT) == [9]")
    for way in ("y.__dlpack__(stream=9)", "y.__cuda_array_interface__"):
        run(f"multiply(9); {way}; found = freed(RECORD, WAIT); assert found == [9, 0, 0], found")
    script = """
        multiply(9)
        view = y.reshape(-1)
        assert freed() == []
        y = view
        del view
        assert freed() == [9]
    """
    run(script)


@fake_cuda.needs_kernels
def test_other_libraries_wait_for_arrays() -> None:
    """DLPack makes the stream wait that is named, the other protocol names the one to wait for."""
    script = """
        def lend(stream):
            return order(lambda: y.__dlpack__(stream=stream, max_version=(1, 0)))

        assert y.__cuda_array_interface__["stream"] is None
        assert lend(-1) == []
        multiply(7)
        assert y.__cuda_array_interface__["stream"] == 7
        assert lend(-1) == [] and lend(7) == [] and lend(9) == [(9, 7)]
        assert y.__cuda_array_interface__["stream"] == 9
        assert lend(9) == [] and lend(None) == [(0, 9)] and lend(1) == []
        assert y.__cuda_array_interface__["stream"] == 1
        other.__dlpack__(stream=7)  # what the consumer does there is waited for
        assert order(lambda: multiply(9, x, other)) == [(9, 7)] * 3 + [9]
    """
    run(script)


@fake_cuda.needs_kernels
def test_arrays_of_other_libraries_are_waited_for() -> None:
    script = """
        class Lent:
            def __init__(self, stream):
                told = x.__cuda_array_interface__
                self.__cuda_array_interface__ = {**told, "stream": stream}

        for stream, waits in ((None, []), (9, []), (7, [(9, 7)]), (1, [(9, 0)]), (2, [(9, 2)])):
            assert order(lambda: matmul(a, Lent(stream), out=y, stream=9)) == [*waits, 9]

        class Spoken:
            '''DLPack, which orders by itself.'''
            def __dlpack__(self, *, stream, **keywords):
                asked.append(stream)
                return x.__dlpack__(stream=stream, **keywords)

            def __dlpack_device__(self):
                return x.__dlpack_device__()

        for stream, named in ((0, 1), (7, 7)):
            asked = []
            matmul(a, Spoken(), out=y, stream=stream)
            assert asked == [-1, named], asked  # asked what it is, then for the product
    """
    run(script)


@fake_cuda.needs_kernels
@pytest.mark.parametrize("stream", [7, 8])
def test_threads_that_bring_an_array_to_streams(stream: int) -> None:
    """Both wait for what is under way with it, although one comes while the other is at it."""
    script = f"""
        import threading, time

        b = bsrgemm.bsr_array((DeviceArray.from_host(np.ones((3, 64, 64), np.float16)),
                               a.indices, a.indptr), a.shape)
        first, second = (DeviceArray.from_host(np.ones((128, 8), np.float16)) for _ in range(2))
        x.to_host(), y.to_host(), other.to_host()
        matmul(a, other, out=first, stream=7)
        matmul(b, y, out=second, stream={stream})
        matmul(a, other, out=x, stream=5)

        def both():
            fake.fake_slow()
            late = threading.Thread(target=lambda: matmul(a, x, out=first, stream=7))
            late.start()
            time.sleep(0.05)
            matmul(b, x, out=second, stream={stream})
            late.join()

        behind, recorded = {{5}}, set()
        for one in noted(both, LAUNCH, RECORD, WAIT):
            if one.function == RECORD:
                (recorded.add if one.stream in behind else recorded.discard)(one.about)
            elif one.function == WAIT:
                behind |= {{one.stream}} if one.about in recorded else set()
            else:
                assert one.stream in behind, one
    """
    run(script)
