"""The documentation: every public name has a place in the API reference. `scripts/docs.sh` builds the site."""

import importlib.util
import re
from pathlib import Path

import pytest

from tests.test_public_api import public_modules

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def names_in_the_reference():
    """Every name of `docs/api`: entries of `autosummary`, and constants, which `data` describes."""
    found = []
    for page in sorted((DOCS / "api").glob("*.rst")):
        module, listing = None, False
        for line in page.read_text(encoding="utf-8").splitlines():
            directive = re.match(r"\.\. (\w+):: *(.*)", line)
            if directive:
                listing = directive[1] == "autosummary"
                module = directive[2] if directive[1] == "currentmodule" else module
                found += [f"{module}.{directive[2]}"] if directive[1] == "data" else []
            elif listing and re.fullmatch(r"   \w+", line):
                found.append(f"{module}.{line.strip()}")
    return found


def test_every_public_name_is_in_the_reference_once():
    public = [f"{module.__name__}.{name}" for module in public_modules() for name in module.__all__]
    assert sorted(names_in_the_reference()) == sorted(public)


def test_files_that_the_guide_for_contributors_names_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.findall(r"\b(?:tests|scripts|configs)/[\w./]+\.\w+", text)
    assert len(named) > 5
    assert [name for name in named if "NAME" not in name and not (ROOT / name).exists()] == []


def test_what_a_page_would_load_from_the_network_is_found():
    pytest.importorskip("sphinx")
    spec = importlib.util.spec_from_file_location("offline", DOCS / "_extensions" / "offline.py")
    offline = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(offline)
    for text in (
        '<script defer src="https://host/a.js"></script>',
        "<link rel='stylesheet' href='//host/a.css'>",
        '<img alt="" src="http://host/a.png">',
        "@import url(https://host/font.css)",
        "src: url('https://host/font.woff2')",
    ):
        assert len(offline.loads(f"<p>text</p> {text}")) == 1
    text = '<a href="https://arxiv.org/abs/2410.03462">paper</a><script src="_static/a.js"></script> url("../a.png")'
    assert offline.loads(text) == []  # a link, and local files
