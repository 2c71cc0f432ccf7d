"""The documentation site: no warnings, every public name, whole docstrings, pictures."""

from __future__ import annotations

import importlib.util
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import bsrgemm
import draw_kernels
import pytest

ROOT = Path(__file__).resolve().parent.parent
NEEDED = {"sphinx": "sphinx", "myst-parser": "myst_parser", "furo": "furo", "torch": "torch"}


def public_modules() -> list[Any]:
    modules = [bsrgemm]
    if importlib.util.find_spec("torch") is not None:
        modules.append(importlib.import_module("bsrgemm.torch"))
    return modules


def public_names() -> list[str]:
    return [
        f"{module.__name__}.{name}"
        for module in public_modules()
        for name in module.__all__
        if name != "__version__"
    ]


def test_site_builds_without_warnings_and_has_every_name(tmp_path: Path) -> None:
    for package, module in NEEDED.items():
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{package} is not installed: pip install torch '.[docs]'")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-d"]
    out = tmp_path / "site"
    done = subprocess.run(
        [*command, str(tmp_path / "doctrees"), str(ROOT / "docs"), str(out)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    reference = "".join(page.read_text() for page in (out / "api").glob("*.html"))
    missing = [name for name in public_names() if f'id="{name}"' not in reference]
    assert not missing, f"docs/api/*.md have no entry for {missing}"


def test_pictures_are_those_of_their_script() -> None:
    for name, draw in draw_kernels.PICTURES.items():
        committed = (draw_kernels.FOLDER / f"{name}.svg").read_text()
        assert committed == draw().render(), "run: python tools/draw_kernels.py"


def test_pictures_are_used_and_well_formed() -> None:
    pages = "".join(page.read_text() for page in (ROOT / "docs").glob("*.md"))
    for path in (ROOT / "docs" / "pictures").glob("*.svg"):
        assert f"](pictures/{path.name})" in pages
        ElementTree.parse(path)


def test_determinism_names_tests_that_exist() -> None:
    text = (ROOT / "docs" / "determinism.md").read_text()
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", text)
    assert len(named) > 20
    for file, test in named:
        assert f"\ndef {test}(" in (ROOT / "tests" / file).read_text(), f"{file}::{test}"


# ---- docstrings ----------------------------------------------------------------------------------


def documented() -> Iterator[tuple[str, Any]]:
    """Public functions and classes with their public members."""
    for module in public_modules():
        for name in module.__all__:
            thing = getattr(module, name)
            if isinstance(thing, str):
                continue
            yield f"{module.__name__}.{name}", thing
            if not isinstance(thing, type):
                continue
            for kind in thing.__mro__:
                if kind.__module__.startswith("bsrgemm"):
                    for member, value in vars(kind).items():
                        if not member.startswith("_") and (
                            inspect.isroutine(value) or inspect.isdatadescriptor(value)
                        ):
                            yield f"{module.__name__}.{name}.{member}", value


# Attributes that the docstring of their class lists; what torch and other modules call.
ELSEWHERE = re.compile(
    r"bsrgemm\.BlockMask\.(shape|block_shape|nnzb|density)|bsrgemm\.torch\.BSRLinear\.extra_repr"
)
# Functions whose arguments are those of another one, which their docstring names.
AS_ANOTHER = ("bsrgemm.torch.attention", "bsrgemm.torch.BSRLinear.forward")


@pytest.mark.parametrize(("name", "thing"), [pytest.param(*x, id=x[0]) for x in documented()])
def test_docstring(name: str, thing: Any) -> None:
    if ELSEWHERE.fullmatch(name):
        return
    thing = getattr(thing, "__func__", thing)
    text = inspect.getdoc(thing)
    assert text, f"{name} has no docstring"
    summary = text.partition("\n\n")[0]
    assert summary.endswith("."), f"{name}: the first paragraph is no sentence: {summary!r}"
    if inspect.isdatadescriptor(thing):
        literals = re.sub(r"`[^`]*`", "", summary)
        assert ": " not in literals, f"{name}: the site takes what precedes the colon for a type"
        return
    described = re.findall(r"^([*\w, ]+) : ", text, re.MULTILINE)
    listed = {word.strip(" *") for line in described for word in line.split(",")}
    if name in AS_ANOTHER or isinstance(thing, type):
        return
    arguments = set(inspect.signature(thing).parameters) - {"self", "cls", "type"}
    assert arguments <= listed, f"{name} does not say what {arguments - listed} are"


OPERATORS = ("matmul", "getitem", "neg", "add", "sub", "mul", "truediv")


def test_operators_are_in_the_reference() -> None:
    pages = "".join(page.read_text() for page in (ROOT / "docs" / "api").glob("*.md"))
    for module in public_modules():
        for name in module.__all__:
            thing = getattr(module, name)
            operators = [f"__{x}__" for x in OPERATORS if hasattr(thing, f"__{x}__")]
            if not isinstance(thing, type) or issubclass(thing, tuple) or not operators:
                continue
            entry = re.search(rf"autoclass:: {name}\b.*((?:\n   :.*)*)", pages)
            assert entry, name
            listed = re.search(":special-members: (.*)", entry.group(1))
            assert listed and listed.group(1).split(", ") == operators, f"{name}: {operators}"
            for operator in operators:
                assert getattr(thing, operator).__doc__, f"{name}.{operator} has no docstring"
