"""Code blocks of the documents, run as a reader would: in their order, each document by itself.

Python shares one namespace a document, and commands one folder, which has links to what lies in the
repository. A block is not run

- where its first line, or the line of a command, says ``# not run: why``;
- where that says ``# needs a GPU`` and there is none;
- where it imports what is not installed, or uses what only such blocks define.
"""

from __future__ import annotations

import ast
import doctest
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import bsrgemm
from bsrgemm import _core
from spaces import import_torch

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

_FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_NOT_RUN = re.compile(r"(?:#|//) not run: (.+)")
_NEEDS_GPU = "# needs a GPU"
# Commands that tests do not repeat, wherever they stand.
LEFT_OUT = {
    "pip": "it would change the environment that runs the tests",
    "pytest": "it is what runs this",
    "git": "it would change the repository",
}


class NotRun(Exception):
    """Why a block is left out."""


@dataclass
class Block:
    """One code block, and once it has run what it left behind."""

    language: str
    text: str
    line: int  # in its document
    done: bool = False
    failure: BaseException | None = None
    names: dict[str, Any] = field(default_factory=dict)

    @property
    def needs_gpu(self) -> bool:
        return _NEEDS_GPU in self.text or "cupy" in self.text


class Document:
    """The blocks of a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        text = path.read_text()
        self.blocks = [
            Block(m[1].strip(), m[2], text.count("\n", 0, m.start()) + 1)
            for m in _FENCE.finditer(text)
        ]
        self._names: dict[str, Any] = {"__name__": "__main__"}
        self._missing: set[str] = set()  # names that only blocks define which were left out

    @property
    def name(self) -> str:
        inside = self.path.is_relative_to(ROOT)
        return self.path.relative_to(ROOT).as_posix() if inside else self.path.name

    def run(self, block: Block) -> dict[str, Any]:
        """The namespace behind a block, which runs after all before it. Raises what it raised."""
        for each in self.blocks[: self.blocks.index(block) + 1]:
            if not each.done:
                each.done = True
                try:
                    self._run(each)
                except (Exception, SystemExit) as error:
                    each.failure = error
                each.names = dict(self._names)
        if block.failure is not None:
            raise block.failure
        return block.names

    @property
    def _folder(self) -> Path:
        return Path(_folder(self.path).name)

    def _run(self, block: Block) -> None:
        if found := _NOT_RUN.match(block.text):
            self._leave_out(block, found[1])
        if block.text.startswith(_NEEDS_GPU) and not has_gpu():
            self._leave_out(block, "it needs a GPU")
        if block.language in ("python", "pycon"):
            self._run_python(block)
        elif block.language in ("sh", "console"):
            self._run_commands(block)
        elif block.language == "c":
            check_c(block.text)

    def _leave_out(self, block: Block, reason: str) -> None:
        if block.language in ("python", "pycon"):
            self._missing |= _names_of(source_of(block))[0] - self._names.keys()
        raise NotRun(reason)

    # ---- Python --------------------------------------------------------------------------------

    def _run_python(self, block: Block) -> None:
        source = source_of(block)
        bound, used, imported = _names_of(source)
        for module in sorted(imported):
            if importlib.util.find_spec(module) is None:
                self._leave_out(block, f"{module} is not installed")
        if "cupy" in imported and not has_gpu():
            self._leave_out(block, "CuPy needs a GPU")
        if lacking := sorted((used - bound) & self._missing):
            self._leave_out(block, f"no block that was run defines {', '.join(lacking)}")
        if "torch" in imported:
            import_torch()  # its warnings are errors here
        self._missing -= bound
        before = os.getcwd()
        os.chdir(self._folder)
        try:
            if block.language == "pycon":
                self._run_session(block)
            else:
                # Line numbers of tracebacks are those of the document.
                code = compile("\n" * block.line + source, str(self.path), "exec")
                exec(code, self._names)
        finally:
            os.chdir(before)

    def _run_session(self, block: Block) -> None:
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        test = doctest.DocTestParser().get_doctest(
            block.text, self._names, self.name, str(self.path), block.line
        )
        runner = doctest.DocTestRunner(optionflags=flags)
        said: list[str] = []
        runner.run(test, out=said.append, clear_globs=False)
        # The runner works on a copy of the names.
        self._names.update(test.globs)
        if runner.failures:
            raise AssertionError("".join(said))

    # ---- commands ------------------------------------------------------------------------------

    def _run_commands(self, block: Block) -> None:
        commands = commands_of(block)
        reasons = {command: reason for command in commands if (reason := why_not(command))}
        said = [f"{command.partition(' #')[0]}: {reason}" for command, reason in reasons.items()]
        print("\n".join(f"not run: {line}" for line in said))
        if len(reasons) == len(commands):
            raise NotRun("; ".join(said))
        # Together where all are run: some lines are no commands, but what one reads.
        whole = [script_of(block)] if not reasons else [c for c in commands if c not in reasons]
        for command in whole:
            done = subprocess.run(
                ["bash", "-euc", command],
                cwd=self._folder,
                env=_environment(self._folder),
                capture_output=True,
                text=True,
                timeout=300,
            )
            if done.returncode != 0:
                raise AssertionError(f"{command}\n{done.stdout}\n{done.stderr}")


@cache
def document(path: Path) -> Document:
    return Document(path)


@cache
def has_gpu() -> bool:
    try:
        return bool(_core.cuda_devices())
    except bsrgemm.DeviceUnavailableError:
        return False


def source_of(block: Block) -> str:
    """A block's Python, without prompts and results."""
    if block.language == "pycon":
        return "".join(e.source for e in doctest.DocTestParser().get_examples(block.text))
    return block.text


def script_of(block: Block) -> str:
    """The commands of a block, without prompts and what they print."""
    if block.language == "console":
        return "\n".join(line[2:] for line in block.text.splitlines() if line.startswith("$ "))
    return block.text


def why_not(command: str) -> str | None:
    """Why a command is left out, or None."""
    if found := _NOT_RUN.search(command):
        return found[1]
    if _NEEDS_GPU in command and not has_gpu():
        return "it needs a GPU"
    words = [word for word in command.split() if "=" not in word]
    return LEFT_OUT.get(words[0]) if words else None


def commands_of(block: Block) -> list[str]:
    """The commands of a block, one each; what follows a comment belongs to all of its line."""
    commands = []
    for line in script_of(block).replace("\\\n", " ").splitlines():
        command, mark, comment = line.partition(" # ")
        parts = [part.strip() for part in command.split("&&")]
        commands += [f"{part}{mark}{comment}" for part in parts if part and part[0] != "#"]
    return commands


def check_c(text: str) -> None:
    """That a C compiler takes a block, beside the library's header."""
    compiler = os.environ.get("CC", "cc")
    command = [compiler, "-std=c11", "-fsyntax-only", "-Wall", "-Werror", "-xc", "-", "-I"]
    done = subprocess.run(
        [*command, str(ROOT / "csrc")], input=text, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise AssertionError(done.stderr)


def _names_of(source: str) -> tuple[set[str], set[str], set[str]]:
    """The names that code binds, those that it uses, and the modules that it imports."""
    bound, used, imported = set(), set(), set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            bound.add(node.name)
        elif isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
            bound |= {a.asname or a.name.partition(".")[0] for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            imported.add(node.module.partition(".")[0])
            bound |= {a.asname or a.name for a in node.names}
    return bound, used, imported


@cache
def _folder(path: Path) -> tempfile.TemporaryDirectory[str]:
    """Where a document's commands run."""
    made = tempfile.TemporaryDirectory(prefix="documents-")
    for entry in ROOT.iterdir():
        if not entry.name.startswith("."):
            Path(made.name, entry.name).symlink_to(entry)
    python = Path(made.name, ".bin", "python")
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return made


def _environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "PATH": f"{folder / '.bin'}:{os.environ.get('PATH', '')}"}
