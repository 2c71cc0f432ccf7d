"""Interpreters that bsrgemm refuses: it says so when it is imported, and nothing crashes."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def run(script: str, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        cwd=ROOT,
    )
    return done.returncode, done.stdout + done.stderr


# The module that makes them is private, and so of other names and arguments in other versions.
SUBINTERPRETER = """
    import sys
    isolated, modules = sys.argv[1] == "isolated", sys.argv[2:]
    try:
        import _interpreters
    except ImportError:
        try:
            import _xxsubinterpreters as _interpreters
        except ImportError:
            print("there are none")
            sys.exit()
        made = _interpreters.create(isolated=isolated)
    else:
        made = _interpreters.create("isolated" if isolated else "legacy")
    for module in modules:
        _interpreters.run_string(made, f'''if True:
            import sys
            try:
                import {module}
            except ImportError as error:
                print(error, flush=True)
            else:
                print("{module} was imported", flush=True)
        ''')
    import bsrgemm
    import numpy
    a = bsrgemm.bsr_array(numpy.eye(4), blocksize=(2, 2))
    assert (a @ numpy.eye(4) == numpy.eye(4)).all()
"""

ACCEPTED = (
    # With a GIL of its own, from Python 3.12: Python's words.
    "module bsrgemm._core does not support loading in subinterpreters",
    "bsrgemm works in the main interpreter only, because NumPy does not support subinterpreters",
)


@pytest.mark.parametrize("kind", ["legacy", "isolated"])
def test_subinterpreters(kind: str) -> None:
    """The main interpreter works afterwards."""
    status, output = run(SUBINTERPRETER, kind, "bsrgemm", "bsrgemm", "bsrgemm.torch")
    if "there are none" in output:
        pytest.skip("this Python has no module that makes subinterpreters")
    assert status == 0, output
    lines = output.splitlines()
    assert len(lines) == 3 and set(lines) <= set(ACCEPTED), output


def test_subinterpreter_after_the_main_one() -> None:
    """Which has set up what NumPy and the extension keep for the whole process."""
    script = "import bsrgemm, bsrgemm._core\n" + textwrap.dedent(SUBINTERPRETER)
    status, output = run(script, "legacy", "bsrgemm", "bsrgemm")
    if "there are none" in output:
        pytest.skip("this Python has no module that makes subinterpreters")
    assert status == 0, output
    assert set(output.splitlines()) == {ACCEPTED[1]}


FREE_THREADED = "import sys; sys.abiflags += 't'; "


def test_free_threaded_python_is_refused_at_import() -> None:
    status, output = run(FREE_THREADED + "import bsrgemm")
    assert status == 1
    assert "ImportError: bsrgemm does not support free-threaded builds of Python" in output
    assert "Use a build with the GIL" in output


def test_free_threaded_python_is_refused_by_the_build() -> None:
    script = "sys.argv = ['setup.py', '--version']; import runpy; runpy.run_path('setup.py')"
    status, output = run(FREE_THREADED + script)
    assert status == 1
    assert output.startswith("bsrgemm cannot be built for a free-threaded Python: ")
