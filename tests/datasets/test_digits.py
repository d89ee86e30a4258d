import numpy as np
import pytest
import torch
from torch_geometric.data import Batch

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
    assert Batch.from_data_list(list(graphs[:3])).num_graphs == 3


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
    again, other = (DigitsDataset(tmp_path / "again", side=12, num_graphs=5, seed=seed) for seed in (0, 1))
    assert all(torch.equal(a.x, b.x) for a, b in zip(again, graphs))
    assert any(not torch.equal(a.x, b.x) for a, b in zip(other, graphs))
    assert AddGridShape((12, 12))(graphs[0])


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"side": 7}, "'side' must be at least 8"), ({"num_graphs": 1798}, "'num_graphs' must be at most 1797")],
)
def test_what_is_not_there_is_refused(tmp_path, settings, message):
    with pytest.raises(ValueError, match=message):
        DigitsDataset(tmp_path, **settings)
