"""Every code block of README.md and docs/**/*.md runs as printed; see documents.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import documents
import pytest
from documents import DOCUMENTS, Block, Document, NotRun, document

# Blocks that hold no code: output, pictures, and directives of the site.
NO_CODE = ("", "text")
CODE = ("python", "pycon", "sh", "console", "c")


def parameters() -> Iterator[Any]:
    for path in DOCUMENTS:
        for block in document(path).blocks:
            if block.language in CODE:
                marks = [pytest.mark.gpu] if block.needs_gpu else []
                name = f"{document(path).name}:{block.line}"
                yield pytest.param(document(path), block, id=name, marks=marks)


@pytest.mark.parametrize(("page", "block"), list(parameters()))
def test_block(page: Document, block: Block) -> None:
    try:
        page.run(block)
    except NotRun as reason:
        pytest.skip(f"{page.name}:{block.line}: {reason}")


def test_languages_are_known() -> None:
    for path in DOCUMENTS:
        for block in document(path).blocks:
            known = block.language in NO_CODE + CODE or block.language.startswith("{")
            assert known, f"{path}:{block.line}: {block.language}; accepted: {NO_CODE + CODE}"


# ---- the runner itself ---------------------------------------------------------------------------

PAGE = """
```python
# not run: an outline
raise ValueError("ran")
left_out = absent = 1
```
```python
import no_such_module

absent = no_such_module
other = 2
```
```python
present = other_name = 1
```
```python
other_name + other
```
```pycon
>>> present + 1
2
```
```pycon
>>> present + 1
3
```
```python
other = present
other + unknown
```
```sh
python -c 'import sys; sys.exit(3)'   # not run: it fails
pip install nothing && test -f README.md
```
```sh
python - <<END
a = 1
import sys; sys.exit(a)
END
```
```console
$ python -c 'import sys; sys.exit(3)'
3
```
```sh
# not run: as a whole
exit 1
```
```c
#include "bsrgemm.h"
int main(void) { return bsrg_no_such_function(); }
```
"""

OUTCOMES = (
    "left out: an outline",
    "left out: no_such_module is not installed",
    "ran",
    "left out: no block that was run defines other",
    "ran",
    "AssertionError: ",
    "NameError: name 'unknown' is not defined",
    "ran",
    "AssertionError: python - <<END",
    "AssertionError: python -c 'import sys; sys.exit(3)'",
    "left out: as a whole",
    "AssertionError: ",
)


def test_runner(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(PAGE)
    page = Document(path)
    assert len(page.blocks) == len(OUTCOMES)
    for block, expected in reversed(list(zip(page.blocks, OUTCOMES, strict=True))):
        try:
            page.run(block)
            found = "ran"
        except NotRun as reason:
            found = f"left out: {reason}"
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
        assert found.startswith(expected), (block, found)


def test_blocks_for_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\n# needs a GPU: why\na = 1\n```\n")
    monkeypatch.setattr(documents, "has_gpu", lambda: False)
    first = Document(page)
    with pytest.raises(NotRun, match="needs a GPU"):
        first.run(first.blocks[0])
    monkeypatch.setattr(documents, "has_gpu", lambda: True)
    second = Document(page)
    assert second.run(second.blocks[0])["a"] == 1
