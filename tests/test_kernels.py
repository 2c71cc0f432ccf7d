"""What the compiler made of the kernels, and that its checks can fail. Needs nvcc but no GPU."""

from collections import Counter

import build_kernels
import check_kernels
import pytest
from build_kernels import KernelBuildError

WAITS = """
__device__ void wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
"""

PLAIN = f"""{WAITS}
extern "C" __global__ void plain(float *x) {{
  wait();
  x[threadIdx.x] *= 2.0f;
}}
"""

NEVER_WAITS = """
extern "C" __global__ void never_waits(float *x) { x[threadIdx.x] *= 2.0f; }
"""

WAITS_LATE = f"""{WAITS}
extern "C" __global__ void waits_late(float *x, const float *y) {{
  const float early = y[threadIdx.x];
  wait();
  x[threadIdx.x] = early;
}}
"""

READS_EARLY = f"""{WAITS}
extern "C" __global__ void reads_early(float *x, const float *uploaded) {{
  float early;
  asm volatile("ld.global.L1::no_allocate.f32 %0, [%1];" : "=f"(early) : "l"(uploaded));
  wait();
  x[threadIdx.x] = early;
}}
"""

# Whoever waits at the other CTA's barrier may write to `message` before it has been read.
TELLS_EARLY = f"""{WAITS}
extern "C" __global__ void tells_early(int *x, unsigned message, unsigned barrier) {{
  wait();
  int read;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(read) : "r"(message) : "memory");
  if (USED) barrier += read == -1;
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
  x[threadIdx.x] = read;
}}
"""

# Which of two it reads is asked of a value that has been kept within two bounds.
WITHIN_BOUNDS = f"""{WAITS}
extern "C" __global__ void within_bounds(const int *left, const int *x, const int *y, int *out) {{
  wait();
  const int columns = max(0, min(256, left[threadIdx.x] - 1));
  out[threadIdx.x] = columns * (columns == 256 ? x : y)[threadIdx.x];
}}
"""

# 96 values are alive at once, in threads that get 32 registers.
SPILLS = """
extern "C" __global__ void __launch_bounds__(1024, 2) spills(float *x) {
  float v[96];
#pragma unroll
  for (int i = 0; i < 96; ++i) v[i] = x[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 96; ++i) x[i * 1024 + threadIdx.x] = v[i] * v[95 - i] + v[(i * 7) % 96];
}
"""

# Registers cannot be indexed at run time.
LOCAL_MEMORY = """
extern "C" __global__ void local_memory(float *x, const int *order) {
  float v[32];
  for (int i = 0; i < 32; ++i) v[order[i]] = x[i];
  for (int i = 0; i < 32; ++i) x[threadIdx.x] += v[order[order[i]]];
}
"""

# An accumulator is read while the instruction that writes it may still run.
SERIALISED = """
#include <cstdint>
extern "C" __global__ void serialised(float *x, uint64_t a, uint64_t b, int count) {
  float d[4] = {};
  for (int i = 0; i < count; ++i) {
    asm volatile("wgmma.fence.sync.aligned;");
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a), "l"(b));
    asm volatile("wgmma.commit_group.sync.aligned;");
    d[0] += x[i];
    asm volatile("wgmma.wait_group.sync.aligned 0;");
  }
  for (int i = 0; i < 4; ++i) x[threadIdx.x * 4 + i] = d[i];
}
"""


@pytest.fixture(scope="session")
def nvcc():
    try:
        return build_kernels.find_nvcc()
    except KernelBuildError as error:
        if build_kernels.wanted():
            pytest.fail(f"BSRGEMM_CUDA=1, but {error}")
        pytest.skip("no nvcc in CUDA_HOME, CUDA_PATH, PATH or this environment's wheels")


@pytest.fixture
def compile_text(nvcc, tmp_path):
    """Compiles a text as if it were kernels/<name>.cu; gives the image."""

    def compile_text(name, text):
        source = tmp_path / "kernels" / f"{name}.cu"
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text(text)
        return build_kernels.compile_kernel(nvcc, source, tmp_path / "build")[0]

    return compile_text


def problems(image):
    return [problem for kernel in check_kernels.inspect([image]) for problem in kernel.problems()]


def test_every_kernel(nvcc, capsys):
    images = build_kernels.compile_kernels(nvcc)
    assert {image.arch for image in images} == set(build_kernels.TARGETS)
    kernels = check_kernels.inspect_all(images)
    with capsys.disabled():
        print(f"\n{check_kernels.table(kernels)}")
    found = "\n".join(problem for kernel in kernels for problem in kernel.problems())
    assert not found, found


def test_portable_images_hold_ptx_for_newer_gpus(nvcc):
    images = build_kernels.compile_kernels(nvcc)
    assert [image.arch == "sm80" for image in images] == list(map(check_kernels.has_ptx, images))


def test_opcodes_are_counted_as_the_whole_disassembly_has_them(nvcc):
    (image,) = (i for i in build_kernels.compile_kernels(nvcc) if i.name == "sm90/probe")
    text = check_kernels.run_tool("cuobjdump", "-sass", str(image.fatbin))
    instructions = filter(None, map(check_kernels.SASS_INSTRUCTION.match, text))
    counts = sum((kernel.opcodes for kernel in check_kernels.inspect([image])), Counter())
    assert counts == Counter(instruction[3] for instruction in instructions)
    assert counts["HGMMA"] > 0


def test_clean_kernel_passes(compile_text):
    assert problems(compile_text("sm80/plain", PLAIN)) == []


def test_spill_is_found(compile_text):
    found = "\n".join(problems(compile_text("sm80/spills", SPILLS)))
    assert "spills (sm_80) spills " in found
    assert "STL" in found


def test_local_memory_is_found(compile_text):
    found = "\n".join(problems(compile_text("sm80/local_memory", LOCAL_MEMORY)))
    assert "local_memory (sm_80) has a stack frame of 128 bytes" in found
    assert "local_memory (sm_80) has 128 bytes of local memory" in found
    assert "uses local memory: " in found


@pytest.mark.parametrize(
    ("name", "opcode"),
    [
        ("sm90/plain", "HGMMA"),
        ("sm90/attention_e4m3", "QGMMA"),
        ("sm80/portable_plain", "HMMA"),
        ("sm80/narrow_plain", "HMMA"),
        ("sm90/narrow_plain", "HMMA"),
        ("sm90/narrow_tma_plain", "HGMMA"),
    ],
)
def test_missing_tensor_cores_are_found(compile_text, name, opcode):
    newest = {"sm90": "sm_90a", "sm80": "sm_90"}[name.split("/")[0]]
    found = problems(compile_text(name, PLAIN))
    assert found[0] == f"{name}: plain ({newest}) has no {opcode}"


def test_missing_waits_are_found(compile_text):
    assert problems(compile_text("sm80/never_waits", NEVER_WAITS)) == [
        "sm80/never_waits: never_waits (sm_90) does not wait for the grid before it, beside which "
        "it may be launched"
    ]
    assert problems(compile_text("sm80/waits_late", WAITS_LATE)) == [
        "sm80/waits_late: waits_late (sm_90) may touch memory before it waits for the grid before "
        "it"
    ]


def test_what_was_uploaded_may_be_read_early(compile_text):
    assert problems(compile_text("sm80/reads_early", READS_EARLY)) == []
    other = READS_EARLY.replace(".L1::no_allocate", "")
    assert problems(compile_text("sm80/other", other)) == [
        "sm80/other: reads_early (sm_90) may touch memory before it waits for the grid before it"
    ]


def test_plans_that_are_read_late_are_found(compile_text):
    late = "reads nothing of the plan before it waits"
    assert late not in " ".join(problems(compile_text("sm90/narrow_early", READS_EARLY)))
    assert late in " ".join(problems(compile_text("sm90/narrow_late", PLAIN)))


@pytest.mark.parametrize("used", [False, True])
def test_arrivals_before_a_load_are_found(compile_text, used):
    text = f"#define USED {str(used).lower()}\n{TELLS_EARLY}"
    found = " ".join(problems(compile_text("sm90/tells", text)))
    assert ("may read a message when another CTA has replaced it" in found) != used


def test_inverted_comparisons_are_found(nvcc, compile_text):
    if not nvcc.release.startswith("13.0."):
        pytest.skip("a fault of ptxas 13.0")
    found = " ".join(problems(compile_text("sm90/within_bounds", WITHIN_BOUNDS)))
    assert "may compare wrongly" in found


def test_waits_of_some_threads_are_found(compile_text):
    text = PLAIN.replace("  wait();", "  if (threadIdx.x < 32) wait();")
    assert problems(compile_text("sm80/plain", text)) == [
        "sm80/plain: plain (sm_90) may touch memory before it waits for the grid before it"
    ]


def test_serialised_wgmma_fails_the_build(compile_text):
    with pytest.raises(KernelBuildError, match="Potential Performance Loss.*serialized"):
        compile_text("sm90/serialised", SERIALISED)


def test_warning_fails_the_build(compile_text):
    unused = PLAIN.replace("{", "{ int unused;")
    with pytest.raises(KernelBuildError, match='"unused" was declared but never referenced'):
        compile_text("sm80/unused", unused)


def test_only_changes_are_compiled(nvcc, tmp_path, monkeypatch):
    kernels = tmp_path / "kernels"
    source = kernels / "sm80" / "plain.cu"
    source.parent.mkdir(parents=True)
    text = f'#include "sm80/scale.cuh"\n{PLAIN}'
    source.write_text(text)
    (source.parent / "scale.cuh").write_text('#pragma once\n#include "params.h"\n')
    header, other = kernels / "params.h", kernels / "other.h"
    header.write_text("")
    monkeypatch.setattr(build_kernels, "KERNELS", kernels)

    def compiled():
        return build_kernels.compile_kernel(nvcc, source, tmp_path / "build")[1]

    assert compiled()
    assert not compiled()
    source.write_text(text.replace("2.0f", "3.0f"))
    assert compiled()
    header.write_text("#define N 1\n")  # which a header includes
    assert compiled()
    other.write_text("#define N 2\n")  # which nothing includes
    assert not compiled()
    monkeypatch.setattr(build_kernels, "FLAGS", [*build_kernels.FLAGS, "-lineinfo"])
    assert compiled()
    assert not compiled()


def test_absent_nvcc(monkeypatch, tmp_path):
    """1 fails and says where it looked, unset asks for the wheels, 0 wants nothing."""
    monkeypatch.setattr(build_kernels, "wheel_file", lambda *_: None)
    monkeypatch.setattr(build_kernels, "IMAGE_LIST", tmp_path / "list.h")
    monkeypatch.setattr(build_kernels.sys, "platform", "linux")
    monkeypatch.setattr(build_kernels.platform, "machine", lambda: "x86_64")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    monkeypatch.delenv("CUDA_PATH", raising=False)

    monkeypatch.setenv("BSRGEMM_CUDA", "1")
    with pytest.raises(KernelBuildError, match=r"BSRGEMM_CUDA=1, but no nvcc .*CUDA_HOME=.*PATH"):
        build_kernels.build()

    monkeypatch.delenv("BSRGEMM_CUDA")
    assert build_kernels.build_requirements() == build_kernels.NVCC_WHEELS
    assert build_kernels.build() == []

    monkeypatch.setenv("BSRGEMM_CUDA", "0")
    assert build_kernels.build_requirements() == []
    assert "BSRG_IMAGE(" not in build_kernels.IMAGE_LIST.read_text()

    monkeypatch.setenv("BSRGEMM_CUDA", "yes")
    with pytest.raises(KernelBuildError, match="'yes'.*accepted are 1"):
        build_kernels.build()


def test_old_nvcc_is_not_used(monkeypatch, tmp_path):
    old = tmp_path / "cuda" / "bin" / "nvcc"
    old.parent.mkdir(parents=True)
    old.write_text("#!/bin/sh\necho Cuda compilation tools, release 12.4, V12.4.131\n")
    old.chmod(0o755)
    monkeypatch.setattr(build_kernels, "wheel_file", lambda *_: None)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    with pytest.raises(KernelBuildError, match=r"nvcc is 12\.4\.131"):
        build_kernels.find_nvcc()
