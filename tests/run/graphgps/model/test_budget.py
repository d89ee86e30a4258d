import pytest
import torch
import yaml

from pyg_topomask.run import run_config
from pyg_topomask.run.errors import ConfigError
from pyg_topomask.run.graphgps.check import check_config
from pyg_topomask.run.graphgps.config.load import load
from pyg_topomask.run.graphgps.model import build_model, sized, with_width

BUDGET = {"auto_satisfy_param_budget": True, "param_budget": 50_000}
SIZES = (5, 3, 1, "graph")


def count(config):
    return sum(parameter.numel() for parameter in build_model(config, *SIZES).parameters())


@pytest.fixture
def kmip(tiny):
    del tiny["topomask"]
    sparse = {"k": 2, "kq_dim": 5, "val_dim": 17, "head_agg": "none"}
    tiny["dataset"] |= {"edge_encoder": True, "edge_encoder_name": "DummyEdge"}
    tiny["gt"] |= {"layer_type": "CustomGatedGCN+SparseAttention", "n_heads": 4, "dim_hidden": 68, "sparse": sparse}
    return tiny | {"model": BUDGET, "gnn": {"dim_inner": 68}}


def test_the_width_is_the_largest_within_the_budget(kmip):
    config = load(kmip).config
    found = sized(config, *SIZES)
    width = found.gt.dim_hidden
    assert width % 4 == 0
    assert (found.gnn.dim_inner, found.gt.sparse.val_dim, found.gt.sparse.kq_dim) == (width, width // 4, 5)
    assert count(found) <= 50_000 < count(with_width(config, width + 4))
    assert sized(found, *SIZES) == found
    check_config(kmip)


def test_looking_for_a_width_changes_nothing_that_is_drawn(kmip):
    torch.manual_seed(3)
    found = sized(load(kmip).config, *SIZES)
    first = [parameter.detach().clone() for parameter in build_model(found, *SIZES).parameters()]
    width = found.gt.dim_hidden
    fixed = {"auto_satisfy_param_budget": False}
    overrides = [f"gt.dim_hidden={width}", f"gnn.dim_inner={width}", f"gt.sparse.val_dim={width // 4}"]
    torch.manual_seed(3)
    plain = build_model(load(kmip | {"model": fixed}, overrides).config, *SIZES)
    assert all(torch.equal(a, b) for a, b in zip(first, plain.parameters(), strict=True))


def test_custom_gnn_may_have_any_width(tiny):
    gnn = {"layer_type": "gatconv", "layers_mp": 2, "residual": True, "dim_inner": 235}
    config = load({"dataset": tiny["dataset"], "model": BUDGET | {"type": "custom_gnn"}, "gnn": gnn}).config
    found = sized(config, *SIZES)
    assert count(found) <= 50_000 < count(with_width(config, found.gt.dim_hidden + 1))


def test_encodings_leave_room_for_features(kmip):
    kmip["dataset"]["node_encoder_name"] = "LinearNode+RWSE"
    rwse = {"enable": True, "model": "Linear", "dim_pe": 36, "kernel": {"times": [1, 2]}}
    kmip |= {"model": BUDGET | {"param_budget": 20_000}, "posenc_RWSE": rwse}
    assert sized(load(kmip).config, *SIZES).gt.dim_hidden == 40  # not 32 or 36, of which RWSE would use all columns
    kmip["model"]["param_budget"] = 5_000
    with pytest.raises(ConfigError, match=r"no model has so few parameters \(got 5000\); the narrowest one has \d+"):
        check_config(kmip)


def test_other_models_keep_their_width(kmip, tmp_path):
    assert sized(load(kmip, ["model.type=MultiModel"]).config, *SIZES).gt.dim_hidden == 68
    assert sized(load(kmip, ["model.auto_satisfy_param_budget=false"]).config, *SIZES).gt.dim_hidden == 68
    assert sized(load(kmip, [f"pretrained.dir={tmp_path}"]).config, *SIZES).gt.dim_hidden == 68


@pytest.mark.slow
def test_a_run_has_the_width_and_says_it(kmip, tmp_path):
    kmip["optim"] |= {"max_epoch": 2, "num_warmup_epochs": 0}
    first = run_config(kmip, tmp_path, name="first")
    assert first["num_parameters"] <= 50_000
    resolved = yaml.safe_load((tmp_path / "first" / "0" / "config.yaml").read_text())
    width = resolved["gt"]["dim_hidden"]
    assert width != 68
    assert resolved["gt"]["sparse"]["val_dim"] * 4 == resolved["gnn"]["dim_inner"] == width
    (tmp_path / "first" / "0" / "result.json").unlink()  # the run resumes from its checkpoint
    again = run_config(kmip, tmp_path, name="first")
    assert again["metrics"] == first["metrics"]
    start = [f"pretrained.dir={tmp_path / 'first'}", "train.mode=inference-only"]
    evaluated = run_config(kmip, tmp_path, overrides=start, name="second")
    assert evaluated["metrics"]["test_loss"]["mean"] == pytest.approx(first["metrics"]["test_loss"]["mean"])
