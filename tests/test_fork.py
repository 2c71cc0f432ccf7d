"""Forked children: they multiply on the CPU, and say what to do where CUDA was used before."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import fake_cuda
import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

# Python 3.12 warns of forks in processes with several threads, which ours are.
START = """
    import os, threading, warnings
    import numpy as np
    import bsrgemm
    warnings.simplefilter("ignore", DeprecationWarning)

    def in_child(check):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                check()
                status = 0
            finally:
                if status:
                    import traceback
                    traceback.print_exc()
                os._exit(status)
        return child

    def wait(*children):
        for child in children:
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    bsrgemm.set_num_threads(4)
    data = np.random.default_rng(0).standard_normal((64, 32, 32))
    a = bsrgemm.bsr_array((data, np.tile(np.arange(8), 8), np.arange(0, 65, 8)), (256, 256))
    x = np.ones((256, 256))

    def results():
        q = np.ones((1, 2, 64, 16))
        sampled = bsrgemm.sampled_matmul(x, x, a)
        found = [a @ x, a.T @ x, x @ a, a @ a, bsrgemm.attention(q, q, q)]
        return [*found, sampled.data, bsrgemm.softmax(a).data]

    def check():
        assert all(map(np.array_equal, results(), expected))

    expected = results()
"""


def python(script: str) -> None:
    script = textwrap.dedent(START) + textwrap.dedent(script)
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_parent_and_children_at_once() -> None:
    python("""
        children = [in_child(lambda: [check() for _ in range(20)]) for _ in range(3)]
        for _ in range(20):
            check()
        wait(*children)
        check()
    """)


def test_fork_of_a_child() -> None:
    """Which has made a pool of threads of its own."""
    python("""
        def generation():
            check()
            wait(in_child(check))
            check()

        wait(in_child(generation))
    """)


def test_fork_before_the_first_product() -> None:
    python("""
        def first():
            fresh = bsrgemm.bsr_array((data, a.indices, a.indptr), a.shape)
            assert np.array_equal(fresh @ x, expected[0])

        wait(in_child(first))
    """)


def test_forks_while_other_threads_multiply() -> None:
    """At any moment of a product, the pool's locks being held."""
    python("""
        stop = threading.Event()

        def multiply():
            while not stop.is_set():
                check()

        threads = [threading.Thread(target=multiply) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(25):
                wait(in_child(check))
        finally:
            stop.set()
        for thread in threads:
            thread.join()
        check()
    """)


def test_forks_while_another_thread_holds_the_lock_of_patterns() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    python("""
        import torch
        import bsrgemm.torch
        from bsrgemm import _torch_operators

        layer = bsrgemm.torch.BSRLinear(bsrgemm.bsr_array(torch.ones(8, 8), blocksize=(4, 4)))
        held, forking = threading.Event(), threading.Event()

        def hold():
            with _torch_operators._lock:
                held.set()
                forking.wait(0.2)

        def forward():
            layer.indices = layer.indices.clone()
            assert (layer(torch.ones(2, 8)) == 8).all()

        for _ in range(3):
            held.clear()
            thread = threading.Thread(target=hold)
            thread.start()
            held.wait()
            wait(in_child(forward))
            thread.join()
        forward()
    """)


def test_other_number_of_threads_in_the_child() -> None:
    python("""
        def fewer():
            assert bsrgemm.get_num_threads() == 4
            bsrgemm.set_num_threads(2)
            check()

        wait(in_child(fewer))
        assert bsrgemm.get_num_threads() == 4
        check()
    """)


@pytest.mark.parametrize(
    "method", [m for m in multiprocessing.get_all_start_methods() if m != "forkserver"]
)
def test_multiprocessing(method: str, tmp_path: Path) -> None:
    """Matrices travel to workers by pickling."""
    script = f"""
        import multiprocessing, sys
        import numpy as np
        import bsrgemm

        def multiply(a):
            return a @ np.ones((a.shape[1], 40), a.dtype)

        if __name__ == "__main__":
            a = bsrgemm.bsr_array(np.arange(64.0).reshape(8, 8), blocksize=(4, 2))
            expected = multiply(a)
            with multiprocessing.get_context("{method}").Pool(2) as pool:
                for found in pool.map(multiply, [a] * 8):
                    assert np.array_equal(found, expected)
            assert np.array_equal(multiply(a), expected)
    """
    # A worker that is spawned runs the main module anew, so there must be a file of it.
    main = tmp_path / "main.py"
    main.write_text(textwrap.dedent(script))
    command = [sys.executable, "-W", "ignore::DeprecationWarning", main]
    subprocess.run(command, check=True, timeout=120)


# With the driver of tests/c/fake_cuda.c, in which nothing works in a child, as in the real one.
@fake_cuda.needs_kernels
def test_cuda_before_the_fork() -> None:
    """The child is told, computes on the CPU, and drops the parent's arrays without harm."""
    script = (
        START
        + """
    from fake_cuda import driver
    host = np.random.default_rng(0).standard_normal((3, 64, 64)).astype(np.float16)
    on_gpu = bsrgemm.bsr_array(
        (bsrgemm.DeviceArray.from_host(host), [0, 1, 1], [0, 2, 3]), (128, 128)
    )
    y = bsrgemm.DeviceArray.from_host(np.ones((128, 8), np.float16))
    on_gpu @ y
    live = driver().fake_live_objects()

    def child():
        global on_gpu, y
        messages = set()
        for call in (
            lambda: on_gpu @ y,
            lambda: bsrgemm.softmax(on_gpu),
            lambda: bsrgemm.DeviceArray.empty((3,), "float32"),
            lambda: y.to_host(),
            lambda: bsrgemm.DynamicPattern((8, 8), (4, 4), 2, "cuda"),
            bsrgemm._core.cuda_devices,
        ):
            try:
                call()
            except bsrgemm.DeviceUnavailableError as error:
                messages.add(str(error))
            else:
                raise AssertionError("nothing was raised")
        (message,) = messages
        assert message == (
            "CUDA was used in this process's parent before the fork, and the driver does not work "
            "in such a child: start it with multiprocessing's method 'spawn' or 'forkserver', or "
            "use no GPU before forks. Products on the CPU work here"
        ), message
        check()
        del on_gpu, y
        assert driver().fake_live_objects() == live

    wait(in_child(child))
    on_gpu @ y
    y.to_host()
"""
    )
    fake_cuda.run(script)


def test_cuda_by_another_library_before_the_fork() -> None:
    script = (
        START
        + """
    from fake_cuda import driver
    assert driver().cuInit(0) == 0

    def child():
        try:
            bsrgemm._core.cuda_devices()
        except bsrgemm.DeviceUnavailableError as error:
            assert "CUDA was used in this process's parent before the fork" in str(error), error
        else:
            raise AssertionError("nothing was raised")
        check()

    wait(in_child(child))
    assert bsrgemm._core.cuda_devices()[0]["name"] == "Fake GPU"
"""
    )
    fake_cuda.run(script)


def test_first_use_of_cuda_in_the_child() -> None:
    script = (
        START
        + """
    def child():
        assert bsrgemm._core.cuda_devices()[0]["name"] == "Fake GPU"
        array = bsrgemm.DeviceArray.from_host(np.arange(3.0))
        assert np.array_equal(array.to_host(), np.arange(3.0))

    wait(in_child(child), in_child(child))
    assert bsrgemm._core.cuda_devices()[0]["name"] == "Fake GPU"
"""
    )
    fake_cuda.run(script)
