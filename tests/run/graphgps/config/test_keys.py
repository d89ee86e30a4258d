"""Every condition of a key, every key without effect, and every refusal, in a config of GraphGPS."""

import json
from itertools import groupby

import pytest

from pyg_topomask.run.cli import main
from pyg_topomask.run.errors import ConfigError
from pyg_topomask.run.graphgps.check import UNREAD, check_config, keys_without_effect, notes_of
from pyg_topomask.run.graphgps.config.load import load
from pyg_topomask.run.graphgps.config.schema import keys

PLAIN = {"dataset": {"format": "PyG-ZINC", "name": "subset"}}
CORA = (
    "metric_best=accuracy metric_agg=null model.loss_fun=cross_entropy gnn.head=default dataset.format=PyG-Planetoid "
)
CORA += "dataset.name=Cora dataset.task_type=classification dataset.node_encoder_name=LinearNode "
CORA += "dataset.edge_encoder=false gt.layer_type=GCN+None "
CONTACT = "metric_best=mrr metric_agg=null model.loss_fun=cross_entropy gnn.head=default "
CONTACT += "dataset.format=PyG-LRGBDataset dataset.name=pcqm-contact dataset.task_type=classification "
BIAS = "dataset.node_encoder_name=TypeDictNode+GraphormerBias posenc_GraphormerBias.enable=true "
BIAS += " ".join(f"posenc_GraphormerBias.num_{name}=5" for name in ("spatial_types", "in_degrees", "out_degrees"))
CUSTOM = "model.type=custom_gnn gnn.layer_type=gineconv gnn.residual=true gnn.dim_inner=64"
RRWP = "posenc_RRWP.enable=true posenc_RRWP.kernel.times_func="
EXPHORMER = "gt.layer_type=GIN+Exphormer"
REGIONS = "dataset.name=edge_wt_region_boundary"
BARE, GATED = "topomask.feed_forward=false", "gnn.layer_type=gatedgcnconv"
ALONG = "topomask.transition=attention"


@pytest.mark.parametrize(
    ("key", "unread", "read"),
    [
        ("gt.sparse.k=3", "", "gt.layer_type=GINE+SparseAttention"),
        ("gt.bigbird.block_size=2", "", "gt.layer_type=GINE+BigBird"),
        ("gt.gamma=0.1", "", "gt.layer_type=GINE+SAN"),
        ("prep.exp_deg=3", "", "gt.layer_type=GINE+Exphormer"),
        ("gnn.layers_mp=3", "", CUSTOM),
        ("gnn.act=gelu", CORA + BARE, CORA),
        ("gnn.act=gelu", CORA + BARE, CORA + f"{BARE} gt.layer_type=GIN+None"),
        ("gnn.act=gelu", f"{CUSTOM} {GATED} gnn.head=graph", f"{CUSTOM} {GATED}"),
        ("gnn.act=gelu", f"{CUSTOM} {GATED} gnn.head=graph", f"{CUSTOM} gnn.head=graph"),
        ("gnn.dropout=0.5", "", CUSTOM),
        ("gnn.dropout=0.5", "", "gnn.head=mlp_graph"),
        ("gnn.batchnorm=true", "", "gnn.layers_pre_mp=1"),
        ("gt.attn_dropout=0.5", "gt.layer_type=GINE+pyg.SGFormer", ""),
        ("model.param_budget=90000", "", "model.auto_satisfy_param_budget=true"),
        ("model.graph_pooling=max", CORA, ""),
        ("model.edge_decoding=dot", "", CONTACT),
        ("dataset.resample_negative=true", "", CONTACT),
        ("train.batch_size=7", CORA, CORA + "train.sampler=neighbor"),
        ("train.shuffle=false", CORA, CORA + "train.sampler=cluster"),
        ("prep.add_self_loops=true", "", CORA),
        ("train.num_parts=3", "", CORA + "train.sampler=cluster"),
        ("train.neighbor_sizes=[3]", "", CORA + "train.sampler=neighbor"),
        ("dataset.split=[8,1,1]", "", "dataset.split_mode=fixed"),
        ("dataset.split_seed=3", "", "dataset.split_mode=random"),
        ("dataset.split_seed=3", "dataset.split_mode=fixed", "dataset.split_mode=cv-kfold-5"),
        ("dataset.split_dir=x", "", None),
        ("dataset.node_encoder_num_types=28", "dataset.node_encoder_name=LapPE", ""),
        ("dataset.edge_encoder_num_types=4", "dataset.edge_encoder_name=LinearEdge", ""),
        ("dataset.edge_encoder_name=LinearEdge", "dataset.edge_encoder=false gt.layer_type=GIN+GRF", ""),
        ("dataset.edge_encoder=true", "gt.layer_type=GIN+KMIP", "gt.layer_type=None+SAN"),
        ("dataset.edge_encoder=true", "gt.layer_type=GIN+None", "gt.layer_type=GAT+None"),
        ("dataset.edge_encoder=true", f"{CUSTOM} gnn.layer_type=gatconv", CUSTOM),
        ("dataset.edge_encoder=true", f"{EXPHORMER} prep.add_edge_index=false", EXPHORMER),
        ("dataset.edge_encoder=true", "gt.layer_type=GIN", f"gt.layer_type=GIN+BiasedTransformer {BIAS}"),
        ("pretrained.freeze_main=true", "", None),
        ("wandb.project=x", "wandb.use=false", ""),
        ("posenc_SignNet.dim_pe=3", "", None),
        ("posenc_SignNet.enable=true", "", None),
        ("posenc_RWSE.layers=3", "", "posenc_RWSE.model=mlp"),
        ("posenc_LapPE.n_heads=2", "", "posenc_LapPE.model=Transformer"),
        ("optim.momentum=0.5", "", "optim.optimizer=sgd"),
        ("optim.num_warmup_epochs=2", "optim.scheduler=cos", ""),
        ("optim.steps=[3]", "", "optim.scheduler=step"),
        ("optim.lr_decay=0.5", "", "optim.scheduler=plateau"),
        ("optim.min_lr=0.5", "", "optim.scheduler=reduce_on_plateau"),
        ("optim.clip_grad_norm_value=5", "optim.clip_grad_norm=false", ""),
    ],
)
def test_a_key_has_an_effect_where_it_is_read(molecules, key, unread, read):
    name = key.split("=")[0]
    model_type = "model.type=MultiModel" if unread.endswith("GIN") else "model.type=GPSModel"
    assert {name, name.split(".")[0]} & unread_keys(molecules, [model_type, *unread.split(), key])
    if read is not None:
        assert name not in unread_keys(molecules, [*read.split(), key])


def unread_keys(source, settings):
    """The keys without effect of a config that was checked."""
    return {name for names in keys_without_effect(check_config(source, settings)[0]).values() for name in names}


OURS = [
    ("topomask.num_walks=3", "None+Linear", "None+GRF"),
    ("topomask.redraw=1", "None+Linear", "None+GKAT"),
    ("topomask.independent=false", "None+Linear", "None+GKAT"),
    ("topomask.decay=0.5", "None+GRF", "None+GKAT"),
    ("topomask.tables=head", "None+GRF", None),
    ("topomask.num_features=8", "None+Linear", "None+Linear topomask.kernel=softmax_rf"),
    ("topomask.num_tables=2", "None+GKAT", "None+GRF"),
    ("topomask.diagonal=corrected", "None+GKAT", "None+GRF"),
    ("topomask.mask_heat.tol=0.1", "None+GRF", None),
    ("topomask.spanning_tree=minimum", "None+Masked", None),
    ("topomask.eta=0.5", "None+GRF", "None+Primphormer"),
    ("topomask.num_samples=9", "None+Primphormer", "None+Primal"),
    ("topomask.transition=attention", "None+GRF", None),
]


@pytest.mark.parametrize(("key", "unread", "read"), OURS)
def test_our_own_keys_are_refused_where_nothing_reads_them(key, unread, read):
    redraw = {"redraw": 2} if "transition" in key else {}
    values = PLAIN | {"model": {"loss_fun": "l1"}, "topomask": redraw, "gt": {"layer_type": unread}}
    with pytest.raises(ConfigError, match=f"{key.split('=')[0]}: {UNREAD}; leave it out"):
        check_config(values, [key])
    assert check_config(values, [key, f"gt.layer_type={unread}"])[1][0] == key.split("=")[0]
    if read is not None:
        assert check_config(PLAIN | {"model": {"loss_fun": "l1"}}, [key, *f"gt.layer_type={read}".split()])[1] == []


def test_keys_without_effect_are_accepted_with_any_value(capsys):
    for key in (key for key in keys() if key.no_effect_because):
        parsed = load(PLAIN, [f"{key.name}=[1, x]"])
        assert keys_without_effect(parsed)[key.no_effect_because] == [key.name]
        assert parsed.config == load(PLAIN).config
        assert parsed.config.model_dump_json() == load(PLAIN).config.model_dump_json()
    assert main(["list", "keys"]) == 0
    text = capsys.readouterr().out
    assert all(f" {key.name}" in text for key in keys() if key.no_effect_because != "")


def test_a_fixed_key_takes_one_value():
    fixed = {key.name: key.field.default for key in keys() if key.no_effect_because == ""}
    assert fixed["gt.residual"] is True
    assert len(fixed) > 20
    for name, value in fixed.items():
        assert load(PLAIN, [f"{name}={json.dumps(value)}"]).config == load(PLAIN).config
        other = {"true": "1", "false": "true"}.get(json.dumps(value), "other")
        with pytest.raises(ConfigError) as caught:
            load(PLAIN, [f"{name}={other}"])
        expected = f"command line: {name}: must be {json.dumps(value)}: nothing else is provided (got "
        assert str(caught.value).startswith(expected)


def test_check_names_the_keys_without_effect(molecules, capsys):
    assert main(["check", str(molecules), "gt.sparse.k=3", "posenc_SignNet.dim_pe=3"]) == 0
    lines = [line.removeprefix("note   ") for line in capsys.readouterr().out.splitlines()]
    assert lines[0].startswith("ok")
    assert set(lines[1:]) == {
        "no effect: dataset.transductive (known from the data)",
        "no effect: gnn.agg, gnn.normalize_adj (GraphGym's own network is not used)",
        f"no effect: model.edge_decoding, gt.sparse.k, gnn.layers_post_mp, gnn.batchnorm, posenc_SignNet ({UNREAD})",
    }


def test_check_gives_notes_once_and_errors_last(molecules, tmp_path, capsys):
    text = molecules.read_text()
    for name in ("a", "c"):
        (tmp_path / "many" / f"{name}.yaml").parent.mkdir(exist_ok=True)
        (tmp_path / "many" / f"{name}.yaml").write_text(text)
    (tmp_path / "many" / "b.yaml").write_text("gt: {layers: many}")
    assert main(["check", str(tmp_path / "many")]) == 1
    lines = capsys.readouterr().out.splitlines()
    kinds = [line.partition(" ")[0] for line in lines]
    assert [kind for kind, _ in groupby(kinds)] == ["ok", "note", "error", "", "3"]
    assert "note   2 of 3: no effect: dataset.transductive (known from the data)" in lines
    assert "gt.layers: " in lines[-2]
    assert lines[-1] == f"3 configs: 2 ok, 1 with errors, the first in {tmp_path / 'many' / 'b.yaml'}"


def test_distances_of_scores_of_edges_are_noted(molecules):
    contacts = CONTACT.replace("cross_entropy", "l1").split()
    encoders = ["dataset.node_encoder_name=LinearNode", "dataset.edge_encoder_name=LinearEdge"]
    parsed, _ = check_config(molecules, [*contacts, *encoders])
    assert "model.loss_fun: l1 of raw scores" in notes_of(parsed)[-1]


def test_another_task_than_that_of_the_data_is_noted(tiny):
    given = ["dataset.task=node", "dataset.task_type=classification_multilabel"]
    assert notes_of(check_config(tiny, [*given, "metric_best=accuracy"])[0]) == [
        "no effect: dataset.task node (circle has targets of graphs)",
        "no effect: dataset.task_type classification_multilabel (circle has binary targets)",
    ]
    assert notes_of(check_config(tiny)[0]) == []


REFUSED = [
    ("gt.layers=true", r"gt\.layers: must not be true or false \(got True\)"),
    ("dataset.split=[true,0.1,0.1]", r"dataset\.split: must not be true or false"),
    ("dataset.split=[0.8,0.2]", r"dataset\.split: .* at least 3 items"),
    ("dataset.split=[0.9,0.1,0.1]", "add up to at most 1"),
    ("dataset.split_mode=cv-kfold-2", "at least 3 folds"),
    ("dataset.split_mode=cv-kfold-5 dataset.split_index=5", r"must be below the number of folds \(got 5\)"),
    ("dataset.split_mode=errica run_multiple_splits=[0,10]", r"run_multiple_splits: must be below .*\(got 10\)"),
    ("dataset.node_encoder_name=CityNetworkNode", r"reads the coordinates of PyG-CityNetwork \(got PyG-ZINC\)"),
    ("dataset.node_encoder_num_types=0", "TypeDictNode needs the number of types"),
    ("dataset.edge_encoder_num_types=0", "TypeDictEdge needs the number of types"),
    ("dataset.node_encoder_name=Lienar", "no encoder is called 'Lienar'; there are .*Did you mean 'LinearNode'"),
    ("dataset.edge_encoder_name=Bond+ER", r"edge_encoder_name: no encoder is called 'Bond\+ER'"),
    ("dataset.node_encoder_name=TypeDictNode+LinearNode", "both encode node features: choose one"),
    ("gt.layer_type=GCN__exp+None", "no convolution is called 'GCN__exp'"),
    ("gt.layer_type=GCN", r"joined by '\+'"),
    ("gt.layer_type=GCN+GFR", "no attention is called 'GFR'; there are .*Did you mean 'GRF'"),
    ("gt.layer_type=GCN+Hop", "'Hop' is a mask and no attention: use Masked, with topomask.mask=hop"),
    ("gt.layer_type=GNC+GRF", "no convolution is called 'GNC'; there are .*Did you mean 'GIN'"),
    ("gt.layer_type=GINE+GRF dataset.edge_encoder=false", "GINE needs edge features: set dataset.edge_encoder to true"),
    ("gt.layer_type=GINE+BiasedTransformer", "needs posenc_GraphormerBias"),
    ("gt.layer_type=GINE+None model.graph_pooling=graph_token", "graph_token needs an attention"),
    ("topomask.layer_norm_mode=node", r"topomask\.layer_norm_mode: nothing reads it"),
    ("topomask.layer_norm_mode=token", r"topomask\.layer_norm_mode: must be one of graph, node"),
    (
        "topomask.layer_norm_mode=node gt.layer_norm=true gt.batch_norm=false model.type=MultiModel",
        "layer_norm_mode: nothing reads it",
    ),
    ("topomask.pre_norm=true", r"adds its input itself.*pre_norm=False"),
    ("gt.layer_type=GINE+GRF topomask.kernel=rleu", r"topomask\.kernel: .*must be one of relu.*\(got 'rleu'\)"),
    ("gt.layer_type=GINE+KMIP gt.sparse.head_agg=none gt.sparse.val_dim=5", r"must be 'channels' \(got 5, 4 and 64"),
    ("gt.sparse.head_agg=None", r"gt\.sparse\.head_agg: must be one of Linear, none \(got 'None'\)"),
    ("topomask.redraw=epoch", r"topomask\.redraw: "),
    ("topomask.redraw=true", r"topomask\.redraw: must not be true or false"),
    (f"gt.layer_type=GINE+GKAT {ALONG}", r"transition: only walks on whole graphs that are redrawn can follow"),
    (f"{CORA} train.sampler=cluster gt.layer_type=GCN+GKAT topomask.redraw=1 {ALONG}", "that are redrawn can follow"),
    ("dataset.format=PyG-ZNIC", r"dataset\.format: .*Did you mean 'PyG-ZINC'"),
    ("dataset.name=sub", r"dataset\.name: .*there are subset, full"),
    ("dataset.format=OGB dataset.name=ogbg-molhv", r"dataset\.name: .*Did you mean 'ogbg-molhiv'"),
    ("dataset.format=PyG-TUDataset dataset.name=..", r"dataset\.name: must be a plain name"),
    (f"dataset.format=PyG-VOCSuperpixels {REGIONS}", r"dataset\.slic_compactness: .*30 only"),
    ("dataset.split_mode=errica", r"dataset\.split_mode: .*PyG-TUDataset"),
    (f"{CORA} dataset.split_mode=standard dataset.format=PyG-Amazon dataset.name=photo", r"split_mode: .*no standard"),
    ("dataset.use_node_attr=true", r"dataset\.use_node_attr: only PyG-TUDataset has it"),
    ("dataset.dir=none/here", r"dataset\.dir: there is no folder none/here"),
    ("dataset.name=../x", "must be a plain name"),
    ("dataset.format=OGB dataset.name=ogbg-molpcba dataset.split_mode=cv-stratifiedkfold-5", "folds need classes"),
    ("dataset.format=OGB dataset.name=ogbl-collab dataset.split_mode=random", "one graph with split edges"),
    (
        "dataset.format=PyG-TUDataset dataset.name=ENZYMES dataset.split_mode=cv-stratifiedkfold-5 metric_agg=null "
        "dataset.task_type=regression model.loss_fun=cross_entropy metric_best=accuracy",
        r"(?s)folds need classes.*loss_fun: .*use l1.*metric_best: .* there are loss, mae",
    ),
    ("dataset.format=PyG-GNNBenchmarkDataset dataset.name=CSL", "CSL has no standard split"),
    (f"{CORA} dataset.split_mode=cv-kfold-5", "folds need several graphs, and Cora is one"),
    (f"{CORA} dataset.split_index=1", r"must be below the number of splits of Cora, 1 \(got 1\)"),
    ("dataset.format=PyG-WebKB dataset.name=texas dataset.split_index=10", r"splits of texas, 10 \(got 10\)"),
    ("train.sampler=random_partition", "takes parts of one large graph, which PyG-ZINC subset is not"),
    ("model.type=SANTransformer", r"gt\.layer_type: .* takes SANLayer.*\(got 'CustomGatedGCN\+Transformer'\)"),
    ("model.type=Graphormer", r"model\.type: must be one of GPSModel, .*\(got 'Graphormer'\).*None\+Biased"),
    ("model.type=custom_gnn", r"custom_gnn takes gatedgcnconv, gineconv, gcnconv, gatconv \(got 'generalconv'\)"),
    ("model.type=custom_gnn gnn.layer_type=gineconv", r"gnn\.residual: custom_gnn .* with residuals only"),
    ("model=3", r"model: .*valid dictionary"),
    ("model.loss_fun=cross_entropy", r"model\.loss_fun: "),
    ("metric_best=auc metric_agg=null", "the task has no 'auc'; there are .*mae"),
    ("metric_agg=argmax", "argmax of mae would choose the worst epoch"),
    ("devices=4", r"devices: must be 1: use torchrun .* \(got 4\)"),
    ("prep.exp_algorithm=Random", "must be one of Random-d, Random-d-2, Hamiltonian"),
    ("posenc_LapPE.enable=false", r"posenc_LapPE\.enable is false, and dataset\.node_encoder_name contains LapPE"),
    ("posenc_LapPE.dim_pe=48", "encodings of width 64 leave no column of gt.dim_hidden 64"),
    ("posenc_RWSE.model=none", r"posenc_RWSE\.model: must be one of Linear, linear, MLP, mlp \(got 'none'\)"),
    ("posenc_LapPE.model=mlp", r"posenc_LapPE\.model: must be one of DeepSet, Transformer"),
    ("posenc_RWSE.kernel.times_func=''", "needs times, or times_func"),
    ("posenc_RWSE.kernel.times_func=range(3)", "whole numbers from 1"),
    ("posenc_RWSE.kernel.times_func='[1,10001]'", "whole numbers from 1 to 10000"),
    (f"dataset.node_encoder_name=TypeDictNode+RRWP {RRWP}range(4)", "excludes GraphormerBias"),
    (f"gt.layer_type=GINE+BiasedTransformer {RRWP}'[0.5]' dataset.node_encoder_name=RRWP", "whole numbers from 0"),
    (f"{BIAS} posenc_GraphormerBias.num_in_degrees=null", "num_in_degrees, num_out_degrees are needed"),
    ("gnn.dim_inner=16", r"must equal gt\.dim_hidden \(got 16 and 64\)"),
    ("gt.dim_edge=32", r"must equal gt\.dim_hidden \(got 32 and 64\)"),
    ("gt.n_heads=3", r"must divide gt\.dim_hidden \(got 3 and 64\)"),
    ("gt.layer_norm=true", "both true"),
    ("gnn.head=node", r"gnn\.head: node is for nodes; subset has graphs"),
    ("gnn.head=nodes", "no head is called 'nodes'; there are default, .*Did you mean 'node'"),
    ("gnn.head=ogb_code_graph", "belong together"),
    ("train.mode=inference-only", "needs the folder of a finished run"),
    ("train.mode=log-attn-weights", "train.mode: must be one of custom, standard, inference-only"),
    ("train.eval_period=21", "exceeds optim.max_epoch 20: there would be no evaluation"),
    ("val.sampler=cluster", r"must be full_batch or the value of train\.sampler, full_batch \(got cluster\)"),
]


MASKS = [
    ("topomask.mask=grf topomask.max_length=4 topomask.mask_grf.max_length=4", "max_length gives the same setting"),
    ("topomask.mask=grf topomask.mask_grf.max_lenght=4", r"Did you mean 'topomask\.mask_grf\.max_length'"),
    ("topomask.mask=grf topomask.mask_grf.max_length=-1", r"mask_grf\.max_length: .*at least 0.*\(got -1\)"),
    ("topomask.mask=grf topomask.mask_grf.symmetric=3.5", r"mask_grf\.symmetric: .*valid boolean"),
    ("topomask.mask=toeplitz", r"needs 'grid_shape'; set topomask\.mask_toeplitz\.grid_shape: .*\[8, 8\]"),
    ("topomask.mask=toeplitz topomask.mask_toeplitz.grid_shape=8", r"mask_toeplitz\.grid_shape: .*Sequence"),
    ("topomask.mask=heat topomask.mask_heat.time=40", r"mask_heat\.time: .*below 'max_time' \(got 40.0 and 32.0\)"),
    ("topomask.mask=tree topomask.spanning_tree=deepest", r"spanning_tree: must be one of breadth_first, minimum"),
    ("topomask.mask=power_series topomask.mask_power_series.coeffs=[-1]", r"first coefficient must be positive"),
    ("topomask.mask=grf topomask.mask_grf.heads=2", r"topomask\.mask_grf\.heads: unknown key"),
    ("topomask.mask=[none,hopp]", r"no mask is called 'hopp'; .*Did you mean 'hop'"),
    ("topomask.mask=[]", r"topomask\.mask: .*at least 1"),
    ("topomask.mask=hop topomask.mask_heads=[1]", r"mask_heads: must divide the 4 heads .* \(got \[1\] for hop\)"),
    ("topomask.mask=[none,hop] topomask.mask_heads=[1,1]", r"mask_heads: must divide the 4 heads"),
    ("topomask.mask=hop topomask.mask_lr=0", r"topomask\.mask_lr: .*greater than 0"),
]


@pytest.mark.parametrize(
    ("settings", "message"), [*REFUSED, *((f"gt.layer_type=GINE+Masked {given}", message) for given, message in MASKS)]
)
def test_what_is_refused(molecules, settings, message):
    with pytest.raises(ConfigError, match=message):
        check_config(molecules, settings.split())
