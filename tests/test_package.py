import inspect
import re
from pathlib import Path

import pytest

import pyg_topomask
from pyg_topomask import loader, nn, operators, ops, transforms

PUBLIC = [ops, operators, nn, transforms]


def test_version():
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+|rc\d+)?", pyg_topomask.__version__)


@pytest.mark.parametrize("module", [*PUBLIC, loader], ids=lambda module: module.__name__)
def test_public_names_exist_and_are_documented(module):
    assert sorted(module.__all__) == sorted(set(module.__all__))
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert inspect.getdoc(value), name


def test_type_annotations_are_offered_to_type_checkers():
    assert (Path(pyg_topomask.__file__).parent / "py.typed").exists()
    assert '"py.typed"' in (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")  # and installed
