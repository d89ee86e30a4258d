"""Fine-tuning and inference from the weights of a finished run."""

import importlib
import math
import shutil
from types import SimpleNamespace

import numpy as np
import ogb.utils
import pandas as pd
import pytest
import torch
import yaml
from torch_geometric.data import Data

from pyg_topomask import load
from pyg_topomask.datasets import register_dataset
from pyg_topomask.run import run_config
from pyg_topomask.run.cli import main
from pyg_topomask.run.commands.predict import predict
from pyg_topomask.run.errors import RunError
from pyg_topomask.run.graphgps.check import check_config
from pyg_topomask.run.graphgps.config import Config
from pyg_topomask.run.graphgps.formats import ogb as formats
from pyg_topomask.run.graphgps.saved import refuse_other_split
from tests.run.conftest import TINY, table

INFERENCE = {"mode": "inference-only"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder and metrics of a finished run whose model differs from the defaults, made once."""
    folder = tmp_path_factory.mktemp("trained")
    model = ["model.graph_pooling=add", "gnn.act=gelu", "topomask.kernel=elu1", "gt.batch_norm=false"]
    return folder, run_config(TINY, folder, overrides=[*model, "optim.max_epoch=2"], name="first")["metrics"]


@pytest.fixture
def first(tiny, finished, tmp_path):
    """Metrics of a finished run, of which ``tmp_path / "first"`` is a copy; the config knows its folder."""
    shutil.copytree(finished[0], tmp_path, dirs_exist_ok=True)
    tiny["pretrained"] = {"dir": str(tmp_path / "first")}
    return finished[1]


def bare(tiny, **more):
    return {"dataset": tiny["dataset"], "pretrained": tiny["pretrained"], "train": INFERENCE, **more}


@pytest.mark.slow
def test_fine_tuning_changes_what_is_not_frozen(tiny, first, tmp_path):
    with pytest.raises(RunError, match=r"is of another model \(.* differ\)"):
        run_config(tiny, tmp_path, overrides=["gt.dim_hidden=16"], name="wider")
    assert not (tmp_path / "wider" / "0" / "config.yaml").exists()  # so that a corrected config is not refused
    tuned = ["pretrained.freeze_main=true", "optim.scheduler=none", "optim.max_epoch=2", "gt.batch_norm=false"]
    run_config(tiny, tmp_path, overrides=tuned, name="second")
    saved = (tmp_path / name / "0" / "best.ckpt" for name in ("first", "second"))
    before, after = (torch.load(path, weights_only=True)["state_dict"] for path in saved)
    for name, value in before.items():
        assert torch.equal(value, after[name]) != name.startswith("model.head."), name


@pytest.mark.slow
def test_an_inference_run_takes_the_model_of_the_finished_run(tiny, first, tmp_path, capsys):
    again = run_config(bare(tiny), tmp_path, name="second")["metrics"]
    for key in ("val_loss", "test_loss", "val_accuracy", "test_auc"):
        assert again[key]["mean"] == pytest.approx(first[key]["mean"], rel=1e-5), key
    assert "no effect" not in capsys.readouterr().out  # of keys that are copied
    written = yaml.safe_load((tmp_path / "second" / "0" / "config.yaml").read_text())
    assert (written["model"]["graph_pooling"], written["gnn"]["act"]) == ("add", "gelu")
    run_config(bare(tiny, optim={"momentum": 0.5}), tmp_path, name="third")
    notes = [line for line in capsys.readouterr().out.splitlines() if "no effect" in line]
    assert notes == ["note: no effect: optim.momentum (nothing reads it with these settings)"]


@pytest.mark.slow
def test_features_are_normalised_as_in_the_training_of_the_model(tiny, tmp_path):
    for name, scale in (("first", 1), ("second", 9)):
        xs = scale * torch.randn(20, 3, 2, generator=torch.Generator().manual_seed(scale))
        graphs = [Data(x, torch.tensor([[0, 1], [1, 0]]), y=torch.tensor([i % 2])) for i, x in enumerate(xs)]
        torch.save(graphs, tmp_path / f"{name}.pt")
        data = {"format": "Files", "name": name, "dir": f"{tmp_path / name}.pt", "split_mode": "random"}
        tiny["dataset"] = data | {"split": [0.5, 0.25, 0.25], "normalize": True}
        config = tiny if name == "first" else bare(tiny)
        losses = run_config(config, tmp_path, name=name)["metrics"]
        tiny["pretrained"] = {"dir": str(tmp_path / "first")}
    rows = table(predict(tmp_path / "first", str(tmp_path / "second.pt")))
    wanted = -sum(math.log(float(row[f"probability_{row['target']}"])) for row in rows) / 20
    train, val, test = (losses[f"{part}_loss"]["mean"] for part in ("train", "val", "test"))
    found = 0.5 * train + 0.25 * (val + test)
    assert found == pytest.approx(wanted, rel=1e-4)
    with pytest.raises(RunError, match=r"dataset.normalize: it must be as in the training of .*0 \(got False\)"):
        run_config(bare(tiny), tmp_path, overrides=["dataset.normalize=false"], name="third")


@pytest.mark.slow
def test_copied_keys_must_fit_and_the_run_must_be_there(tiny, first, tmp_path):
    loaded, unused = check_config(bare(tiny))
    assert (loaded.config.gt.layers, unused) == (1, [])
    with pytest.raises(RunError, match=r"gnn\.dim_inner: must equal gt\.dim_hidden"):
        check_config(bare(tiny, gnn={"dim_inner": 77}))
    with pytest.raises(RunError, match="layer_norm and batch_norm are both true"):
        check_config(bare(tiny, gt={"layer_norm": True, "batch_norm": True}))
    (tmp_path / "first" / "0" / "config.yaml").write_text("gt: 3")
    with pytest.raises(RunError, match=r"config\.yaml is missing, damaged or of another version"):
        check_config(bare(tiny))
    shutil.rmtree(tmp_path / "first")
    loaded, unused = check_config(bare(tiny))  # the run does not exist yet, so the config is only validated
    assert (loaded.config.gt.layers, unused) == (2, [])
    with pytest.raises(RunError, match=r"pretrained\.dir: .*first contains no run"):
        run_config(bare(tiny), tmp_path, name="second")


@pytest.mark.slow
def test_a_model_is_not_tested_on_graphs_that_trained_it(tiny, first, tmp_path):
    message = r"first.0 was trained on another split of circle \(dataset.split_seed is 0 there and 1 here\), so its"
    with pytest.raises(RunError, match=message):
        run_config(bare(tiny), tmp_path, repeat=2, name="second")
    assert not (tmp_path / "second" / "0").exists()  # refused before the first seed runs
    with pytest.raises(RunError, match=r"dataset.split_mode is random there and cv-kfold-4 here"):
        run_config(bare(tiny), tmp_path, overrides=["dataset.split_mode=cv-kfold-4"], name="second")
    same = run_config(bare(tiny), tmp_path, repeat=2, overrides=["dataset.split_seed=0"], name="second")
    assert same["seeds"] == [0, 1]
    other = ["dataset.name=grid", "seed=1", "gt.batch_norm=false", "optim.max_epoch=2"]
    run_config(tiny, tmp_path, overrides=other, name="other")  # of other graphs


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("PyG-TUDataset ENZYMES errica", {"split_dir": "b"}, "split_dir is ./splits there and b here"),
        ("PyG-LRGBDataset peptides-func random", {"name": "Peptides-Func"}, "split_seed is 0 there and 1 here"),
        ("OGB ogbg-molhiv random", {"name": "ogbg_molhiv"}, "split_seed is 0 there and 1 here"),
    ],
)
def test_another_split_under_another_spelling_or_folder_is_refused(tiny, tmp_path, name, given, message):
    tiny["dataset"] = dict(zip(("format", "name", "split_mode"), name.split()))
    folder = tmp_path / "first" / "0"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(Config.model_validate(tiny).model_dump(mode="json")))
    (folder / "best.ckpt").touch()
    tiny |= {"dataset": tiny["dataset"] | given, "seed": 1, "pretrained": {"dir": str(tmp_path / "first")}}
    with pytest.raises(RunError, match=message):
        refuse_other_split(Config.model_validate(tiny))


@pytest.mark.slow
def test_sizes_of_a_model_type_and_weights_of_each_split(tiny, tmp_path):
    tiny |= {"model": {"type": "SANTransformer"}, "run_multiple_splits": [0, 1]}
    tiny["dataset"]["split_mode"], tiny["gt"]["layer_type"] = "cv-kfold-4", "SANLayer"
    del tiny["topomask"]
    quick = ["optim.max_epoch=1", "optim.num_warmup_epochs=0"]
    one = run_config(tiny, tmp_path, overrides=quick, name="first")
    kept = {name: tiny[name] for name in ("dataset", "model", "run_multiple_splits")}
    again = kept | {"train": INFERENCE, "pretrained": {"dir": str(tmp_path / "first")}}
    two = run_config(again, tmp_path, name="second")
    assert two["metrics"]["test_loss"]["values"] == pytest.approx(one["metrics"]["test_loss"]["values"], rel=1e-5)


@pytest.mark.slow
def test_an_unfinished_run_is_named(tiny, first, tmp_path, capsys):
    folder = tmp_path / "first" / "0"
    (folder / "result.json").unlink()
    run_config(bare(tiny), tmp_path, name="second")
    note = f"note: the run in {folder} is not finished; its weights are those of its best epoch so far"
    assert note in capsys.readouterr().out
    assert main(["predict", str(tmp_path / "first"), "--out", str(tmp_path / "out.csv")]) == 0
    assert note in capsys.readouterr().err


def molecule(smiles):
    """A chain of the letters, in place of RDKit's graph."""
    ends = np.arange(len(smiles) - 1)
    pairs = np.stack([np.append(ends, ends + 1), np.append(ends + 1, ends)])
    features = {"node_feat": np.zeros((len(smiles), 9), int), "edge_feat": np.zeros((pairs.shape[1], 3), int)}
    return {"edge_index": pairs, "num_nodes": len(smiles), **features}


def chain(size, **more):
    graph = {name: torch.as_tensor(value) for name, value in molecule("C" * size).items()}
    return Data(graph["node_feat"], graph["edge_index"], graph["edge_feat"], **more)


@pytest.mark.slow
def test_a_submission_has_the_predictions_for_the_hidden_molecules_of_pcqm(tmp_path, monkeypatch, registries):
    """A small data set in OGB's layout, read by OGB's class; the last two parts have no labels."""
    monkeypatch.setattr(ogb.utils, "smiles2graph", molecule, raising=False)  # needs RDKit otherwise
    cls = importlib.import_module("ogb.lsc.pcqm4mv2_pyg").PygPCQM4Mv2Dataset
    monkeypatch.setattr(formats, "need", lambda *names: SimpleNamespace(PygPCQM4Mv2Dataset=cls))
    root, gaps = tmp_path / "data" / "pcqm4m-v2", [5.0] * 12 + [None] * 7
    (root / "raw").mkdir(parents=True)
    (root / "RELEASE_v1.txt").touch()
    table = pd.DataFrame({"smiles": ["C" * (2 + i % 5) for i in range(19)], "homolumogap": gaps})
    table.to_csv(root / "raw" / "data.csv.gz", index_label="idx")
    sizes = {"train": 8, "valid": 4, "test-dev": 4, "test-challenge": 3}
    torch.save(dict(zip(sizes, torch.arange(19).split(list(sizes.values())))), root / "split_dict.pt")

    register_dataset("OwnMolecules", lambda: [chain(size, y=torch.tensor([49.9])) for size in [2, 3, 4, 5, 6] * 6])
    names = {"node_encoder_name": "Atom", "edge_encoder_name": "Bond"}
    encoders = {"node_encoder": True, "edge_encoder": True, "task_type": "regression", **names}
    own = {"format": "Registered", "name": "OwnMolecules", "split_mode": "random", **encoders}
    model = {"model": {"loss_fun": "l1"}, "gt": {"layer_type": "GINE+KMIP", "dim_hidden": 8}, "metric_best": "mae"}
    model |= {"optim": {"max_epoch": 1}}
    run_config(model | {"dataset": own}, tmp_path, name="first")

    data = {"format": "OGB", "name": "PCQM4Mv2-inference", "dir": str(tmp_path / "data"), **encoders}
    inference = {"dataset": data, "pretrained": {"dir": str(tmp_path / "first")}, "train": {"mode": data["name"]}}
    trained, transform = load(tmp_path / "first")
    metrics = run_config(inference, tmp_path, name="second")["metrics"]
    written = [np.load(tmp_path / "second" / "0" / f"y_pred_pcqm4m-v2_test-{x}.npz") for x in ("dev", "challenge")]
    for found, part in zip(written, (range(12, 16), range(16, 19))):
        wanted = torch.cat([trained(transform(chain(2 + i % 5))).view(-1) for i in part]).clamp(0, 50)
        assert found["y_pred"].dtype == np.float32
        torch.testing.assert_close(torch.from_numpy(found["y_pred"]), wanted, rtol=1e-4, atol=1e-5)
    assert metrics["train_mae"]["mean"] < 50  # OGB's validation set
    with pytest.raises(RunError, match=r"needs the data set of that name, .* \(got OwnMolecules, 1\)"):
        check_config({**inference, "dataset": own})
