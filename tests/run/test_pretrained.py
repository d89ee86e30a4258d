"""Fine-tuning and inference from the weights of a finished run."""

import pytest
import torch
import yaml

from pyg_topomask.run import run_config
from pyg_topomask.run.cli import main
from pyg_topomask.run.config import Config
from pyg_topomask.run.errors import RunError
from pyg_topomask.run.model.pretrained import refuse_other_split
from pyg_topomask.run.runner import check_config


def test_fine_tuning_and_inference_start_from_a_finished_run(tiny, tmp_path):
    first = run_config(tiny, tmp_path, name="first")
    start = [f"pretrained.dir={tmp_path / 'first'}", "optim.max_epoch=2", "optim.num_warmup_epochs=0"]
    more = ["pretrained.freeze_main=true", "optim.scheduler=none", "gt.batch_norm=false"]
    with pytest.raises(RunError, match=r"is of another model \(.* differ\)"):
        run_config(tiny, tmp_path, overrides=[*start, "gt.dim_hidden=16"], name="wider")
    assert not (tmp_path / "wider" / "0" / "config.yaml").exists()  # so that a corrected config is not refused
    run_config(tiny, tmp_path, overrides=["gt.batch_norm=false"], name="plain")
    start[0] = f"pretrained.dir={tmp_path / 'plain'}"
    run_config(tiny, tmp_path, overrides=[*start, *more], name="second")
    before, after = (
        torch.load(tmp_path / name / "0" / "best.ckpt", weights_only=True)["state_dict"] for name in ("plain", "second")
    )
    for name, value in before.items():
        assert torch.equal(value, after[name]) != name.startswith("model.head."), name
    again = run_config(
        tiny, tmp_path, overrides=[f"pretrained.dir={tmp_path / 'first'}", "train.mode=inference-only"], name="third"
    )
    for part in ("val", "test"):
        for name in ("loss", "accuracy", "auc"):
            key = f"{part}_{name}"
            assert again["metrics"][key]["mean"] == pytest.approx(first["metrics"][key]["mean"], rel=1e-5), key


def test_a_model_is_not_tested_on_graphs_that_trained_it(tiny, tmp_path):
    run_config(tiny, tmp_path, overrides=["optim.max_epoch=2"], name="first")
    again = [f"pretrained.dir={tmp_path / 'first'}", "train.mode=inference-only"]
    message = r"first.0 was trained on another split of circle \(dataset.split_seed is 0 there and 1 here\), so its"
    with pytest.raises(RunError, match=message):
        run_config(tiny, tmp_path, repeat=2, overrides=again, name="second")
    assert not (tmp_path / "second" / "0").exists()  # refused before the first seed runs
    with pytest.raises(RunError, match=r"dataset.split_mode is random there and cv-kfold-4 here"):
        run_config(tiny, tmp_path, overrides=[*again, "dataset.split_mode=cv-kfold-4"], name="second")
    same = run_config(tiny, tmp_path, repeat=2, overrides=[*again, "dataset.split_seed=0"], name="second")
    assert same["seeds"] == [0, 1]
    run_config(tiny, tmp_path, overrides=[again[0], "dataset.name=grid", "seed=1"], name="other")  # of other graphs


@pytest.mark.parametrize(
    ("dataset", "given", "message"),
    [
        (
            {"format": "PyG-TUDataset", "name": "ENZYMES", "split_mode": "errica"},
            {"split_dir": "b"},
            "split_dir is ./splits there and b here",
        ),
        (
            {"format": "PyG-LRGBDataset", "name": "peptides-func", "split_mode": "random"},
            {"name": "Peptides-Func"},
            "split_seed is 0 there and 1 here",
        ),
        (
            {"format": "OGB", "name": "ogbg-molhiv", "split_mode": "random"},
            {"name": "ogbg_molhiv"},
            "split_seed is 0 there and 1 here",
        ),
    ],
)
def test_another_split_under_another_spelling_or_folder_is_refused(tiny, tmp_path, dataset, given, message):
    tiny["dataset"] = dataset
    folder = tmp_path / "first" / "0"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(Config.model_validate(tiny).model_dump(mode="json")))
    (folder / "best.ckpt").touch()
    tiny |= {"dataset": {**dataset, **given}, "seed": 1, "pretrained": {"dir": str(tmp_path / "first")}}
    with pytest.raises(RunError, match=message):
        refuse_other_split(Config.model_validate(tiny))


def test_missing_keys_of_the_model_are_those_of_the_pretrained_run(tiny, tmp_path):
    model = ["model.graph_pooling=add", "gnn.act=gelu", "topomask.kernel=elu1", "optim.max_epoch=2"]
    first = run_config(tiny, tmp_path, overrides=model, name="first")
    bare = {"dataset": tiny["dataset"], "pretrained": {"dir": str(tmp_path / "first")}}
    bare |= {"train": {"mode": "inference-only"}, "gnn": {"dropout": 0.3}}
    again = run_config(bare, tmp_path, name="second")
    for key in ("val_loss", "test_loss", "test_accuracy"):
        assert again["metrics"][key]["mean"] == pytest.approx(first["metrics"][key]["mean"], rel=1e-5), key
    written = yaml.safe_load((tmp_path / "second" / "0" / "config.yaml").read_text())
    assert (written["model"]["graph_pooling"], written["gnn"]["act"], written["gnn"]["dropout"]) == ("add", "gelu", 0.3)


def test_sizes_that_a_model_type_sets_do_not_count_as_given(tiny, tmp_path):
    tiny["model"] = {"type": "SANTransformer"}
    tiny["gt"]["layer_type"] = "SANLayer"
    del tiny["topomask"]
    run_config(tiny, tmp_path, name="first")
    data = {name: tiny[name] for name in ("dataset", "model")} | {"train": {"mode": "inference-only"}}
    summary = run_config(data, tmp_path, overrides=[f"pretrained.dir={tmp_path / 'first'}"], name="second")
    assert summary["num_parameters"] > 0


def test_an_inference_run_takes_the_model_of_the_finished_run(tiny, tmp_path):
    data = {"dataset": tiny["dataset"], "train": {"mode": "inference-only"}}
    start = [f"pretrained.dir={tmp_path / 'first'}"]
    loaded, unused = check_config(data, start)  # the run does not exist yet, so the config is only validated
    assert (loaded.config.gt.layers, unused) == (2, [])
    with pytest.raises(RunError, match=r"pretrained\.dir: .*first contains no run"):
        run_config(data, tmp_path, overrides=start, name="second")
    first = run_config(tiny, tmp_path, name="first")
    again = run_config(data, tmp_path, overrides=start, name="second")
    assert again["metrics"]["test_loss"]["mean"] == pytest.approx(first["metrics"]["test_loss"]["mean"], rel=1e-5)
    (tmp_path / "first" / "0" / "config.yaml").write_text("gt: 3")
    with pytest.raises(RunError, match=r"config\.yaml is missing, damaged or of another version"):
        check_config(data, start)


def test_each_split_starts_from_the_run_of_that_split(tiny, tmp_path):
    tiny["dataset"]["split_mode"] = "cv-kfold-4"
    tiny |= {"run_multiple_splits": [0, 1]}
    first = run_config(tiny, tmp_path, overrides=["optim.max_epoch=1", "optim.num_warmup_epochs=0"], name="first")
    again = ["train.mode=inference-only", f"pretrained.dir={tmp_path / 'first'}"]
    second = run_config(tiny, tmp_path, overrides=again, name="second")
    assert second["metrics"]["test_loss"]["values"] == pytest.approx(first["metrics"]["test_loss"]["values"], rel=1e-5)


def test_an_unfinished_run_is_named(tiny, tmp_path, capsys):
    run_config(tiny, tmp_path, overrides=["optim.max_epoch=2"], name="first")
    start = [f"pretrained.dir={tmp_path / 'first'}", "train.mode=inference-only"]
    run_config(tiny, tmp_path, overrides=start, name="second")
    assert "not finished" not in capsys.readouterr().out
    (tmp_path / "first" / "0" / "result.json").unlink()
    run_config(tiny, tmp_path, overrides=[*start, "name_tag=again"], name="second")
    folder = tmp_path / "first" / "0"
    note = f"note: the run in {folder} is not finished; its weights are those of its best epoch so far"
    assert note in capsys.readouterr().out
    assert main(["predict", str(tmp_path / "first"), "--out", str(tmp_path / "out.csv")]) == 0
    assert note in capsys.readouterr().err


def test_keys_copied_from_the_finished_run_make_no_notes_but_must_fit(tiny, tmp_path, capsys):
    run_config(tiny, tmp_path, overrides=["optim.max_epoch=1", "optim.num_warmup_epochs=0"], name="first")
    bare = {"dataset": tiny["dataset"], "train": {"mode": "inference-only"}}
    bare["pretrained"] = {"dir": str(tmp_path / "first")}
    capsys.readouterr()
    run_config(bare, tmp_path, name="second")
    assert "no effect" not in capsys.readouterr().out
    run_config(bare | {"optim": {"momentum": 0.5}}, tmp_path, name="third")
    notes = [line for line in capsys.readouterr().out.splitlines() if "no effect" in line]
    assert notes == ["note: no effect: optim.momentum (optim.optimizer is adamW)"]
    with pytest.raises(RunError, match=r"gnn\.dim_inner: must equal gt\.dim_hidden"):
        check_config(bare | {"gnn": {"dim_inner": 77}})
    with pytest.raises(RunError, match="layer_norm and batch_norm are both true"):
        check_config(bare | {"gt": {"layer_norm": True}})
