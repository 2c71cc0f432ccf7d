"""Arguments that commands share: what does not fit is refused before anything is measured."""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from .timing import SUSTAINED_MEASURED, SUSTAINED_WARM


def add_result_arguments(parser: argparse.ArgumentParser, name: str) -> None:
    parser.add_argument("--out", type=folder, help="write OUT/<name>.json")
    parser.add_argument("--name", help=f"of the result file (default {name})")
    parser.set_defaults(default_name=name)
    parser.add_argument("--commit", help="recorded in the results; default: git's")


def add_select_argument(
    parser: argparse.ArgumentParser, default: str = "", groups: str = ""
) -> None:
    kinds = f"; groups are {groups}" if groups else ""
    parser.add_argument(
        "--select",
        type=expression,
        default=default,
        help=f"a regular expression for the names of cases{kinds}",
    )
    parser.set_defaults(default_select=default)


def add_list_argument(
    parser: argparse.ArgumentParser,
    name: str,
    accepted: Iterable[str],
    default: Iterable[str],
    what: str,
) -> None:
    """One or more of the accepted names, with commas between them."""
    accepted, default = tuple(accepted), list(default)
    told = "all" if default == list(accepted) else ",".join(default)
    parser.add_argument(
        name,
        type=some_of(accepted),
        default=default,
        help=f"{what} {','.join(accepted)} (default {told})",
    )


def add_peers_argument(parser: argparse.ArgumentParser, peers: Iterable[str]) -> None:
    peers = list(peers)
    parser.add_argument(
        "--peers",
        type=some_of(("none", *peers)),
        default=peers,
        help=f"none, or some of {','.join(peers)} (default: all)",
    )


def some_of(accepted: tuple[str, ...]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        wrong = [name for name in names if name not in accepted]
        if wrong:
            raise argparse.ArgumentTypeError(
                f"{', '.join(map(repr, wrong))}; accepted: {', '.join(accepted)}"
            )
        return [name for name in names if name != "none"]

    return parse


def folder(text: str) -> Path:
    path = Path(text)
    there = next(p for p in (path, *path.absolute().parents) if p.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text!r}; accepted: a folder that can be written to")
    return path


def expression(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from None
    return text


def positive(text: str) -> int:
    return _integer(text, 1)


def order(text: str) -> int:
    """Of matrices in blocks of up to 128, of which one in eight of a row is stored."""
    return _integer(text, 1024)


def _integer(text: str, unit: int) -> int:
    value = int(text) if re.fullmatch(r"[0-9]{1,9}", text) else 0
    if value < 1 or value % unit:
        wanted = "an integer of at least 1" if unit == 1 else f"a multiple of {unit}"
        raise argparse.ArgumentTypeError(f"{text!r}; accepted: {wanted}")
    return value


def sustained_seconds(text: str) -> tuple[float, float]:
    try:
        warm, measured = (float(part) for part in text.split(","))
    except ValueError:
        warm = measured = math.nan
    if not (SUSTAINED_WARM <= warm < math.inf and SUSTAINED_MEASURED <= measured < math.inf):
        raise argparse.ArgumentTypeError(
            f"{text!r}; accepted: two numbers of seconds with a comma between them, of at least "
            f"{SUSTAINED_WARM},{SUSTAINED_MEASURED}"
        )
    return warm, measured


def result_path(args: argparse.Namespace) -> Path | None:
    return args.out / f"{args.name or args.default_name}.json" if args.out else None


def replaces_all(args: argparse.Namespace) -> bool:
    """Whether results of some cases would replace a file that nobody has named, which may hold
    those of all; says so if they would."""
    path = result_path(args)
    if path is None or args.name or args.select == args.default_select or not path.exists():
        return False
    print(f"{path} exists, --select is {args.select!r}; accepted: with --name", file=sys.stderr)
    return True


def are_any(cases: list[Any]) -> bool:
    """Whether any cases are selected; says so if none are."""
    if not cases:
        print("no case is selected; accepted: --select that is found in a name", file=sys.stderr)
    return bool(cases)
