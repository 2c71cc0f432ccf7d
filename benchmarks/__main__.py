"""``python -m benchmarks <command>`` from the repository's root; ``--help`` lists the commands."""

from __future__ import annotations

import argparse
import importlib
import sys

from bsrgemm.__main__ import without_traceback

# name: (module with add_arguments(parser) and run(args) -> exit status, one line of help)
COMMANDS = {
    "gpu": ("gpu", "measure on cuda:0, beside cuBLAS, Triton, stk and cuSPARSE"),
    "families": (
        "families",
        "every kernel family on every case: is the planner's choice the best?",
    ),
    "dynamic": ("dynamic", "patterns that change on cuda:0, and products with them"),
    "experts": ("experts", "both layers of mixtures of experts on cuda:0, beside grouped_mm"),
    "attention": ("attention", "attention on cuda:0, beside FlashAttention, cuDNN, FlexAttention"),
    "softmax": ("softmax", "softmax over stored elements on cuda:0, beside torch's dense one"),
    "sampled": ("sampled", "dense x dense at stored blocks on cuda:0, beside cuBLAS, Triton, stk"),
    "precision": ("precision", "tf32 and 8-bit floats on cuda:0, beside cuBLAS and our float16"),
    "host": ("host", "what calls cost the host, on cuda:0 or the CPU, beside torch's"),
    "training": ("training", "steps of training an MLP on cuda:0, beside torch's dense layers"),
    "cpu": ("cpu", "measure on the CPU, beside NumPy, SciPy and torch"),
    "memory": ("cpu_memory", "peak memory of one product on the CPU, as JSON"),
    "accuracy": ("accuracy", "predictions and choices beside the committed measurements"),
    "figures": ("figures", "draw the pictures of the documents from the committed results"),
    "tables": ("report", "write the tables of the documents from the committed results"),
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    modules = {}
    for name, (module, summary) in COMMANDS.items():
        modules[name] = importlib.import_module(f".{module}", __package__)
        modules[name].add_arguments(
            commands.add_parser(name, help=summary, description=modules[name].__doc__)
        )
    args = parser.parse_args(argv)
    return modules[args.command].run(args)


if __name__ == "__main__":
    sys.exit(without_traceback(main))
