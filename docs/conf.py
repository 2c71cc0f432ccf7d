"""Sphinx: the pages are Markdown, the reference comes from the docstrings of the installed package.

``python -m sphinx -W docs build/docs`` builds the site; docs/contributing.md says what it needs.
"""

import re
from typing import Any

import bsrgemm
import bsrgemm.torch  # a missing torch is said here, and not once for each name

project = "bsrgemm"
copyright = "the authors of bsrgemm"
version = release = bsrgemm.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
]

# ---- Markdown ------------------------------------------------------------------------------------

myst_heading_anchors = 3

HEADING_WITH_SOURCE = re.compile(r"^(#+ .+): (\[[^\]]+\]\(\.\./[^)]+\))$", re.MULTILINE)
LINK_TO_FOLDER = re.compile(r"\[([^\]]+)\]\(\.\./[^)]+/\)")


def move_source_links(app: Any, name: str, source: list[str]) -> None:
    """Links to source files become downloads, which Sphinx cannot have in headings or of folders.

    Where the pages are read as they are, in the repository, both are right.
    """
    text = HEADING_WITH_SOURCE.sub(r"\1\n\nSource: \2", source[0])
    source[0] = LINK_TO_FOLDER.sub(r"`\1`", text)


def list_other_pages(app: Any, name: str, source: list[str]) -> None:
    """Guides, and pages that index.md does not name, have lists behind its own ones."""
    if name != "index":
        return
    others = sorted(app.env.found_docs - {"index", *source[0].split()})
    guides = [page for page in others if page.startswith("guides/")]
    more = [page for page in others if page not in guides]
    for caption, pages in (("Guides", guides), ("More", more)):
        if pages:
            source[0] += "\n".join(["\n```{toctree}", f":caption: {caption}", "", *pages, "```\n"])


def setup(app: Any) -> None:
    app.connect("source-read", move_source_links)
    app.connect("source-read", list_other_pages)


# ---- docstrings ----------------------------------------------------------------------------------

# Docstrings say types and shapes; the annotations of signatures would say less, at greater length.
autodoc_typehints = "none"
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
napoleon_google_docstring = False
# Words of a type are no references: "dtype" would be an attribute of several classes.
napoleon_use_param = False
napoleon_use_rtype = False
# References that lead nowhere are warnings, but for the types of other packages.
nitpicky = True
nitpick_ignore_regex = [("py:class", r"(?!bsrgemm\.).*")]

# ---- pages ---------------------------------------------------------------------------------------

html_theme = "furo"
html_title = f"bsrgemm {release}"
html_show_sourcelink = False
html_copy_source = False
