import copy
import json
import pickle
import sys

import pytest
import torch
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GCNConv

from pyg_topomask.nn import GPSModel, GRFAttention, HopMask
from pyg_topomask.transforms import AddHops, AddRandomWalks

huggingface_hub = pytest.importorskip("huggingface_hub")

SIZES = {"in_channels": 3, "channels": 8, "out_channels": 2, "num_layers": 2}
MASKS = {"kernel": "elu1", "mask": [None, HopMask(heads=2, max_hops=3)], "mask_heads": [2, 2]}
MODELS = {
    "names": SIZES | {"conv": "gcn", "attn": "grf", "heads": 2},
    "settings": {**SIZES, "in_channels": -1, "edge_dim": -1, "conv": "gine", "attn": "KMIP", "attn_kwargs": {"k": 2}}
    | {"pool": "mean", "norm": "layer_norm", "dropout": 0.3, "pre_norm": True},
    "masks": SIZES | {"attn": "masked", "heads": 4, "attn_kwargs": MASKS},
    "transform": SIZES | {"attn": "grf", "transform": AddRandomWalks(num_walks=2, seed=5)},
}


@pytest.fixture
def batch():
    edges = torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]])
    graphs = [Data(x=torch.randn(4, 3), edge_index=edges, edge_attr=torch.randn(6, 2)) for _ in range(3)]
    return Batch.from_data_list(AddHops(max_hops=3)(AddRandomWalks(seed=0)(graphs)))


def answer(model, batch):
    torch.manual_seed(0)
    graph = None if model.transform is not None else batch
    edge_attr = batch.edge_attr if model.edge_encoder is not None else None
    return model(batch.x, batch.edge_index, batch.batch, graph, edge_attr=edge_attr)


@pytest.mark.parametrize("name", MODELS)
def test_a_saved_model_gives_the_same_answers(name, batch, tmp_path):
    model = GPSModel(**MODELS[name])
    answer(model, batch)
    torch.nn.init.normal_(model.layers[0].mlp[0].weight)
    expected = answer(model.eval(), batch)
    model.save_pretrained(tmp_path / "model")
    state = torch.get_rng_state()
    loaded = GPSModel.from_pretrained(tmp_path / "model")
    assert torch.equal(torch.get_rng_state(), state)
    assert type(loaded) is GPSModel
    assert not loaded.training
    assert torch.equal(answer(loaded, batch), expected)
    assert repr(loaded.layers) == repr(model.layers)
    loaded.save_pretrained(tmp_path / "again")
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (
        tmp_path / "model" / "model.safetensors"
    ).read_bytes()
    for twin in (copy.deepcopy(loaded), pickle.loads(pickle.dumps(loaded))):
        assert torch.equal(answer(twin, batch), expected)
        twin.save_pretrained(tmp_path / "twin")


def test_arguments_given_at_loading_replace_saved_ones(batch, tmp_path):
    model = GPSModel(3, 8, 2, 1, attn="grf")
    model.save_pretrained(tmp_path)
    loaded = GPSModel.from_pretrained(tmp_path, transform=AddRandomWalks(seed=0), dropout=0.5)
    assert loaded.dropout.p == 0.5
    assert loaded(batch.x, batch.edge_index).shape == (12, 2)


def test_models_of_functions_are_refused_with_the_remedy(tmp_path):
    model = GPSModel(3, 8, 2, 1, conv=lambda layer: GCNConv(8, 8), attn=lambda layer: GRFAttention(8))
    with pytest.raises(TypeError, match=r"functions or modules as 'conv', 'attn'.*names, such as conv='gcn'"):
        model.save_pretrained(tmp_path / "model")
    assert not (tmp_path / "model").exists()
    with pytest.raises(TypeError, match="'norm'"):
        GPSModel(3, 8, 2, 1, attn="grf", norm=torch.nn.Identity()).push_to_hub("user/name")


@pytest.mark.parametrize("damage", ["class", "function", "base", "config", "pickle", "weights"])
def test_files_execute_nothing(damage, tmp_path):
    """A config makes classes of a list, and weights that lie in a pickle are not read."""
    GPSModel(3, 8, 2, 1, attn="grf", transform=AddRandomWalks()).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    classes = {"class": "os.system", "function": "that_add", "base": "GraphTransform"}
    if damage in classes:
        config["transform"] = {"class": classes[damage], "arguments": {"command": "true"}}
        (tmp_path / "config.json").write_text(json.dumps(config))
    elif damage == "config":
        (tmp_path / "config.json").unlink()
    elif damage == "pickle":
        (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    else:
        (tmp_path / "model.safetensors").write_bytes(pickle.dumps({"x": print}))
    errors = {"config": (ValueError, "no config.json"), "pickle": (FileNotFoundError, "model.safetensors")}
    error, text = errors.get(damage, (ValueError, f"names '{classes.get(damage)}', which is no mask or transform"))
    with pytest.raises(Exception, match="header") if damage == "weights" else pytest.raises(error, match=text):
        GPSModel.from_pretrained(tmp_path)


def test_the_card_says_what_the_model_is_and_what_it_reached(tmp_path):
    model = GPSModel(3, 8, 2, 1, conv="gcn", attn="grf")
    metrics = {"train_mae": {"mean": 0.1, "std": 0.0}, "test_mae": {"mean": 0.25, "std": 0.01}}
    model.save_pretrained(tmp_path, summary={"name": "zinc", "seeds": [0, 1, 2], "metrics": metrics})
    card = (tmp_path / "README.md").read_text()
    assert "library_name: pyg_topomask" in card
    assert "# zinc\n" in card
    assert f"{sum(p.numel() for p in model.parameters()):,} parameters" in card
    assert "walk_index" in card
    assert "| test_mae | 0.25 | 0.01 |" in card
    assert "train_mae" not in card
    assert "mean of 3 seeds" in card


def test_push_to_hub_uploads_what_is_saved(monkeypatch, tmp_path):
    sent = {}

    class Api:
        def __init__(self, **options):
            pass

        def create_repo(self, repo_id, **options):
            return type("Repo", (), {"repo_id": repo_id})

        def upload_folder(self, folder_path, **options):
            sent.update({path.name: path.read_bytes() for path in folder_path.iterdir()}, to=options["repo_id"])
            return "address"

    monkeypatch.setattr("huggingface_hub.hub_mixin.HfApi", Api)
    assert GPSModel(3, 8, 2, 1, conv="gcn", attn="grf").push_to_hub("user/name") == "address"
    assert sent.pop("to") == "user/name"
    assert sorted(sent) == ["README.md", "config.json", "model.safetensors"]


def test_the_extra_is_named_where_it_is_missing(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r"pip install 'pyg_topomask\[hub\]'"):
        GPSModel.from_pretrained(tmp_path)
