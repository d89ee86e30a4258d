import numpy as np
import pytest
import torch

from pyg_topomask.datasets import DigitsDataset
from pyg_topomask.transforms import AddGridShape

load_digits = pytest.importorskip("sklearn.datasets").load_digits


def test_images_fill_a_small_canvas(tmp_path):
    graphs, digits = DigitsDataset(tmp_path, num_graphs=20), load_digits()
    for data, image, digit in zip(graphs, digits.images, digits.target):
        np.testing.assert_allclose(data.x.view(8, 8), image / 16)
        assert data.y.tolist() == [digit]
        assert (data.pos @ torch.tensor([8.0, 1.0])).tolist() == list(range(64))
        assert AddGridShape()(data).grid_shape.tolist() == [[8, 8]]
    assert graphs.num_classes == 10


def test_images_have_random_places_on_a_large_canvas(tmp_path):
    graphs, digits = DigitsDataset(tmp_path, side=12, num_graphs=12), load_digits()
    places = set()
    for data, image in zip(graphs, digits.images):
        windows = data.x.view(12, 12).unfold(0, 8, 1).unfold(1, 8, 1)
        place = np.abs(windows.numpy() - image / 16).max(axis=(2, 3)).argmin()
        np.testing.assert_allclose(windows.flatten(0, 1)[place], image / 16)
        np.testing.assert_allclose(data.x.sum(), image.sum() / 16)
        places.add(place)
    assert len(places) > 4
    assert AddGridShape((12, 12))(graphs[0])
