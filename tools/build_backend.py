"""setuptools' build backend, which also asks for nvcc's wheels where a build finds no nvcc.

The hooks are those of PEP 517 and PEP 660.
"""

import contextlib
import shutil
from pathlib import Path

from build_kernels import build_requirements
from setuptools import build_meta
from setuptools.build_meta import (
    build_sdist,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]


BUILD = Path(__file__).resolve().parent.parent / "build"


@contextlib.contextmanager
def _alone():
    """Builds of one source share a folder, and may want other kernels: one at a time."""
    BUILD.mkdir(exist_ok=True)
    with open(BUILD / "lock", "w") as file:
        with contextlib.suppress(ImportError):  # of systems without
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """Without what an earlier build left in build/lib*, modules that are gone included."""
    with _alone():
        for left in BUILD.glob("lib*"):
            shutil.rmtree(left)
        return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    with _alone():
        return build_meta.build_editable(wheel_directory, config_settings, metadata_directory)


def get_requires_for_build_wheel(config_settings=None):
    return build_meta.get_requires_for_build_wheel(config_settings) + build_requirements()


def get_requires_for_build_editable(config_settings=None):
    return build_meta.get_requires_for_build_editable(config_settings) + build_requirements()
