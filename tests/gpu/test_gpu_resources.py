"""Registers, shared memory and occupancy of the table docs/resources.md, as the driver has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import build_kernels
import kernel_resources
import pytest
from build_kernels import BUILD, Image
from check_kernels import parse_report
from device_cases import some

pytestmark = pytest.mark.gpu


def images() -> list[Image]:
    """Those that were compiled here."""
    found = []
    for source in build_kernels.sources():
        path = BUILD / source.parent.name / source.stem
        if path.with_suffix(".fatbin").exists() and path.with_suffix(".ptxas").exists():
            name = f"{source.parent.name}/{source.stem}"
            found.append(Image(name, path.with_suffix(".fatbin"), path.with_suffix(".ptxas")))
    return found


def test_occupancy_is_that_of_the_driver(hopper: Any) -> None:
    cupy = pytest.importorskip("cupy", reason="cupy is not installed")
    compiled = images()
    if not compiled:
        pytest.skip(f"{Path(BUILD).name} has no compiled kernels")
    how = kernel_resources.launches()
    wrong = []
    for image in some(compiled):
        module = cupy.RawModule(path=str(image.fatbin))
        for kernel in parse_report(image).values():
            if kernel.arch == "sm_80":  # this GPU has code of its own
                continue
            function = module.get_function(kernel.name)
            for launch in sorted(how[kernel.name]):
                function.max_dynamic_shared_size_bytes = launch.shared_bytes
                ctas = cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(
                    function.kernel.ptr, launch.threads, launch.shared_bytes
                )
                found = (function.num_regs, function.shared_size_bytes, ctas)
                shared = kernel.shared_bytes + launch.shared_bytes
                sm = kernel_resources.SMS[kernel.arch]
                most, _ = sm.resident_ctas(launch.threads, kernel.registers, shared)
                expected = (kernel.registers, kernel.shared_bytes, most)
                if found != expected:
                    wrong.append(f"{image.name}, {kernel.name}: {found}, expected {expected}")
    assert not wrong, "\n".join(wrong)
