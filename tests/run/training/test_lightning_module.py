import pytest
import torch

from pyg_topomask.run import run_config
from pyg_topomask.run.data import loaders
from pyg_topomask.run.errors import RunError


@pytest.mark.parametrize(
    ("clip", "advice"), [("false", "or optim.clip_grad_norm true"), ("true", "or a lower optim.clip_grad_norm_value")]
)
def test_layers_that_overflow_are_told_from_features_that_do(tiny, tmp_path, clip, advice):
    """If the weights are finite but the output of a layer is not, the learning rate is too large."""
    tiny["gt"]["layer_type"], tiny["topomask"] = "GCN+KMIP", {}
    overrides = ["optim.base_lr=1e30", f"optim.clip_grad_norm={clip}"]
    with pytest.raises(RunError) as caught:
        run_config(tiny, tmp_path, overrides=overrides)
    text = str(caught.value)
    assert "training diverged in epoch 1: a layer's output is no longer finite ('q' holds NaN or infinity" in text
    assert "try a lower optim.base_lr (it is 1e+30)" in text
    assert advice in text
    assert "features clean" not in text


def test_features_that_are_not_finite_are_the_data_sets(tiny, tmp_path, monkeypatch):
    read = loaders.read_features

    def spoiled(*arguments):
        graphs, parts, fitted = read(*arguments)
        for graph in graphs:
            graph.x = torch.full_like(graph.x, torch.nan)
        return graphs, parts, fitted

    monkeypatch.setattr(loaders, "read_features", spoiled)
    with pytest.raises(RunError, match=r"dataset\.circle: before any training, 'x' holds NaN or infinity"):
        run_config(tiny, tmp_path)
