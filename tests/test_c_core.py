"""The C core's own tests, tests/c/test_*.c, under AddressSanitizer and UndefinedBehaviorSanitizer.

Each is a program of its own that is linked with the core (no Python, no kernels) and fails by its
exit status. Warnings are errors here.
"""

import os
import shlex
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CORE = sorted([*ROOT.glob("csrc/*.c"), *ROOT.glob("csrc/cpu/*.c")])
PROGRAMS = sorted(ROOT.glob("tests/c/test_*.c"))

CC = shlex.split(os.environ.get("CC", "cc"))
FLAGS = ["-std=c11", "-O1", "-g", "-fno-math-errno", "-pthread", "-Wall", "-Wextra", "-Wshadow"]
FLAGS += ["-Werror", f"-I{ROOT / 'csrc'}", f"-I{ROOT / 'kernels'}"]
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]

# A wrong answer and a report of a sanitizer must both be seen here, whatever the caller's settings.
ENVIRONMENT = {
    **os.environ,
    "ASAN_OPTIONS": "detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


def call(command, **options):
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, **options
    )
    return done.returncode, done.stdout + done.stderr


def build(command):
    if shutil.which(CC[0]) is None:
        pytest.skip(f"no C compiler: {CC[0]}")
    status, output = call([*CC, *FLAGS, *SANITIZE, *command])
    assert status == 0, output


def run(program):
    return call([program], env=ENVIRONMENT, timeout=300)


@pytest.fixture(scope="session")
def core(tmp_path_factory):
    """The core's object files, compiled once."""
    folder = tmp_path_factory.mktemp("core")
    objects = {source: folder / f"{source.parent.name}_{source.stem}.o" for source in CORE}
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda item: build(["-c", item[0], "-o", item[1]]), objects.items()))
    return list(objects.values())


@pytest.mark.parametrize("source", PROGRAMS, ids=lambda path: path.stem)
def test_program(core, tmp_path, source):
    program = tmp_path / source.stem
    build([source, *core, "-o", program, "-lm", "-ldl"])
    status, output = run(program)
    print(output)
    assert status == 0, output


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


def test_there_are_programs():
    assert PROGRAMS
