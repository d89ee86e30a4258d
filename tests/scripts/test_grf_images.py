"""The experiment on images: a trial writes its table and keeps its runs."""

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

FOLDER = Path(__file__).parents[2] / "scripts" / "reproduce"
sys.path.insert(0, str(FOLDER))
images = importlib.import_module("_images")
sys.path.remove(str(FOLDER))


def test_a_trial_writes_the_table(script, tmp_path):
    pytest.importorskip("sklearn")
    script.COMPARISON.main(["--quick", "--datasets", "plain", "--methods", "GRF", "GIN", "--out", str(tmp_path)])
    rows = list(json.loads((tmp_path / "quick/grf_images.json").read_text())["rows"].values())
    assert [(row["method"], row["equal"]) for row in rows] == [("GRF", "epochs"), ("GIN", "epochs"), ("GIN", "time")]
    assert [row["other walks"] == [None] for row in rows] == [False, True, True]
    text = (tmp_path / "quick/grf_images.md").read_text()
    assert f"| plain | GRF | epochs | {rows[0]['parameters'][0]:,} | 1 | 2 |" in text
    assert text.splitlines()[4].endswith("| 73.0 / 68.9 / 54.8 |")
    assert (tmp_path / "quick/grf_images.png").is_file()


@pytest.mark.parametrize("positions", [False, True])
def test_every_method_is_a_model_of_images(script, positions):
    pictures = images.Pictures({"train": (torch.rand(4, 16, 3), torch.arange(4))}, 4)
    for name, method in script.METHODS.items():
        torch.manual_seed(0)
        grids = images.Grids(4, method.draw(script.layers_of(positions), 0), name == script.REDRAWN)
        model = script.model_of(method, pictures, positions).eval()
        out = model(pictures.parts["train"][0], grids)
        assert out.shape == (4, 10), name
        (out.sum() + 0).backward()
        unused = [key for key, parameter in model.named_parameters() if parameter.grad is None]
        assert not unused, name
        alone = torch.cat([model(image[None], grids) for image in pictures.parts["train"][0]])
        assert torch.allclose(out, alone, atol=1e-4) == (name != script.REDRAWN), name


def test_walks_are_frozen_or_redrawn(script):
    method = script.METHODS["GRF"]
    frozen, redrawn = (images.Grids(4, method.draw(2, 0), new) for new in (False, True))
    assert frozen.batch(2) is frozen.batch(2)
    batch = frozen.batch(2)
    assert torch.equal(batch[0].walk_index, batch[1].walk_index)
    first, second = (redrawn.batch(1).walk_index for _ in range(2))
    assert first.shape != second.shape or not torch.equal(first, second)
    names = {key.split("_index")[0] for key in batch.keys() if key.endswith("_index")}  # noqa: SIM118
    assert {"walk", "walk_key", "walk_table1", "walk_table1_key"} <= names  # a set of walks for each layer


def test_dense_features_are_the_same_mask_for_all_images(script):
    mask = images.DenseFeaturesMask(9, heads=2)
    dense = mask(images.Grids(3).batch(2)).to_dense()
    product = mask.features @ mask.features.mT
    torch.testing.assert_close(dense, torch.stack([torch.block_diag(head, head) for head in product]))


def test_images_of_mnist_are_cut_into_patches(monkeypatch, tmp_path):
    monkeypatch.setenv("TOPOMASK_DATA", str(tmp_path))
    with pytest.raises(images.MissingDataError, match="MNIST-10k is missing"):
        images.load_mnist_10k(4, quick=True)
    pixels = (torch.arange(130 * 28 * 28).view(130, 28, 28) % 251).to(torch.uint8)
    (tmp_path / "MNIST-10k").mkdir()
    np.savez(tmp_path / "MNIST-10k/mnist10k.npz", images=pixels.numpy(), labels=np.arange(130, dtype="uint8") % 10)
    pictures = images.load_mnist_10k(4, quick=True)
    assert pictures.side == 7
    assert [len(pictures.parts[part][0]) for part in ("train", "val", "test")] == [64, 32, 32]
    tokens, classes = pictures.parts["test"]
    assert torch.equal(classes, torch.arange(96, 128) % 10)
    patch = pixels[97, 4:8, 8:12].flatten() / 255  # second row, third column
    torch.testing.assert_close(tokens[1, 7 + 2], patch)
