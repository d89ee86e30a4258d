"""What keys mean: GraphGPS's spellings, defaults that depend on the data, and the lists of keys."""

import json

import pytest
from pydantic import BaseModel

from pyg_topomask.run.cli import main
from pyg_topomask.run.errors import ConfigError
from pyg_topomask.run.graphgps.config.load import load
from pyg_topomask.run.graphgps.config.schema import _METRIC_OF_BENCHMARK, Config, all_keys, keys, section_of
from pyg_topomask.run.graphgps.formats import FORMATS
from pyg_topomask.run.task import metric_names


def test_a_config_of_graphgps(molecules):
    config = load(molecules).config
    assert (config.optim.weight_decay, config.gt.dropout) == (1e-5, 0.0)
    assert config.gt.parts == ["CustomGatedGCN", "Transformer"]
    assert config.posenc_RWSE.kernel.numbers == list(range(1, 17))
    assert (config.posenc_LapPE.enable, config.posenc_LapPE.eigen.max_freqs) == (True, 8)
    assert config.dataset.node_encoder_parts == ["TypeDictNode", "LapPE", "RWSE"]
    assert config.dataset.split_mode == "standard"
    assert Config.model_validate(json.loads(config.model_dump_json())) == config


def test_san_is_layers_of_its_attention(molecules):
    named = load(molecules, ["model.type=SANTransformer", "gt.layer_type=SANLayer", "gt.gamma=0.1"]).config
    assert (named.gt.layer_type, named.gt.parts, named.gt.gamma) == ("None+SAN", ["SAN"], 0.1)
    assert Config.model_validate(json.loads(named.model_dump_json())) == named
    molecules.write_text(molecules.read_text().replace("layer_type: CustomGatedGCN+Transformer, ", ""))
    again = load(load(molecules, ["model.type=SANTransformer"]).config, ["gt.layers=2"]).config
    assert (again.gt.parts, again.gt.layers) == (["SAN"], 2)


def test_keys_of_exphormer_and_k_mip(molecules):
    layers = "gt.layer_type=CustomGatedGCN+Exphormer+SparseAttention gt.dim_edge=64 gt.sparse.kq_dim=5"
    prep = "prep.exp_deg=3 prep.exp_algorithm=Random-d2 prep.num_virt_node=2 posenc_ERN.enable=false"
    config = load(molecules, f"model.type=MultiModel {layers} {prep}".split()).config
    assert config.gt.parts == ["CustomGatedGCN", "Exphormer", "KMIP"]
    assert (config.prep.exp_deg, config.prep.exp_algorithm, config.gt.sparse.kq_dim) == (3, "Random-d-2", 5)
    values = {"dataset": {"format": "PyG-S3DISOnDisk"}, "metric_best": "mIoU", "gnn": {"act": "swish"}}
    config = load(values | {"gt": {"sparse": {"kq_dim": "none", "val_dim": "none"}}}).config
    assert (config.dataset.format, config.dataset.name, config.metric_best) == ("PyG-S3DIS", "Area_6", "miou")
    assert (config.gt.sparse.kq_dim, config.gt.sparse.val_dim, config.gnn.act) == (None, None, "silu")
    assert load({"dataset": {"format": "PyG-ShapeNet"}}).config.dataset.name == "all"
    assert load({"dataset": {"format": "PyG-ShapeNet", "name": "Bag"}}).config.dataset.name == "Bag"
    with pytest.raises(ConfigError, match=r"dataset\.name: this key is required"):
        load({"dataset": {"format": "PyG-ZINC"}})


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("range(4)", [0, 1, 2, 3]),
        (" range( 1, 9 ,3 ) ", [1, 4, 7]),
        ("[1, 2.5]", [1, 2.5]),
        ("(3,)", [3]),
        ("__import__('os').system('false')", "never executed"),
        ("range(1, 2**9)", "never executed"),
        ("[i for i in range(3)]", "never executed"),
        ("range(1,2,3,4)", "never executed"),
        ("range(1,9,0)", "never executed"),
        ("[True]", "never executed"),
        ("[1e999]", "never executed"),
        ("range(10000000000000000000000)", "never executed"),
        ("-" * 100_000 + "1", "never executed"),
        ("range(99999999)", "has 99999999 numbers; at most 10000"),
        ("range(-2,3)", "must not be negative"),
    ],
)
def test_times_are_read_and_never_executed(text, found):
    values = {"dataset": {"format": "OGB", "name": "ogbg-molhiv"}, "posenc_RWSE": {"kernel": {"times_func": text}}}
    if isinstance(found, list):
        assert load(values).config.posenc_RWSE.kernel.numbers == found
        return
    with pytest.raises(ConfigError, match=rf"posenc_RWSE\.kernel\.times_func: .*{found}"):
        load(values)


def test_an_inference_run_takes_its_model_from_the_finished_run():
    data = {"format": "PyG-ZINC", "name": "subset", "task_type": "regression", "node_encoder_name": "LinearNode+RWSE"}
    values = {"dataset": data, "model": {"loss_fun": "l1"}, "gt": {"n_heads": 3}}
    run = {"train": {"mode": "inference-only"}, "pretrained": {"dir": "some"}}
    assert load(values | run).config.train.is_inference
    with pytest.raises(ConfigError, match=r"gt\.n_heads: (.|\n)*posenc_RWSE"):
        load(values)


def test_the_metric_of_a_benchmark_is_one_that_its_task_has():
    found = {}
    for name, family in FORMATS.items():
        for data in family.names if name != "PyG-LongRangeDataset" else ():  # ours: it has no leaderboard
            config = Config.model_validate({"dataset": {"format": name, "name": data}})
            tasks = config.dataset.tasks
            assert any(_has(task, config.metric_best) for task in tasks), (name, data, config.metric_best)
            found[data] = config.metric_best
    some = {"ogbg-molhiv": "auc", "PATTERN": "accuracy-SBM", "pascalvoc-sp": "f1", "pcqm-contact": "mrr"}
    some |= {"ogbl-collab": "hits@50", "Minesweeper": "auc", "subset": "mae", "Cora": "accuracy"}
    assert found.items() >= some.items()
    assert {name.lower() for name in (*FORMATS, *found)} >= {*_METRIC_OF_BENCHMARK}
    for task, metric in (("classification", "accuracy"), ("regression", "mae"), ("classification_multilabel", "ap")):
        values = {"dataset": {"format": "OGB", "name": "x", "task_type": task}}
        assert load(values | {"metric_best": "auto"}).config.metric_best == metric


def _has(task, metric):
    """Whether a metric is one of the task; metric_names itself adds the one that it is given for classes."""
    labels = ("binary", "multilabel")
    fitting = {"auc": labels, "ap": labels, "accuracy-SBM": ("multiclass", "binary")}
    if metric == "miou":
        return task.level == "node"
    return task.kind in fitting[metric] if metric in fitting else metric in metric_names(task, metric)


def test_every_section_and_key_is_described():
    assert len(all_keys()) > 150
    assert [key.name for key in keys() if not key.field.description] == []
    assert all(section_of(key.name.split(".")[:-1]).__doc__ for key in keys())
    assert all(x.description for x in Config.model_fields.values() if issubclass(type(x.annotation), BaseModel))


def test_the_lists_of_keys(capsys):
    assert main(["list", "keys"]) == 0
    text = capsys.readouterr().out
    assert "  gt.layers: integer ≥ 1 and ≤ 1000; default 2\n      Number of layers.\n" in text
    assert "  dataset.format: text; required\n" in text
    assert "  run_multiple_splits: [integer ≥ 0, ...]; default []\n" in text
    assert "Factor on the learning rate. Read if optim.scheduler is step or plateau.\n" in text
    assert "Number of nodes in a block.\n" in text
    assert "Number of edge types. Read if a convolution, an attention or the bias of pairs reads encoded" in text
    assert all(f" {key}" in text for key in all_keys())
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
    assert any("GCN " in line and "torch_geometric.nn.conv.gcn_conv.GCNConv" in line for line in lines)
    row = next(line for line in everything.splitlines() if line.startswith("  Linear "))
    assert "pyg_topomask.nn.attention.masked.MaskedAttention  " in row
    assert "a mask of your choice; without" in row
