"""The compiled part: bsrgemm._core from csrc/, with the kernels embedded.

Metadata is in pyproject.toml.
"""

import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

if "t" in sys.abiflags:
    raise SystemExit(
        "bsrgemm cannot be built for a free-threaded Python: its extension uses the stable ABI, "
        "which that does not have. Use a build with the GIL"
    )

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "tools"))
import build_kernels  # noqa: E402


def tree(*patterns):
    """Files by pattern, relative to the root: setuptools wants no absolute paths."""
    found = {path.relative_to(ROOT).as_posix() for p in patterns for path in ROOT.glob(p)}
    return sorted(found)


class BuildExt(build_ext):
    """Compiles the kernels first and hands their list to csrc/kernel_images.c."""

    def run(self):
        # Imported here: metadata commands run before the build requirements are there.
        import numpy

        try:
            images = build_kernels.build()
        except build_kernels.KernelBuildError as error:
            raise CompileError(str(error)) from None
        for extension in self.extensions:
            extension.include_dirs += [numpy.get_include(), str(build_kernels.IMAGE_LIST.parent)]
            extension.depends += [str(build_kernels.IMAGE_LIST), *(str(i.fatbin) for i in images)]
        super().run()

    def build_extensions(self):
        """Several files at a time: setuptools compiles them one after the other."""
        compile_in_order = self.compiler.compile

        def compile_together(sources, **options):
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                made = pool.map(lambda source: compile_in_order([source], **options), sources)
                return [path for objects in made for path in objects]

        self.compiler.compile = compile_together
        super().build_extensions()


core = Extension(
    "bsrgemm._core",
    sources=tree("csrc/*.c", "csrc/cpu/*.c", "csrc/python/*.c"),
    depends=tree("csrc/**/*.h", "csrc/**/*.inc", "kernels/*.h"),
    include_dirs=["csrc", "kernels"],
    define_macros=[
        ("Py_LIMITED_API", "0x030B0000"),
        ("BSRG_IMAGE_LIST", f'"{build_kernels.IMAGE_LIST.name}"'),
    ],
    extra_compile_args=[
        "-std=c11",
        "-O3",
        "-g0",  # Python's own flags ask for debug information, which is half of the wheel.
        "-fno-math-errno",
        "-fvisibility=hidden",
        "-pthread",
        "-Wall",
        "-Wextra",
        "-Wshadow",
    ],
    extra_link_args=["-pthread"],
    libraries=["m", "dl"],
    py_limited_api=True,
)

header = (ROOT / "csrc" / "bsrgemm.h").read_text()
setup(
    version=re.search(r'#define BSRG_VERSION "(.+)"', header)[1],
    ext_modules=[core],
    cmdclass={"build_ext": BuildExt},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
