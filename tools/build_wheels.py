"""Builds and checks what a release consists of: python tools/build_wheels.py [--out dist]

The sdist, and one wheel for all CPython versions from 3.11 up (abi3), which auditwheel gives the
manylinux tag that its C library asks for: that of the machine it is built on, so a release is built
in a manylinux image. Kernels that build/kernels has already are not compiled again. Needs the
packages of the extra ``release``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# PyPI takes 100 MB; this is what the kernels need, with room for more of them.
MAX_WHEEL_BYTES = 20e6
# What is in the repository and not in the sdist: it is of no use outside of the repository.
NOT_IN_SDIST = (".ci/", ".gitattributes", ".gitignore")


class IncompletePackage(Exception):
    """A package lacks something, or has too much; the message says what."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where the packages go")
    parser.add_argument(
        "--no-isolation", action="store_true", help="build with the packages that are installed"
    )
    args = parser.parse_args()
    options = ["--no-isolation"] if args.no_isolation else []
    args.out.mkdir(parents=True, exist_ok=True)
    try:
        sdist = build_sdist(args.out, options)
        check_sdist(sdist)
        wheel = repair(build_wheel(options), args.out)
        check_wheel(wheel)
        run("twine", "check", "--strict", str(sdist), str(wheel))
    except IncompletePackage as problem:
        print(problem, file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as problem:
        return problem.returncode
    for package in (sdist, wheel):
        print(f"{package}: {package.stat().st_size / 1e6:.1f} MB")
    return 0


def run(module: str, *arguments: str, **environment: str) -> None:
    command = [sys.executable, "-m", module, *arguments]
    print("+", " ".join(command), flush=True)
    subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, check=True)


def build_sdist(out: Path, options: list[str]) -> Path:
    run("build", "--sdist", "--outdir", str(out), *options)
    return max(out.glob("bsrgemm-*.tar.gz"), key=lambda path: path.stat().st_mtime)


def build_wheel(options: list[str]) -> Path:
    folder = ROOT / "build" / "wheel"
    shutil.rmtree(folder, ignore_errors=True)
    run("build", "--wheel", "--outdir", str(folder), *options, BSRGEMM_CUDA="1")
    (wheel,) = folder.glob("*.whl")
    return wheel


def repair(wheel: Path, out: Path) -> Path:
    """The wheel with its manylinux tag. It links nothing but the C library, so nothing is added."""
    run("auditwheel", "show", str(wheel))
    folder = wheel.parent / "repaired"
    run("auditwheel", "repair", "--wheel-dir", str(folder), str(wheel))
    (repaired,) = folder.glob("*.whl")
    return Path(shutil.move(repaired, out / repaired.name))


def check_sdist(sdist: Path) -> None:
    """That it has every file of the repository which it should."""
    with tarfile.open(sdist) as archive:
        files = {name.partition("/")[2] for name in archive.getnames()}
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    wanted = {name for name in listed.stdout.splitlines() if not name.startswith(NOT_IN_SDIST)}
    if missing := sorted(wanted - files):
        raise IncompletePackage(f"{sdist.name} lacks {', '.join(missing)}; see MANIFEST.in")


def check_wheel(wheel: Path) -> None:
    """That it is for every CPython, small enough, and holds the package and nothing else."""
    if "-cp311-abi3-manylinux" not in wheel.name:
        raise IncompletePackage(f"{wheel.name} is not tagged cp311-abi3-manylinux...")
    if (size := wheel.stat().st_size) > MAX_WHEEL_BYTES:
        raise IncompletePackage(
            f"{wheel.name} has {size / 1e6:.1f} MB; accepted: {MAX_WHEEL_BYTES / 1e6:.0f} MB"
        )
    names = set(zipfile.ZipFile(wheel).namelist())
    package = {path.name for path in (ROOT / "python" / "bsrgemm").iterdir() if path.is_file()}
    wanted = {f"bsrgemm/{name}" for name in (*package, "_core.abi3.so")}
    found = {name for name in names if ".dist-info/" not in name and not name.endswith("/")}
    if found != wanted:
        raise IncompletePackage(f"{wheel.name} differs by {', '.join(sorted(found ^ wanted))}")


if __name__ == "__main__":
    sys.exit(main())
