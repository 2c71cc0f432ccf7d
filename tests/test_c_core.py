"""The C core's own tests, tests/c/test_*.c, under AddressSanitizer and UndefinedBehaviorSanitizer.

Each is a program of its own that is linked with the core (no Python, no kernels) and fails by its
exit status. Warnings are errors here. Some are linked with stand-ins too: a CUDA driver in host
memory, and allocations that fail on demand (tests/c/fake). The extension is made of the same
objects.
"""

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fake_cuda
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
CORE = sorted([*ROOT.glob("csrc/*.c"), *ROOT.glob("csrc/cpu/*.c")])
PROGRAMS = sorted(ROOT.glob("tests/c/test_*.c"))
FAKED = {"test_counters", "test_faults", "test_mask_plans", "test_narrow_launch", "test_threads"}
FAKES = sorted([*ROOT.glob("tests/c/operations*.c"), *ROOT.glob("tests/c/fake/*.c")])
# Calls of the core that the fakes take.
WRAPPED = ["malloc", "calloc", "realloc", "posix_memalign", "free"]
WRAPPED += ["pthread_create", "dlopen", "dlsym"]

CC = shlex.split(os.environ.get("CC", "cc"))
FLAGS = ["-std=c11", "-O1", "-g", "-fno-math-errno", "-pthread", "-Wall", "-Wextra", "-Wshadow"]
FLAGS += ["-fPIC"]  # of the extension
# Reports need lines, not where variables are: that takes a third of the compiler's time.
FLAGS += ["-fno-var-tracking"]
FLAGS += ["-Werror", *(f"-I{ROOT / folder}" for folder in ("csrc", "kernels", "tests/c"))]
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]

# A wrong answer and a report of a sanitizer must both be seen here, whatever the caller's settings.
ENVIRONMENT = {
    **os.environ,
    "TSAN_OPTIONS": "halt_on_error=1",
    "ASAN_OPTIONS": "detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


def call(command, **options):
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, **options
    )
    return done.returncode, done.stdout + done.stderr


def build(command, flags=SANITIZE):
    if shutil.which(CC[0]) is None:
        pytest.skip(f"no C compiler: {CC[0]}")
    status, output = call([*CC, *FLAGS, *flags, *command])
    assert status == 0, output


def link(sources, objects, program, flags=SANITIZE):
    """With the fakes in place of the driver and its kernels' images."""
    own = [path for path in objects if path.name != "csrc_kernel_images.o"]
    wraps = [f"-Wl,--wrap={name}" for name in WRAPPED]
    build([*sources, *FAKES, *own, *wraps, "-o", program, "-lm", "-ldl"], flags)


def compile_core(folder, flags=SANITIZE):
    objects = {source: folder / f"{source.parent.name}_{source.stem}.o" for source in CORE}
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda item: build(["-c", item[0], "-o", item[1]], flags), objects.items()))
    return list(objects.values())


def run(program, *arguments, **variables):
    return call([program, *arguments], env={**ENVIRONMENT, **variables}, timeout=600)


@pytest.fixture(scope="session")
def core(tmp_path_factory):
    """The core's object files, compiled once."""
    return compile_core(tmp_path_factory.mktemp("core"))


@pytest.fixture(scope="session")
def started(core, request, tmp_path_factory):
    """What programs return and print, two being made and run at a time."""

    def make_and_run(source):
        program = tmp_path_factory.mktemp("programs") / source.stem
        if source.stem in FAKED:
            link([source], core, program)
        else:
            build([source, *core, "-o", program, "-lm", "-ldl"])
        return run(program)

    wanted = [item.callspec.params["source"] for item in request.session.items if _is_program(item)]
    with ThreadPoolExecutor(2) as pool:
        yield {source: pool.submit(make_and_run, source) for source in wanted}
        pool.shutdown(cancel_futures=True)


def _is_program(item):
    return getattr(item, "originalname", None) == "test_program"


@pytest.mark.parametrize("source", PROGRAMS, ids=lambda path: path.stem)
def test_program(started, source):
    status, output = started[source].result()
    print(output)
    assert status == 0, output


# Without optimisation: it compiles in a third of the time, and the operations are small.
THREADS = ["-O0", "-fsanitize=thread"]


def test_no_races(tmp_path):
    """ThreadSanitizer, which first has to find the race of a program that has one."""
    source = tmp_path / "race.c"
    source.write_text(RACE)
    build([source, "-o", tmp_path / "race"], THREADS)
    status, output = run(tmp_path / "race")
    if "unexpected memory mapping" in output:
        pytest.skip("ThreadSanitizer cannot run with this system's random addresses")
    assert status != 0
    assert "data race" in output
    program, rounds = tmp_path / "threads", os.environ.get("BSRGEMM_TEST_ROUNDS", "2")
    link([ROOT / "tests/c/test_threads.c"], compile_core(tmp_path, THREADS), program, THREADS)
    status, output = run(program, rounds)
    assert status == 0, output


RACE = """
#include <pthread.h>
#include <stdatomic.h>
static int shared;
static atomic_int begun;
static void *run(void *p) {
  (void)p;
  // Relaxed: both are under way at once then, and are not ordered by it.
  atomic_fetch_add_explicit(&begun, 1, memory_order_relaxed);
  while (atomic_load_explicit(&begun, memory_order_relaxed) < 2) {}
  for (int i = 0; i < 9999; ++i) ++shared;
  return 0;
}
int main(void) {
  pthread_t t;
  pthread_create(&t, 0, run, 0);
  run(0);
  pthread_join(t, 0);
  return 0;
}
"""


@pytest.mark.parametrize(
    ("statement", "report"),
    [
        ("char *volatile p = malloc(argc); return p[argc];", "heap-buffer-overflow"),
        ("char *volatile p = malloc(argc); free(p); return p[0];", "heap-use-after-free"),
        ("char *volatile p; for (int i = 0; i < 9; ++i) p = malloc(argc);", "LeakSanitizer"),
        ("int big = 2147483647; return big + argc > 0;", "signed integer overflow"),
    ],
    ids=["overflow", "use-after-free", "leak", "undefined"],
)
def test_sanitizers_see(tmp_path, statement, report):
    """The tests above could not fail otherwise."""
    source = tmp_path / "defect.c"
    source.write_text(
        "#include <stdlib.h>\n"
        f"int main(int argc, char **argv) {{ (void)argv; {statement} return 0; }}\n"
    )
    build([source, "-Wno-error", "-o", tmp_path / "defect"])
    status, output = run(tmp_path / "defect")
    assert status != 0
    assert report in output


def test_corpus(core, tmp_path):
    """What the fuzzer has found worth keeping, once more."""
    corpus = sorted(ROOT.glob("tests/fuzz/corpus/*"))
    assert len(corpus) > 100
    assert sum(path.stat().st_size for path in corpus) < 300_000
    link(sorted(ROOT.glob("tests/fuzz/*.c")), core, tmp_path / "replay")
    # Without stacks that outlive their calls: GCC 12 places vectors of AVX-512 there at addresses
    # that its own aligned stores do not take.
    status, output = run(tmp_path / "replay", *corpus, ASAN_OPTIONS="detect_leaks=1")
    assert status == 0, output[-6000:]


# Kernels that are launched and do nothing.
IMAGES = """
#include "kernel_images.h"
#include "kernels.h"
const bsrg_kernel_image bsrg_kernel_images[] = {
#define BSRG_KERNEL(id, image, name, threads, shared_bytes, cluster) {image, "", 0},
#include "kernels.def"
};
const int bsrg_kernel_image_count = BSRG_KERNEL_COUNT;
"""


@pytest.fixture(scope="session")
def extension(core, tmp_path_factory):
    """The folder of a package whose extension has the sanitizers, and what its processes need."""
    said = call([*CC, "-print-file-name=libasan.so"])[1].strip()
    headers = Path(sysconfig.get_paths()["include"])
    if not Path(said).is_absolute() or not (headers / "Python.h").exists():
        pytest.skip("needs GCC's libasan.so and Python's headers")
    folder = tmp_path_factory.mktemp("extension")
    shutil.copytree(ROOT / "python/bsrgemm", folder / "bsrgemm")
    images = folder / "images.c"
    images.write_text(IMAGES)
    include = [f"-I{headers}", f"-I{np.get_include()}", "-DPy_LIMITED_API=0x030B0000"]
    sources = [images, *ROOT.glob("csrc/python/*.c")]
    objects = [folder / f"{source.stem}.o" for source in sources]
    with ThreadPoolExecutor(2) as pool:
        commands = [["-c", *pair, *include] for pair in zip(sources, objects, strict=True)]
        list(pool.map(lambda c: build([*c[:2], "-o", *c[2:]]), commands))
    objects += [path for path in core if path.name != "csrc_kernel_images.o"]
    build(["-shared", *objects, "-o", folder / "bsrgemm/_core.abi3.so", "-lm", "-ldl"])
    path = os.pathsep.join([str(folder), *filter(None, sys.path), str(ROOT / "tests")])
    # Python's own allocator would hide what is done to objects. It leaks at exit by design.
    return {
        "LD_PRELOAD": said,
        "PYTHONPATH": path,
        "PYTHONMALLOC": "malloc",
        "ASAN_OPTIONS": "detect_leaks=0:strict_string_checks=1",
    }


def run_python(script, variables):
    return run(sys.executable, "-c", textwrap.dedent(script), **variables)


@pytest.mark.parametrize("space", ["Space()", "OwnDevice()"])
def test_extension(extension, space):
    """All operations, what they refuse on the CPU, and the garbage of both."""
    script = f"""
        import gc
        import bsrgemm, calls, numpy as np
        from malformed_table import caught, tables
        from spaces import OwnDevice, Space

        bsrgemm.set_num_threads(2)
        space = {space}
        for blocksize in 2 * ((64, 64), (16, 16), (12, 20)):
            made = calls.calls(space, np.random.default_rng(0), "float16", blocksize)
            refused = [bad for rows in tables(False).values() for bad in rows]
            for call in made.values():
                call()
            for bad in refused if space.device == "cpu" else ():
                caught(bad)
            array = space.array(np.ones((4, 6), np.float32))
            capsules = [array.__dlpack__(max_version=version) for version in (None, (1, 0))]
            view = array.reshape(6, 4)
            del made, refused, array, capsules
            gc.collect()
            assert space.host(view).all()
        print(bsrgemm._core.__file__)
    """
    on_gpu = fake_cuda.environment() if space == "OwnDevice()" else {}
    status, output = run_python(script, {**extension, **on_gpu})
    assert status == 0, output[-6000:]
    assert output.startswith(extension["PYTHONPATH"].partition(os.pathsep)[0])


def test_sanitizers_see_the_extension(extension):
    """The test above could not fail otherwise."""
    script = """
        import ctypes
        import bsrgemm, numpy as np

        memory = ctypes.CDLL(None).malloc
        memory.restype = ctypes.c_void_p

        class Short:
            __array_interface__ = {"typestr": "<i4", "shape": (4,), "data": (memory(12), False)}

        bsrgemm.bsr_array((np.ones((4, 1, 1)), np.asarray(Short()), [0, 4]), (1, 4))
    """
    status, output = run_python(script, extension)
    assert status != 0
    assert "heap-buffer-overflow" in output and "csrc/python" in output, output


def test_library_and_example(tmp_path):
    """make example, as docs/c.md has it, but without optimisation."""
    if shutil.which("make") is None:
        pytest.skip("no make")
    make = ["make", "-s", "-C", ROOT, "CFLAGS=-O0 -Werror", f"BUILD={tmp_path}", "example"]
    status, output = call(make)
    assert status == 0, output
    status, output = call([tmp_path / "multiply"])
    print(output)
    assert status == 0, output
    assert "CPU: largest difference 0" in output
    assert "GPU: l" in output  # what is computed there, or why not
    status, output = call([*make[:-1], f"DESTDIR={tmp_path}", "install"])
    assert status == 0, output
    assert (tmp_path / "usr/local/lib/libbsrgemm.a").exists()
    assert (tmp_path / "usr/local/include/bsrgemm.h").exists()


def test_there_are_programs():
    assert PROGRAMS
