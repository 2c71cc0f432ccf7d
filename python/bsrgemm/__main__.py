"""``python -m bsrgemm``: the command line. A sub-command is a module and a row of ``COMMANDS``."""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import signal
import sys
from collections.abc import Callable

# name: (module with add_arguments(parser) and run(args) -> exit status, one line of help)
COMMANDS = {
    "demo": ("_demo", "multiply two matrices on the best device here and check the result"),
    "info": ("_info", "print versions, processor, GPUs and which kernels serve which blocks"),
    "bench": ("_bench", "time products over block sizes and densities, beside the dense product"),
    "advise": ("_advise", "predict and measure what a matrix in a file gains from its blocks"),
    "check": ("_check", "verify every operation and kernel family here against float64"),
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bsrgemm",
        description="Block-sparse matrix products on CPUs and NVIDIA GPUs.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    modules = {}
    for name, (module, summary) in COMMANDS.items():
        modules[name] = importlib.import_module(f".{module}", __package__)
        modules[name].add_arguments(
            commands.add_parser(name, help=summary, description=modules[name].__doc__)
        )
    args = parser.parse_args(argv)
    return modules[args.command].run(args)


def without_traceback(main: Callable[[], int]) -> int:
    """``main``, which ends quietly where what it prints goes to a command that has ended, and with
    a line where that has no room or the user has had enough."""
    if sys.stdout is None:  # closed
        return main()
    sys.stdout.reconfigure(errors="backslashreplace")  # of names and signs that it cannot show
    try:
        status = main()
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:
        status = 128 + signal.SIGPIPE
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        print(error, file=sys.stderr)
        status = 1
    # What is left to be written would fail when Python ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status


if __name__ == "__main__":
    sys.exit(without_traceback(main))
