"""docs/resources.md is of this build, and its occupancy that of NVIDIA's rules. Needs no GPU."""

import build_kernels
import kernel_resources
import pytest
from build_kernels import KernelBuildError
from kernel_resources import SMS, TABLE


@pytest.fixture(scope="module")
def made():
    """The table of this build, and that of the repository."""
    try:
        nvcc = build_kernels.find_nvcc()
    except KernelBuildError as error:
        if build_kernels.wanted():
            pytest.fail(f"BSRGEMM_CUDA=1, but {error}")
        pytest.skip("no nvcc in CUDA_HOME, CUDA_PATH, PATH or this environment's wheels")
    committed = TABLE.read_text()
    release = kernel_resources.release_of(committed)
    if nvcc.release != release:
        pytest.skip(f"the table is of nvcc {release}, this one is {nvcc.release}")
    images = build_kernels.compile_kernels(nvcc)
    return kernel_resources.document(images, nvcc.release), committed


def test_table_is_of_this_build(made):
    found, committed = made
    wrong = [line for line in found.splitlines() if line not in committed]
    assert not wrong, "python tools/kernel_resources.py --write; not in the table:\n" + "\n".join(
        wrong
    )
    assert found == committed


def test_every_kernel_is_there_and_nothing_spills(made):
    rows = [line.strip("| ").split(" | ") for line in made[1].splitlines() if "`" in line]
    rows = [row for row in rows if len(row) == len(kernel_resources.COLUMNS)]
    names = {name.strip("`") for row in rows for name in row[1].split()}
    assert names == kernel_resources.launches().keys()
    assert {row[5] for row in rows} == {"0"}
    assert {row[2] for row in rows} == {"sm_80", "sm_90", "sm_90a"}


@pytest.mark.parametrize(
    ("arch", "threads", "registers", "shared", "ctas", "limit"),
    [
        # As the spreadsheet and cudaOccupancyMaxActiveBlocksPerMultiprocessor have it.
        ("sm_80", 256, 32, 0, 8, "warps, registers"),
        ("sm_80", 256, 33, 0, 6, "registers"),
        ("sm_80", 128, 255, 0, 2, "registers"),
        ("sm_80", 32, 16, 0, 32, "CTAs"),
        ("sm_80", 64, 32, 0, 32, "warps, registers, CTAs"),
        ("sm_80", 256, 32, 32 * 1024, 4, "shared memory"),
        ("sm_80", 256, 32, 163 * 1024, 1, "shared memory"),
        ("sm_90a", 384, 168, 227 * 1024, 1, "registers, shared memory"),
        ("sm_90a", 128, 64, 56 * 1024, 4, "shared memory"),
        ("sm_90a", 1024, 64, 0, 1, "registers"),
    ],
)
def test_occupancy(arch, threads, registers, shared, ctas, limit):
    assert SMS[arch].resident_ctas(threads, registers, shared) == (ctas, limit)


def test_changes_are_found(made, monkeypatch):
    """Of one register, of shared memory, and of a kernel that nobody launches."""
    nvcc = build_kernels.find_nvcc()
    images = build_kernels.compile_kernels(nvcc)
    parse, launches = kernel_resources.parse_report, kernel_resources.launches

    def one_more(image):
        kernels = parse(image)
        if image.name == "sm80/turn":
            next(iter(kernels.values())).registers += 1
        return kernels

    monkeypatch.setattr(kernel_resources, "parse_report", one_more)
    assert kernel_resources.document(images, nvcc.release) != made[1]
    monkeypatch.setattr(kernel_resources, "parse_report", parse)
    known = launches()
    name = min(known)
    monkeypatch.setattr(
        kernel_resources, "launches", lambda: {k: v for k, v in known.items() if k != name}
    )
    with pytest.raises(KernelBuildError, match=f"has {name}, which nobody launches"):
        kernel_resources.document(images, nvcc.release)


def test_a_table_of_no_compiler_is_an_error():
    with pytest.raises(KernelBuildError, match="does not say which nvcc"):
        kernel_resources.release_of("# What each kernel takes\n")
