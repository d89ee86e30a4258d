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
        canvas = data.x.view(12, 12).numpy()
        found = [
            (i, j)
            for i in range(5)
            for j in range(5)
            if np.allclose(canvas[i : i + 8, j : j + 8], image / 16) and np.isclose(canvas.sum(), image.sum() / 16)
        ]
        assert found
        places.add(found[0])
    assert len(places) > 4
    assert AddGridShape((12, 12))(graphs[0])
