"""Settings of Sphinx, which builds the site: bash scripts/docs.sh."""

import os
import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
sys.path[:0] = [str(HERE.parent), str(HERE / "_extensions")]

import pyg_topomask  # noqa: E402

project = "pyg_topomask"
author = "The pyg_topomask authors"
version = release = pyg_topomask.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "mathml",
    "offline",
    "config_keys",
]
exclude_patterns = ["_build"]
templates_path = ["_templates"]
highlight_language = "python"
smartquotes = False  # two hyphens begin an option

# Markdown pages. "amsmath" and "dollarmath" read formulas as GitHub does; headings are targets of links, as there.
myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 3

# The reference: one page for each public name, made from its docstring.
autosummary_generate = True
autosummary_imported_members = False
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_inherit_docstrings = False  # torch's texts about `forward` say nothing about ours
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_custom_sections = [("Shapes", "notes_style"), ("Units", "notes_style"), ("Adds", "notes_style")]
napoleon_use_rtype = False

html_theme = "pydata_sphinx_theme"
html_title = "pyg_topomask"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_show_sourcelink = False
html_sidebars = {"index": []}  # no pages below it
html_copy_source = False
html_theme_options = {
    "navbar_end": ["theme-switcher"],
    "navbar_persistent": ["search-button"],
    "navigation_with_keys": False,
    "header_links_before_dropdown": 6,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}
copyright = "The pyg_topomask authors, MIT licence"

# Files outside of docs/ that are pages of the site, too. The build writes a copy of each.
OUTSIDE = {
    "CONTRIBUTING.md": "contributing.md",
    "RESULTS.md": "results.md",
    "CHANGELOG.md": "changelog.md",
    "configs/README.md": "config_files.md",
}


def on_the_site(text, file, page):
    """Text of a Markdown file as the site shows it.

    Its links lead to the same places from ``page``, and to our copies of files outside of docs/. A comment
    ``<!-- toctree … -->``, which GitHub does not show, becomes a hidden table of contents, and ``<!-- config-keys -->``
    the table of keys.
    """

    def link(found):
        target = (file.parent / found[1]).resolve()
        if not target.is_file():
            return found[0]
        copy = OUTSIDE.get(os.path.relpath(target, HERE.parent))
        return f"]({os.path.relpath(HERE / copy if copy else target, page.parent)}{found[2] or ''})"

    text = re.sub(r"\]\((?!https?:)([^)#\s]+)(#[\w-]+)?\)", link, text)
    text = text.replace("<!-- config-keys -->", "```{config-keys}\n```")
    return re.sub(r"<!-- toctree\n(.*?)-->", r"```{toctree}\n:hidden:\n\1```", text, flags=re.DOTALL)


def write_copies(app, config):
    for path, page in OUTSIDE.items():
        file = HERE.parent / path
        (HERE / page).write_text(on_the_site(file.read_text(encoding="utf-8"), file, HERE / page), encoding="utf-8")


def read_page(app, docname, source):
    page = Path(app.env.doc2path(docname))
    if page.suffix == ".md":
        source[0] = on_the_site(source[0], page, page)


def setup(app):
    app.connect("config-inited", write_copies)
    app.connect("source-read", read_page)
