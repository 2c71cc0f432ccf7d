"""Processes forked from one that has used CUDA: told so, and still there for the CPU."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import Any

import pytest
from device_cases import need_processes

pytestmark = pytest.mark.gpu

SCRIPT = """
    import os, warnings
    import numpy as np
    import bsrgemm
    warnings.simplefilter("ignore", DeprecationWarning)
    a = bsrgemm.bsr_array(np.ones((64, 64)), blocksize=(16, 16))

    def child():
        try:
            bsrgemm.DeviceArray.from_host(np.ones(3))
        except bsrgemm.DeviceUnavailableError as error:
            assert "CUDA was used in this process's parent before the fork" in str(error), error
        else:
            raise AssertionError("nothing was raised")
        assert (a @ np.ones((64, 3)) == 64).all()

    def fork():
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                child()
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""

OWN = """
    x = bsrgemm.DeviceArray.from_host(np.ones((64, 3)))
    data = bsrgemm.DeviceArray.from_host(a.data)
    on_gpu = bsrgemm.bsr_array((data, a.indices, a.indptr), a.shape)
    on_gpu @ x
    fork()
    fork()
    assert ((on_gpu @ x).to_host() == 64).all()
"""

TORCH = """
    import torch
    x = torch.ones(64, 3, device="cuda", dtype=torch.float64)
    torch.cuda.synchronize()
    fork()
    y = torch.ones(64, 64, device="cuda", dtype=torch.float64)
    assert (bsrgemm.bsr_array(y, blocksize=(16, 16)) @ x == 64).all()
"""

FIRST_USE = """
    def child():
        x = bsrgemm.DeviceArray.from_host(np.ones((64, 3)))
        data = bsrgemm.DeviceArray.from_host(a.data)
        on_gpu = bsrgemm.bsr_array((data, a.indices, a.indptr), a.shape)
        assert ((on_gpu @ x).to_host() == 64).all()

    fork()
    child()
"""


@pytest.mark.parametrize("script", ["own", "torch", "first use"])
def test_fork(script: str, torch: Any) -> None:
    """``torch``, so that it is there."""
    need_processes()
    text = {"own": OWN, "torch": TORCH, "first use": FIRST_USE}[script]
    script = textwrap.dedent(SCRIPT) + textwrap.dedent(text)
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)
