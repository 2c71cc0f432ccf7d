"""The sdist is complete, and the checks of a release see what is wrong with one."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import build_wheels
import pytest
from build_wheels import ROOT, IncompletePackage

TAG = "cp311-abi3-manylinux_2_34_x86_64"


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("build", "setuptools"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    if not (ROOT / ".git").exists():
        pytest.skip("this is no clone: nobody says which files there are")
    out = tmp_path_factory.mktemp("sdist")
    command = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = out.glob("*.tar.gz")
    return path


def test_sdist_is_complete(sdist: Path) -> None:
    build_wheels.check_sdist(sdist)


def test_metadata(sdist: Path) -> None:
    """As ``twine check --strict`` reads it, if it is there; the fields that people look for."""
    with tarfile.open(sdist) as archive:
        name = f"{sdist.name.removesuffix('.tar.gz')}/PKG-INFO"
        metadata = archive.extractfile(name).read().decode()
    for line in (
        "Name: bsrgemm",
        "License-Expression: BSD-3-Clause",
        "Description-Content-Type: text/markdown",
        "Requires-Python: >=3.11",
        "Provides-Extra: docs",
    ):
        assert f"\n{line}\n" in metadata
    command = [sys.executable, "-m", "twine", "check", "--strict", str(sdist)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_incomplete_sdist(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("this is no clone: nobody says which files there are")
    path = tmp_path / "bsrgemm-1.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(ROOT / "README.md", "bsrgemm-1/README.md")
    with pytest.raises(IncompletePackage, match="lacks .*csrc/bsrgemm.h.*MANIFEST.in"):
        build_wheels.check_sdist(path)


def wheel(folder: Path, tag: str = TAG, without: str = "", extra: str = "") -> Path:
    path = folder / f"bsrgemm-1-{tag}.whl"
    modules = [f.name for f in (ROOT / "python" / "bsrgemm").iterdir() if f.is_file()]
    with zipfile.ZipFile(path, "w") as archive:
        for name in (*modules, "_core.abi3.so"):
            if name != without:
                archive.writestr(f"bsrgemm/{name}", "")
        archive.writestr("bsrgemm-1.dist-info/METADATA", "")
        if extra:
            archive.writestr(extra, "")
    return path


def test_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_wheels.check_wheel(wheel(tmp_path))
    for message, arguments in (
        ("tagged", {"tag": "cp312-cp312-linux_x86_64"}),
        ("differs by bsrgemm/py.typed", {"without": "py.typed"}),
        ("differs by tests/test_a.py", {"extra": "tests/test_a.py"}),
    ):
        with pytest.raises(IncompletePackage, match=message):
            build_wheels.check_wheel(wheel(tmp_path, **arguments))
    monkeypatch.setattr(build_wheels, "MAX_WHEEL_BYTES", 100)
    with pytest.raises(IncompletePackage, match="accepted: 0 MB"):
        build_wheels.check_wheel(wheel(tmp_path))
