"""Configs in the spelling of GraphGPS, Exphormer and k-MIP, written for these tests."""

import json
import re

import pytest

from pyg_topomask.run.cli import main
from pyg_topomask.run.config.base import parse_times
from pyg_topomask.run.config.ignored import FIXED_KEYS, IGNORED_KEYS
from pyg_topomask.run.config.load import _OTHER_NAMES, load
from pyg_topomask.run.config.schema import _METRIC_OF_BENCHMARK, Config, all_keys, section_of
from pyg_topomask.run.config.unused import _CONDITIONS, _READ_WITH
from pyg_topomask.run.data.formats import FORMATS, possible_tasks
from pyg_topomask.run.errors import ConfigError
from pyg_topomask.run.training.metrics import metric_names

RRWP = "posenc_RRWP.enable=true posenc_RRWP.kernel.times_func="


def test_a_config_of_graphgps(molecules):
    config = load(molecules).config
    assert (config.optim.weight_decay, config.gt.dropout) == (1e-5, 0.0)
    assert config.gt.parts == ["CustomGatedGCN", "Transformer"]
    assert config.posenc_LapPE.enable
    assert config.posenc_RWSE.enable
    assert config.posenc_RWSE.kernel.numbers == list(range(1, 17))
    assert config.posenc_LapPE.eigen.max_freqs == 8
    assert config.dataset.node_encoder_parts == ["TypeDictNode", "LapPE", "RWSE"]
    assert config.dataset.split_mode == "standard"
    assert not config.best_is_max


def test_a_resolved_config_is_read_back(molecules, tmp_path):
    config = load(molecules).config
    assert Config.model_validate(json.loads(config.model_dump_json())) == config


def test_san_is_layers_of_its_attention(molecules):
    named = load(molecules, ["model.type=SANTransformer", "gt.layer_type=SANLayer", "gt.gamma=0.1"]).config
    assert (named.gt.parts, named.gt.first, named.gt.gamma) == (["SAN"], "None", 0.1)
    assert Config.model_validate(json.loads(named.model_dump_json())) == named
    molecules.write_text(
        molecules.read_text().replace("GPSModel", "SANTransformer").replace("  layer_type", "  # layer_type")
    )
    assert load(molecules).config.gt.parts == ["SAN"]
    again = load(load(molecules).config, ["gt.layers=2"]).config
    assert (again.gt.parts, again.gt.layers) == (["SAN"], 2)


def test_keys_of_exphormer_and_k_mip(molecules):
    overrides = (
        "model.type=MultiModel gt.layer_type=CustomGatedGCN+Exphormer+SparseAttention prep.exp=true prep.exp_deg=3"
    )
    overrides += (
        " prep.exp_algorithm=Hamiltonian prep.num_virt_node=2 gt.dim_edge=64 gt.sparse.kq_dim=5 posenc_ERN.enable=false"
    )
    config = load(molecules, overrides.split()).config
    assert config.gt.parts == ["CustomGatedGCN", "Exphormer", "KMIP"]
    assert (config.prep.exp_deg, config.prep.num_virt_node, config.gt.sparse.kq_dim) == (3, 2, 5)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("range(4)", [0, 1, 2, 3]),
        (" range( 1, 9 ,3 ) ", [1, 4, 7]),
        ("range(1, 17)", list(range(1, 17))),
        ("[1, 2.5]", [1, 2.5]),
        ("(3,)", [3]),
    ],
)
def test_times_are_read(text, numbers):
    assert parse_times(text) == numbers


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("__import__('os').system('false')", "never executed"),
        ("range(1, 2**9)", "never executed"),
        ("[i for i in range(3)]", "never executed"),
        ("range(1,2,3,4)", "never executed"),
        ("[True]", "never executed"),
        ("range(1,9,0)", "step of a range must not be 0"),
        ("range(99999999)", "has 99999999 numbers; at most 10000"),
        ("range(-2,3)", "must not be negative"),
    ],
)
def test_other_text_is_refused_and_not_run(molecules, text, message):
    values = {"dataset": {"format": "OGB", "name": "ogbg-molhiv"}, "posenc_RWSE": {"kernel": {"times_func": text}}}
    with pytest.raises(ConfigError, match=rf"posenc_RWSE\.kernel\.times_func: .*{message}"):
        load(values)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("gt.layers=true", r"gt\.layers: must not be true or false \(got True\)"),
        ("optim.base_lr=true", r"optim\.base_lr: must not be true or false"),
        ("dataset.name=false", r"dataset\.name: must not be true or false"),
        ("dataset.split=[true,0.1,0.1]", r"dataset\.split: must not be true or false"),
        ("dataset.split=[0.8,0.2]", r"dataset\.split: must be three shares.*there are 2"),
        ("gt.residual=false", r"gt\.residual: must be true: nothing else is provided \(got False\)"),
        ("gt.residual=1", r"gt\.residual: must be true: nothing else is provided \(got 1\)"),
        ("gt.layer_type=GCN__exp+None", "expander edges is not provided"),
        ("model.type=SANTransformer", r"gt\.layer_type: .* takes SANLayer.*\(got 'CustomGatedGCN\+Transformer'\)"),
        ("model.type=SANTransformer gt.layer_type=SAN2Layer", r"gt\.layer_type: SAN2Layer, .* is not provided"),
        ("model.type=Graphormer", r"model\.type: its own network is not provided"),
        ("model.type=gnn", r"model\.type: use custom_gnn, which takes .*gatconv"),
        ("dataset.node_encoder_name=CityNetworkNode", r"reads the coordinates of PyG-CityNetwork \(got PyG-ZINC\)"),
        ("model.type=custom_gnn", r"custom_gnn takes gatedgcnconv, gineconv, gcnconv, gatconv \(got 'generalconv'\)"),
        ("model.type=custom_gnn gnn.layer_type=gineconv", r"gnn\.residual: custom_gnn .* with residuals only"),
        ("model=3", r"model: .*valid dictionary"),
        ("devices=4", r"devices: must be 1: use torchrun .* \(got 4\)"),
        ("model.size_average=sum", r"model\.size_average: must be .*mean"),
        ("gt.sparse.random_attention=true", "must be false"),
        ("posenc_ERE.enable=true", r"posenc_ERE\.enable: must be false"),
        ("dataset.edge_encoder_name=Bond+ER", r"effective resistances \(ER\) are not provided"),
        ("prep.exp_algorithm=Random", "must be one of Random-d, Random-d-2, Hamiltonian"),
        ("posenc_LapPE.enable=false", r"posenc_LapPE\.enable is false, and dataset\.node_encoder_name contains LapPE"),
        ("posenc_RWSE.kernel.times_func=''", "needs times, or times_func"),
        ("posenc_RWSE.kernel.times_func=range(3)", "whole numbers from 1"),
        ("posenc_LapPE.dim_pe=48", "encodings of width 64 leave no column of gt.dim_hidden 64"),
        ("dataset.node_encoder_name=LapPE+LapPE", "contains an encoding twice"),
        ("dataset.node_encoder_num_types=0", "TypeDictNode needs the number of types"),
        ("gt.layer_type=GINE+BiasedTransformer", "needs posenc_GraphormerBias"),
        (f"dataset.node_encoder_name=TypeDictNode+RRWP {RRWP}range(4)", "excludes GraphormerBias"),
        (f"gt.layer_type=GINE+BiasedTransformer {RRWP}'[0.5]' dataset.node_encoder_name=RRWP", "whole numbers from 0"),
        ("posenc_GraphormerBias.enable=true", "num_spatial_types, num_in_degrees and num_out_degrees are needed"),
        ("topomask.layer_norm_mode=node", r"topomask\.layer_norm_mode: node needs gt\.layer_norm"),
        ("model.loss_fun=cross_entropy", "is for classes; use l1"),
        ("metric_best=auc", "is for classes; use mae"),
        ("gt.dim_edge=32", r"must equal gt\.dim_hidden \(got 32 and 64\)"),
        ("train.mode=inference-only", "needs the folder of a finished run"),
        ("gnn.head=node", "does not fit dataset.task 'graph'"),
        ("gnn.head=ogb_code_graph", "subtoken_prediction belong together"),
        ("gt.layer_type=GCN", r"joined by '\+'"),
    ],
)
def test_what_is_refused(molecules, override, message):
    with pytest.raises(ConfigError, match=message):
        load(molecules, [*override.split(), "metric_agg=null"])


@pytest.mark.parametrize(
    "overrides",
    [
        "optim.scheduler=none",  # then the warm-up is not used
        "dataset.edge_encoder=false",
        "optim.clip_grad_norm=false optim.clip_grad_norm_value=5",
        "gt.layer_type=GCN+None",
        "gt.layer_type=GCN+GRF gt.sparse.k=3",
        "posenc_SignNet.enable=true",  # computed but not encoded, as in GraphGPS
        "dataset.split_index=3",
        "model.type=SingleModel gt.layer_type=GINE",
        "gt.gamma=1e-1 graphormer.use_graph_token=true",
    ],
)
def test_what_graphgps_ignores_is_let_through(molecules, overrides):
    config = load(molecules, overrides.split()).config
    assert all(config.is_given(item.split("=")[0]) for item in overrides.split())


@pytest.mark.parametrize("key", IGNORED_KEYS)
def test_an_ignored_key_is_accepted_with_any_value(key):
    data = {"dataset": {"format": "PyG-ZINC", "name": "subset"}}
    parsed = load(data, [f"{key}=[1, x]"])
    assert parsed.ignored == (key,)
    assert parsed.config == load(data).config
    assert key not in all_keys()


@pytest.mark.parametrize("key", FIXED_KEYS)
def test_a_fixed_key_takes_one_value(key):
    data = {"dataset": {"format": "PyG-ZINC", "name": "subset"}}
    value = json.dumps(FIXED_KEYS[key])
    assert load(data, [f"{key}={value}"]).config == load(data).config
    other = {"true": "false", "false": "true"}.get(value, "other")
    with pytest.raises(ConfigError, match=f"command line: {re.escape(key)}: must be {re.escape(value)}: nothing else"):
        load(data, [f"{key}={other}"])


def test_every_table_of_keys_names_keys_that_there_are():
    sections = {key.rpartition(".")[0] for key in all_keys()}
    assert {*_READ_WITH} <= {*all_keys(), *sections}
    assert {*_CONDITIONS} <= {*all_keys()}
    assert {decisive for decisive, *_ in _READ_WITH.values()} <= {*all_keys()}
    assert {*_OTHER_NAMES.values()} <= {*all_keys()}
    assert not {*IGNORED_KEYS} & {*FIXED_KEYS}


@pytest.mark.parametrize("name", ["lr", "learning_rate"])
def test_the_learning_rate_under_other_names(molecules, name):
    with pytest.raises(ConfigError, match=r"Did you mean 'optim\.base_lr'\?"):
        load(molecules, [f"optim.{name}=0.1"])


def test_the_reference_of_keys(capsys):
    assert main(["list", "keys"]) == 0
    text = capsys.readouterr().out
    assert "  gt.layers: integer ≥ 1 and ≤ 1000; default 2\n      Number of layers.\n" in text
    assert "  dataset.format: text; required\n" in text
    assert "  run_multiple_splits: [integer ≥ 0, ...]; default []\n" in text
    assert all(f" {key}" in text for key in (*all_keys(), *IGNORED_KEYS))


def test_an_inference_run_takes_its_model_from_the_finished_run():
    data = {"format": "PyG-ZINC", "name": "subset", "task_type": "regression", "node_encoder_name": "LinearNode+RWSE"}
    model, train = {"loss_fun": "l1"}, {"mode": "inference-only"}
    assert load(
        {"dataset": data, "model": model, "train": train, "pretrained": {"dir": "some"}}
    ).config.train.is_inference
    with pytest.raises(ConfigError, match="posenc_RWSE"):
        load({"dataset": data, "model": model})


@pytest.mark.parametrize(
    ("task_type", "metric"),
    [("classification", "accuracy"), ("regression", "mae"), ("classification_multilabel", "ap")],
)
def test_metric_by_task(task_type, metric):
    values = {"dataset": {"format": "OGB", "name": "x", "task_type": task_type}, "model": {"loss_fun": "l1"}}
    assert load(values).config.metric_best == metric
    assert load(values | {"metric_best": "auto"}).config.metric_best == metric


def test_the_metric_of_a_benchmark_is_one_that_its_task_has():
    found = {}
    for name, family in FORMATS.items():
        for data in family.names if name != "PyG-LongRangeDataset" else ():  # ours: it has no leaderboard
            config = Config.model_validate({"dataset": {"format": name, "name": data}})
            tasks = possible_tasks(config.dataset)
            assert any(_has(task, config.metric_best) for task in tasks), (name, data, config.metric_best)
            found[data] = config.metric_best
    some = {"ogbg-molhiv": "auc", "PATTERN": "accuracy-SBM", "pascalvoc-sp": "f1", "pcqm-contact": "mrr"}
    some |= {"ogbl-collab": "hits@50", "Minesweeper": "auc", "subset": "mae", "Cora": "accuracy"}
    assert found.items() >= some.items()
    known = {name.lower() for name in (*FORMATS, *found)}
    assert known >= {*_METRIC_OF_BENCHMARK}


def _has(task, metric):
    """Whether a metric is one of the task; metric_names itself adds the one that it is given for classes."""
    labels = ("binary", "multilabel")
    fitting = {"auc": labels, "ap": labels, "accuracy-SBM": ("multiclass", "binary")}
    if metric == "miou":
        return task.level == "node"
    return task.kind in fitting[metric] if metric in fitting else metric in metric_names(task, metric)


def test_split_by_format():
    assert load({"dataset": {"format": "PyG-TUDataset", "name": "x"}}).config.dataset.split_mode == "random"
    assert load({"dataset": {"format": "OGB", "name": "x"}}).config.dataset.split_mode == "standard"


def test_every_section_and_key_is_described():
    for key in all_keys():
        *path, name = key.split(".")
        assert section_of(path).model_fields[name].description, key
        assert section_of(path).__doc__


def test_schema_is_printed_as_json(capsys):
    assert main(["schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert {"dataset", "posenc_LapPE", "topomask"} <= set(schema["properties"])
    assert schema["$defs"]["OptimConfig"]["properties"]["base_lr"]["exclusiveMinimum"] == 0


def test_list_prints_names_and_sources(capsys):
    assert main(["list"]) == 0
    everything = capsys.readouterr().out
    assert main(["list", "convolutions"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "convolutions"
    assert all(line in everything for line in lines)
    assert any("GCN " in line and "torch_geometric.nn.conv.gcn_conv.GCNConv (torch_geometric" in line for line in lines)
    assert "pyg_topomask.nn.attention.grf.GRFAttention (pyg_topomask" in everything
    assert main(["list", "convolution"]) == 1
    assert "Did you mean 'convolutions'?" in capsys.readouterr().err


def test_check_takes_overrides_for_all_files(tiny_file, capsys):
    assert main(["check", str(tiny_file.parent), "gt.layers=2"]) == 0
    assert main(["check", str(tiny_file), "gt.layers=0"]) == 1
    assert "command line: gt.layers" in capsys.readouterr().out
    assert main(["check", str(tiny_file), "gt.layers", "2"]) == 1
    assert "gt.layers is a key, not a file: 'check' takes settings as gt.layers=VALUE" in capsys.readouterr().err
    assert main(["check", "gt.layers=2"]) == 1
    assert "needs a config file" in capsys.readouterr().err


def test_check_of_a_folder_ends_in_a_summary(tiny_file, capsys):
    (tiny_file.parent / "deeper").mkdir()
    (tiny_file.parent / "deeper" / "bad.yaml").write_text("dataset: 3\n")
    assert main(["check", str(tiny_file.parent)]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "2 configs: 1 ok, 1 with errors"


def test_names_and_spellings_of_point_clouds():
    values = {"dataset": {"format": "PyG-S3DISOnDisk"}, "metric_best": "mIoU"}
    values["gt"] = {"sparse": {"kq_dim": "none", "val_dim": "none"}}
    config = load(values).config
    assert (config.dataset.format, config.dataset.name, config.metric_best) == ("PyG-S3DIS", "Area_6", "miou")
    assert (config.gt.sparse.kq_dim, config.gt.sparse.val_dim) == (None, None)
    assert load({"dataset": {"format": "PyG-ShapeNet"}}).config.dataset.name == "all"
    assert load({"dataset": {"format": "PyG-ShapeNet", "name": "Bag"}}).config.dataset.name == "Bag"
    with pytest.raises(ConfigError, match=r"dataset\.name: this key is required"):
        load({"dataset": {"format": "PyG-ZINC"}})
