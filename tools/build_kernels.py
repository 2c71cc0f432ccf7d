"""Compiles each kernels/<arch>/*.cu into a fatbin of its own, and only when something changed.

setup.py embeds the fatbins and tools/check_kernels.py inspects them.
By hand: python tools/build_kernels.py
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KERNELS = ROOT / "kernels"
# One fixed folder, so that wheels, editable installs and the tests share what is compiled.
BUILD = ROOT / "build" / "kernels"
IMAGE_LIST = BUILD / "kernel_list.h"

# Older ones are untested with these kernels and treated as absent.
MIN_NVCC = (12, 8)

# nvcc as PyPI has it: nvcc and ptxas, their headers, cicc, and the headers that kernels include.
# 13.0, because compute_80 PTX of a newer toolkit would ask every user for a newer driver.
NVCC_WHEELS = [
    f"nvidia-{part}==13.0.*"
    for part in ("cuda-nvcc", "cuda-crt", "nvvm", "cuda-runtime", "cuda-cccl")
]

# The folder below kernels/ says what its sources are compiled for: (virtual, real) architectures.
# sm80 carries Hopper's code too, which spares its users the driver's compiler at the first product;
# the PTX is for GPUs that are newer.
TARGETS = {
    "sm80": [("compute_80", "sm_80"), ("compute_90", "sm_90"), ("compute_80", "compute_80")],
    "sm90": [("compute_90a", "sm_90a")],
}

FLAGS = ["-fatbin", "-std=c++17", "-O3", "-Werror", "all-warnings", "-Xptxas", "-v"]
# Wheels are to stay below 20 MB.
FLAGS += ["-Xfatbin", "-compress-all", "--compress-mode=size"]

# ptxas reports as mere information that it waits after every wgmma.
SERIALISED = re.compile(r"C75\d\d|Potential Performance Loss")

# All are named from KERNELS.
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


class KernelBuildError(RuntimeError):
    """A kernel did not compile, or there is no compiler; the message is for the user."""


@dataclass(frozen=True)
class Nvcc:
    path: Path
    release: str  # "13.0.88"


@dataclass(frozen=True)
class Image:
    """A compiled source: name is "sm90/tall_f16" for kernels/sm90/tall_f16.cu."""

    name: str
    fatbin: Path
    report: Path  # what ptxas -v said

    @property
    def arch(self) -> str:
        return self.name.split("/")[0]


def wanted() -> bool | None:
    """BSRGEMM_CUDA: True (must have kernels), False (CPU only), None (kernels if there is nvcc)."""
    value = os.environ.get("BSRGEMM_CUDA", "")
    if value not in ("", "0", "1"):
        raise KernelBuildError(
            f"BSRGEMM_CUDA={value!r}: accepted are 1 (fail without nvcc), 0 (CPU only) and unset"
        )
    if sys.platform != "linux" or platform.machine() != "x86_64":
        if value == "1":
            raise KernelBuildError(
                f"BSRGEMM_CUDA=1: kernels are built on x86-64 Linux only, "
                f"this is {platform.machine()} {sys.platform}"
            )
        return False
    return {"": None, "0": False, "1": True}[value]


def wheel_file(distribution: str, name: str) -> Path | None:
    """The file called name that the installed distribution brought, wherever it puts it."""
    try:
        files = importlib.metadata.files(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    return next((Path(f.locate()) for f in files if f.name == name), None)


def _nvcc_candidates() -> dict[str, Path | None]:
    homes = {
        f"{variable}={os.environ[variable]}": Path(os.environ[variable], "bin", "nvcc")
        for variable in ("CUDA_HOME", "CUDA_PATH")
        if os.environ.get(variable)
    }
    on_path = shutil.which("nvcc")
    return {
        **homes,
        "PATH": Path(on_path) if on_path else None,
        "the nvidia-cuda-nvcc wheel": wheel_file("nvidia-cuda-nvcc", "nvcc"),
    }


def find_nvcc() -> Nvcc:
    """The first usable nvcc of CUDA_HOME, CUDA_PATH, PATH and the wheels of this environment.

    Raises KernelBuildError that says what is wrong with each of them.
    """
    tried = []
    for origin, path in _nvcc_candidates().items():
        if path is None or not path.is_file():
            tried.append(f"{origin}: no nvcc")
            continue
        asked = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
        version = re.search(r"\bV(\d+)\.(\d+)\.(\d+)", asked.stdout)
        if version is None:
            tried.append(f"{origin}: {path} --version tells no version")
        elif (int(version[1]), int(version[2])) < MIN_NVCC:
            tried.append(f"{origin}: {path} is {version[0][1:]}")
        else:
            return Nvcc(path, version[0][1:])
    raise KernelBuildError(
        "no nvcc {}.{} or newer was found ({}). Install the CUDA Toolkit and set CUDA_HOME, "
        "or pip install {}, or set BSRGEMM_CUDA=0 to build for the CPU only".format(
            *MIN_NVCC, "; ".join(tried), " ".join(f"'{wheel}'" for wheel in NVCC_WHEELS)
        )
    )


def build_requirements() -> list[str]:
    """The wheels that a build in this environment needs for nvcc: none where there is one."""
    if wanted() is False:
        return []
    try:
        find_nvcc()
    except KernelBuildError:
        return NVCC_WHEELS
    return []


def sources() -> list[Path]:
    return sorted(path for arch in TARGETS for path in (KERNELS / arch).glob("*.cu"))


def _with_headers(source: Path) -> list[Path]:
    """The source and the headers of KERNELS that it includes, directly or not."""
    files = [source]
    for path in files:
        for name in INCLUDE.findall(path.read_text()):
            header = KERNELS / name
            if header not in files:
                files.append(header)
    return files


def _fingerprint(nvcc: Nvcc, flags: list[str], source: Path) -> str:
    """Of all that the result depends on, which its folder is not: a copy is current, too."""
    digest = hashlib.sha256()
    environment = [os.environ.get(f"NVCC_{which}_FLAGS", "") for which in ("PREPEND", "APPEND")]
    for part in [nvcc.release, *flags, *environment]:
        digest.update(part.encode() + b"\0")
    for path in _with_headers(source):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def compile_kernel(nvcc: Nvcc, source: Path, out_dir: Path = BUILD) -> tuple[Image, bool]:
    """Compiles one source for its folder's architectures; the flag says whether it had changed.

    Raises KernelBuildError with the compiler's output.
    """
    arch = source.parent.name
    image = Image(
        f"{arch}/{source.stem}",
        out_dir / arch / f"{source.stem}.fatbin",
        out_dir / arch / f"{source.stem}.ptxas",
    )
    flags = [*FLAGS]
    for virtual, real in TARGETS[arch]:
        flags += ["-gencode", f"arch={virtual},code={real}"]
    stamp = image.fatbin.with_suffix(".stamp")
    fingerprint = _fingerprint(nvcc, flags, source)
    if image.fatbin.exists() and stamp.exists() and stamp.read_text() == fingerprint:
        return image, False

    image.fatbin.parent.mkdir(parents=True, exist_ok=True)
    stamp.unlink(missing_ok=True)
    command = [str(nvcc.path), *flags, f"-I{KERNELS}", str(source), "-o", str(image.fatbin)]
    compiled = subprocess.run(command, capture_output=True, text=True, check=False)
    output = compiled.stdout + compiled.stderr
    if compiled.returncode != 0:
        raise KernelBuildError(f"{image.name} did not compile:\n{' '.join(command)}\n{output}")
    serialised = [line for line in output.splitlines() if SERIALISED.search(line)]
    if serialised:
        raise KernelBuildError(f"{image.name}: wgmma is serialised:\n" + "\n".join(serialised))
    image.report.write_text(output)
    stamp.write_text(fingerprint)
    return image, True


def compile_kernels(nvcc: Nvcc) -> list[Image]:
    """Compiles what changed, as many at a time as there are processors (four at most)."""
    todo = sources()

    def compile_one(source: Path) -> Image | KernelBuildError:
        start = time.perf_counter()
        try:
            image, changed = compile_kernel(nvcc, source)
        except KernelBuildError as error:
            return error
        took = f"{time.perf_counter() - start:.1f} s" if changed else "unchanged"
        # One write, so that lines of two threads do not mix.
        print(f"nvcc {nvcc.release}: {image.name}: {took}\n", end="", flush=True)
        return image

    with ThreadPoolExecutor(min(os.cpu_count() or 1, 4)) as pool:
        results = list(pool.map(compile_one, todo))
    errors = [str(result) for result in results if isinstance(result, KernelBuildError)]
    if errors:
        raise KernelBuildError("\n".join(errors))
    return results


def write_image_list(images: list[Image]) -> None:
    """Writes the list that csrc/kernel_images.c embeds, unless it is there already.

    Paths are relative to the root, where the C compiler runs.
    """
    lines = [
        f'BSRG_IMAGE(image{i}, "{image.name}", "{image.fatbin.relative_to(ROOT).as_posix()}", '
        f"{image.fatbin.stat().st_size})\n"
        for i, image in enumerate(images)
    ]
    text = "/* Made by tools/build_kernels.py. */\n" + "".join(lines)
    if not IMAGE_LIST.exists() or IMAGE_LIST.read_text() != text:
        IMAGE_LIST.parent.mkdir(parents=True, exist_ok=True)
        IMAGE_LIST.write_text(text)


def build() -> list[Image]:
    """What setup.py does: compiles if wanted and possible, and writes the list in any case."""
    want = wanted()
    images = []
    if want is not False:
        try:
            nvcc = find_nvcc()
        except KernelBuildError as error:
            if want:
                raise KernelBuildError(f"BSRGEMM_CUDA=1, but {error}") from None
            print(f"building for the CPU only: {error}", flush=True)
        else:
            images = compile_kernels(nvcc)
    write_image_list(images)
    return images


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    try:
        build()
    except KernelBuildError as error:
        sys.exit(f"error: {error}")
