"""The comparison of masks on MNIST: a trial has rows of equal epochs and equal time, and goes on where it ended."""

import json

import numpy as np
import pytest
import torch

from pyg_topomask.run import RunError


@pytest.fixture
def script(scripts, tmp_path, monkeypatch):
    (tmp_path / "MNIST-10k").mkdir()
    images = np.random.default_rng(0).integers(0, 256, (128, 28, 28), dtype="uint8")
    np.savez(tmp_path / "MNIST-10k/mnist10k.npz", images=images, labels=np.arange(128, dtype="uint8") % 10)
    monkeypatch.setenv("TOPOMASK_DATA", str(tmp_path))
    return scripts("mnist")


def test_every_row_is_a_model_of_its_images(script):
    pictures = script.pictures_of(4, True)
    for method in script.METHODS:
        model = script.model_of(method, pictures, positions=True).eval()
        prepare = script.transforms.that_add(model.model.requires, seed=0, max_hops=script.HOPS, **script.WALKS)
        out = model(pictures.parts["test"][0][:3], script.images.Grids(7, prepare))
        assert out.shape == (3, 10), method
        out.sum().backward()
        assert all(parameter.grad is not None for parameter in model.parameters()), method


def test_a_trial_has_both_comparisons_and_is_resumed(script, tmp_path, monkeypatch):
    arguments = ["--quick", "--datasets", "patches"]
    with pytest.raises(RunError, match="rows of equal time need those of 'GRF'"):
        script.COMPARISON.main([*arguments, "--out", str(tmp_path / "part"), "--methods", "GIN"])
    arguments += ["--methods", "GRF", "GIN", "none, elu1", "--out", str(tmp_path / "whole")]
    script.COMPARISON.main(arguments)
    report = json.loads((tmp_path / "whole/quick/mnist.json").read_text())
    rows = {(row["method"], row["equal"]): row for row in report["rows"].values()}
    wanted = [("GRF", "epochs"), *((name, part) for name in ("GIN", "none, elu1") for part in ("epochs", "time"))]
    assert list(rows) == wanted
    share = rows["GRF", "epochs"]["seconds"][0] / rows["GIN", "epochs"]["seconds"][0]
    assert rows["GIN", "time"]["trained"] == [max(2, min(round(2 * share), 20))]
    monkeypatch.setattr(script.images, "train_images", lambda *_: pytest.fail("finished runs are kept"))
    script.COMPARISON.main(arguments)
    assert list(script.COMPARISON._planned("pixels", ["grid heat"])) == []
    assert torch.get_num_threads() == 1
