"""A transform's text names all of its settings: PyG compares it to tell whether processed files are stale."""

import inspect

import pytest
from torch_geometric.transforms import BaseTransform

from pyg_topomask import transforms

CLASSES = [getattr(transforms, name) for name in transforms.__all__ if inspect.isclass(getattr(transforms, name))]
REQUIRED = {"steps": [1, 2], "times": [0.5]}


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_the_text_of_a_transform_names_every_setting(cls):
    assert issubclass(cls, BaseTransform)
    arguments = inspect.signature(cls).parameters
    transform = cls(**{name: REQUIRED[name] for name in arguments if name in REQUIRED})
    text = repr(transform)
    assert arguments.keys() == {name for name in vars(transform) if not name.startswith("_")}
    for name in arguments:
        assert f"{name}={getattr(transform, name)!r}" in text
    again = eval(text, {cls.__name__: cls})
    assert repr(again) == text
    assert transform.__doc__ is not None


def test_a_changed_setting_changes_the_text():
    plain = transforms.AddRandomWalks()
    for changed in ({"seed": 1}, {"num_tables": 2}, {"name": "far"}, {"max_length": 3}):
        assert repr(transforms.AddRandomWalks(**changed)) != repr(plain)
