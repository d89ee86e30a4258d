"""For each family of data sets in GraphGPS's configs, the model is built and trained on graphs with its attributes."""

import pytest
import torch
from torch_geometric.data import Batch

from pyg_topomask.nn import FullAttention
from pyg_topomask.nn.encoder import RelativeWalkBias
from pyg_topomask.run.data.fakes import fake_graphs
from pyg_topomask.run.data.features import width
from pyg_topomask.run.data.formats import LoadedDataset
from pyg_topomask.run.data.formats.clouds import ROOMS
from pyg_topomask.run.data.loaders import loaders, prepare
from pyg_topomask.run.model.attentions import attentions_of
from pyg_topomask.run.model.build import build_model, convs_of, sized
from pyg_topomask.run.model.sampling import build_sampling_transforms
from pyg_topomask.run.runner import check_config
from pyg_topomask.run.task import Task, classification
from pyg_topomask.run.training.lightning_module import GraphModule
from pyg_topomask.run.training.optim import build_optimizer

GATED = "CustomGatedGCN+Transformer"
BOND, LINEAR, DUMMY = (
    {"edge_encoder": True, "edge_encoder_name": name} for name in ("Bond", "LinearEdge", "DummyEdge")
)
TEXAS = {
    "format": "PyG-WebKB",
    "name": "texas",
    "task": "node",
    "split_mode": "random",
    "node_encoder_name": "LinearNode+EquivStableLapPE",
}
TYPES = {
    "edge_encoder": True,
    "edge_encoder_name": "TypeDictEdge",
    "node_encoder_num_types": 28,
    "edge_encoder_num_types": 4,
}
ZINC = {"format": "PyG-ZINC", "name": "subset", "task_type": "regression", **TYPES}
STEPS = {"enable": True, "model": "Linear", "dim_pe": 4, "raw_norm_type": "BatchNorm", "kernel": {"times": [1, 2, 3]}}
EIGEN = {"eigen": {"max_freqs": 3}}
LAPLACE = {"enable": True, "model": "DeepSet", "layers": 2, "dim_pe": 4, **EIGEN}
TRANSFORMER = LAPLACE | {"model": "Transformer", "n_heads": 2, "post_layers": 1}
SIGN_NET = LAPLACE | {"model": "MLP", "post_layers": 2, "phi_hidden_dim": 6, "phi_out_dim": 2}
STABLE = {"enable": True, "raw_norm_type": "batchnorm", **EIGEN}
GRAPHORMER = {"enable": True, "num_spatial_types": 5, "num_in_degrees": 8, "num_out_degrees": 8}
REGRESSION = Task("graph", "regression", 1)
CITY = {"format": "PyG-CityNetwork", "name": "Paris", "task": "node", "node_encoder_name": "CityNetworkNode", **DUMMY}
SPARSE = {"k": 2, "kq_dim": 5, "val_dim": 34, "head_agg": "none"}
BUDGET = {"loss_fun": "weighted_cross_entropy", "auto_satisfy_param_budget": True, "param_budget": 60_000}


def alone(conv, **more):
    return {"layer_type": conv, "layers_mp": 2, "dim_inner": 16, "residual": True, "act": "gelu", **more}


def voc(positional, sections):
    data = {"format": "PyG-VOCSuperpixels", "name": "edge_wt_region_boundary", "slic_compactness": 30}
    encoders = {"node_encoder_name": f"VOCNode+{positional}", "edge_encoder": True, "edge_encoder_name": "VOCEdge"}
    return {"dataset": data | encoders, "gnn": {"head": "inductive_node", "layers_post_mp": 2}, **sections}


FAMILIES = {
    "molecules": (
        {
            "dataset": {"format": "OGB", "name": "peptides-functional", "node_encoder_name": "Atom+LapPE+RWSE", **BOND},
            "posenc_LapPE": LAPLACE,
            "posenc_RWSE": STEPS,
            "gt": {"layer_type": "CustomGatedGCN+Primphormer"},
            "topomask": {"num_virtual": 3, "rank": 3},
        },
        Task("graph", "multilabel", 10),
    ),
    "molecules, signs": (
        {
            "dataset": {"format": "OGB", "name": "ogbg-molpcba", "node_encoder_name": "Atom+SignNet", **BOND},
            "posenc_SignNet": SIGN_NET,
            "gnn": {"head": "san_graph"},
        },
        Task("graph", "multilabel", 128),
    ),
    "superpixels": (voc("LapPE", {"posenc_LapPE": TRANSFORMER}), classification("node", 21)),
    "contacts": (
        {
            "dataset": {
                "format": "OGB",
                "name": "PCQM4Mv2Contact-shuffle",
                "task": "edge",
                "node_encoder_name": "Atom+EquivStableLapPE",
                **BOND,
            },
            "posenc_EquivStableLapPE": STABLE,
            "gnn": {"head": "inductive_edge"},
            "metric_best": "mrr",
        },
        Task("edge", "binary", 1, ranked=True),
    ),
    "ZINC": (
        {
            "dataset": ZINC | {"node_encoder_name": "TypeDictNode+LapPE+RWSE"},
            "posenc_LapPE": LAPLACE | {"raw_norm_type": "BatchNorm"},
            "posenc_RWSE": STEPS | {"model": "mlp", "layers": 2},
            "model": {"loss_fun": "l1", "graph_pooling": "add"},
        },
        REGRESSION,
    ),
    "ZINC, relative walks": (
        {
            "dataset": ZINC | {"node_encoder_name": "TypeDictNode+RRWP"},
            "posenc_RRWP": {"enable": True, "kernel": {"times_func": "range(4)"}},
            "model": {"loss_fun": "l1"},
            "gt": {"layer_type": "GINE+BiasedTransformer"},
        },
        REGRESSION,
    ),
    "ZINC, Graphormer": (
        {
            "dataset": ZINC | {"node_encoder_name": "TypeDictNode+GraphormerBias"},
            "posenc_GraphormerBias": GRAPHORMER,
            "graphormer": {"use_graph_token": True},
            "model": {"loss_fun": "l1", "graph_pooling": "graph_token"},
            "gt": {"layer_type": "GINE+BiasedTransformer"},
        },
        REGRESSION,
    ),
    "ZINC, other encodings": (
        {
            "dataset": ZINC | {"node_encoder_name": "TypeDictNode+HKdiagSE+ElstaticSE", "node_encoder_bn": True},
            "posenc_HKdiagSE": STEPS,
            "posenc_ElstaticSE": {"enable": True, "model": "Linear", "dim_pe": 4},
            "model": {"loss_fun": "l1"},
            "gt": {"layer_type": "GINE+Performer"},
        },
        REGRESSION,
    ),
    "CIFAR10": (
        {
            "dataset": {"format": "PyG-GNNBenchmarkDataset", "name": "CIFAR10", "node_encoder_name": "LapPE", **LINEAR},
            "posenc_LapPE": LAPLACE,
        },
        classification("graph", 10),
    ),
    "MalNetTiny": (
        {
            "dataset": {"format": "PyG-MalNetTiny", "name": "LocalDegreeProfile", "node_encoder": False, **DUMMY},
            "gnn": {"layers_pre_mp": 1, "batchnorm": True},
            "gt": {"layer_type": "CustomGatedGCN+Exphormer"},
            "prep": {"exp_deg": 2, "num_virt_node": 1},
        },
        classification("graph", 5),
    ),
    "PATTERN": (
        {
            "dataset": {"format": "PyG-GNNBenchmarkDataset", "name": "PATTERN", "node_encoder_name": "LapPE", **DUMMY},
            "posenc_LapPE": LAPLACE,
            "gnn": {"head": "inductive_node"},
            "model": {"loss_fun": "weighted_cross_entropy"},
            "metric_best": "accuracy-SBM",
        },
        classification("node", 2),
    ),
    "PATTERN, SAN": (
        {
            "dataset": {"format": "PyG-GNNBenchmarkDataset", "name": "PATTERN", "node_encoder_name": "LapPE", **DUMMY},
            "posenc_LapPE": TRANSFORMER,
            "model": {"type": "SANTransformer", "loss_fun": "weighted_cross_entropy"},
            "gt": {"layer_type": "SANLayer", "full_graph": True, "gamma": 1e-2},
            "gnn": {"head": "inductive_node"},
            "metric_best": "accuracy-SBM",
        },
        classification("node", 2),
    ),
    "WebKB": (
        {
            "dataset": TEXAS,
            "posenc_EquivStableLapPE": STABLE,
            "gt": {"layer_type": "GCN+Transformer"},
        },
        classification("node", 5),
    ),
    "WebKB, Exphormer's": (
        {
            "dataset": {**TEXAS, **DUMMY},
            "posenc_EquivStableLapPE": STABLE,
            "model": {"type": "MultiModel"},
            "gt": {"layer_type": "CustomGatedGCN+Exphormer", "layer_norm": True, "batch_norm": False},
            "prep": {"exp_deg": 2, "add_edge_index": False},
        },
        classification("node", 5),
    ),
    "City-Networks": (
        {
            "dataset": CITY,
            "model": BUDGET,
            "gt": {"layer_type": "CustomGatedGCN+SparseAttention", "dim_hidden": 68, "sparse": SPARSE},
            "gnn": {"dim_inner": 68, "layers_post_mp": 2},
        },
        classification("node", 10),
    ),
    "City-Networks, Exphormer's": (
        {
            "dataset": CITY,
            "model": BUDGET | {"type": "MultiModel"},
            "gt": {"layer_type": "CustomGatedGCN+Exphormer", "layer_norm": True, "batch_norm": False},
            "prep": {"exp_deg": 3, "num_virt_node": 3},
        },
        classification("node", 10),
    ),
    "City-Networks, GAT": (
        {"dataset": CITY, "model": BUDGET | {"type": "custom_gnn"}, "gnn": alone("gatconv", batchnorm=True)},
        classification("node", 10),
    ),
    "superpixels, GCN": (
        voc("LapPE", {"posenc_LapPE": LAPLACE, "model": {"type": "custom_gnn"}})
        | {"gnn": alone("gcnconv", head="inductive_node")},
        classification("node", 21),
    ),
    "rooms": (
        {
            "dataset": {"format": "PyG-S3DISOnDisk", "node_encoder_name": "LinearNode", **DUMMY},
            "model": {"loss_fun": "weighted_cross_entropy"},
            "gt": {"layer_type": "CustomGatedGCN+SparseAttention", "sparse": SPARSE | {"val_dim": 8}},
            "gnn": {"head": "inductive_node", "layers_post_mp": 2},
            "metric_best": "mIoU",
        },
        ROOMS,
    ),
    "rooms, GINE": (
        {
            "dataset": {"format": "PyG-S3DISOnDisk", "node_encoder_name": "LinearNode", **DUMMY},
            "model": {"type": "custom_gnn", "loss_fun": "weighted_cross_entropy"},
            "gnn": alone("gineconv", head="default", layers_post_mp=2),
            "metric_best": "mIoU",
        },
        ROOMS,
    ),
    "ppa": (
        {
            "dataset": {
                "format": "OGB",
                "name": "ogbg-ppa",
                "node_encoder_name": "PPANode",
                "edge_encoder": True,
                "edge_encoder_name": "PPAEdge",
                "edge_encoder_bn": True,
            },
            "gt": {"layer_type": "CustomGatedGCN+Performer"},
        },
        classification("graph", 37),
    ),
    "code2": (
        {
            "dataset": {
                "format": "OGB",
                "name": "ogbg-code2",
                "task_type": "subtoken_prediction",
                "node_encoder_name": "ASTNode",
                "edge_encoder": True,
                "edge_encoder_name": "ASTEdge",
            },
            "gnn": {"head": "ogb_code_graph"},
        },
        Task("graph", "subtoken", 9, sequence_length=5, vocabulary=(*"abcdefg", "unknown", "end")),
    ),
}


def targets(graph, task, label):
    rows = graph.num_nodes if task.level == "node" else 1
    if task.kind == "subtoken":
        graph.y, graph.y_arr = ["a", "b"], torch.tensor([[0, 1, 8, 8, 8]])
    elif task.kind in ("binary", "multiclass"):
        graph.y = (torch.arange(rows) + label) % task.num_classes
    else:
        graph.y = ((torch.arange(rows * task.num_outputs) + label) % 2).view(rows, -1).float()
    return graph


def fake_dataset(config, task):
    """One graph if its nodes are split, else four training graphs and two for each other part."""
    single = config.dataset.split_mode == "random" or config.dataset.format == "PyG-CityNetwork"
    graphs = fake_graphs(config, 1 if single else 8)
    if single:  # enough nodes for three parts
        graphs = [graphs[0].clone()]
        graphs[0].x = graphs[0].x.repeat(5, 1)
        edges = graphs[0].edge_index
        graphs[0].edge_index = torch.cat([edges + 4 * part for part in range(5)], dim=1)
        for number, name in enumerate(("train_mask", "val_mask", "test_mask")):
            graphs[0][name] = torch.arange(20) % 3 == number
    graphs = [targets(graph, task, label) for label, graph in enumerate(graphs)]
    parts = None if single else (torch.arange(4), torch.arange(4, 6), torch.arange(6, 8))
    return LoadedDataset(graphs, task, parts)


@pytest.mark.parametrize("family", FAMILIES)
def test_family_is_built_and_trained(family):
    source, task = FAMILIES[family]
    gt = {"layer_type": GATED, "layers": 2, "n_heads": 2, "dim_hidden": 16, "attn_dropout": 0.1}
    source = {"model": {}, **source, "gt": gt | source.get("gt", {}), "train": {"batch_size": 2}}
    config = check_config(source)[0].config
    dataset = fake_dataset(config, task)
    splits = prepare(config, dataset, 0, build_sampling_transforms(config, 0))
    torch.manual_seed(0)
    sizes = (splits.in_channels, task.num_outputs, splits.edge_channels, task.level)
    config = sized(config, *sizes)
    model = build_model(config, *sizes)
    module = GraphModule(model, config, task).train()
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    optimizer = build_optimizer(config, module.parameters())
    train, val, _ = loaders(config, splits, seed=0)
    batches = [*train, *train]
    for step in range(2):
        loss = module.training_step(batches[step], step)
        assert loss.isfinite()
        optimizer.zero_grad()
        loss.backward()
        without = [name for name, value in model.named_parameters() if value.grad is None]
        assert not without  # unused parameters would stop distributed training
        optimizer.step()
    assert all(bool(value.isfinite().all()) for value in model.parameters())
    changed = [name for name, value in model.named_parameters() if not torch.equal(value, before[name])]
    first = "layers.0.conv" if convs_of(config) else "layers.0.attn"
    attention = ["layers.1.attn"] if attentions_of(config) else []
    for part in ("node_encoder", first, *attention, "head"):
        assert any(name.startswith(part) for name in changed), part
    module.eval()
    for batch in val:
        module.validation_step(batch, 0)
    assert all(name.startswith("val_") for name in module.collect("val"))


def test_encodings_of_a_config_are_all_that_is_computed():
    source, _ = FAMILIES["ZINC"]
    overrides = ["gt.dim_hidden=16", "posenc_SignNet.enable=true", "dataset.node_encoder_name=TypeDictNode+RWSE"]
    config = check_config(source, overrides)[0].config
    splits = prepare(config, fake_dataset(config, REGRESSION), 0, [])
    graph = splits.train[0]
    assert graph.random_walk_diagonal.shape == (4, 3)
    assert torch.equal(graph.random_walk_diagonal[:, 0], torch.zeros(4))
    assert not any("laplacian" in name or "sign_net" in name for name in graph.to_dict())
    assert width(graph.x) == 1


def test_graphormer_attention_reads_the_bias_and_the_plain_one_does_not():
    source, _ = FAMILIES["ZINC, Graphormer"]
    config = check_config(source, ["gt.dim_hidden=16"])[0].config
    model = build_model(config, 1, 1, 1)
    assert model.bias_encoder.num_edge_types == 4
    assert model.graph_token is not None
    assert all(isinstance(layer.attn, FullAttention) and layer.attn.requires for layer in model.layers)
    overrides = ["gt.dim_hidden=16", "gt.layer_type=GINE+Transformer"]
    model = build_model(check_config(source, overrides)[0].config, 1, 1, 1)
    assert model.bias_encoder is None
    assert not any(layer.attn.requires for layer in model.layers)


def test_attention_reads_the_probabilities_of_walks():
    config = check_config(FAMILIES["ZINC, relative walks"][0], ["gt.dim_hidden=16"])[0].config
    splits = prepare(config, fake_dataset(config, REGRESSION), 0, [])
    model = build_model(config, 1, 1, 1).eval()
    graph = splits.train[0]
    assert graph.pair_relative_walk.shape == (16, 4)
    assert isinstance(model.bias_encoder, RelativeWalkBias)
    before = model(Batch.from_data_list([graph]))
    graph.pair_relative_walk = graph.pair_relative_walk.roll(1, dims=0)
    assert (model(Batch.from_data_list([graph])) - before).abs().max() > 1e-6


def test_the_last_layer_updates_no_edges():
    config = check_config(FAMILIES["CIFAR10"][0], ["gt.dim_hidden=16", f"gt.layer_type={GATED}"])[0].config
    norms = [layer.conv.norm_edge is not None for layer in build_model(config, 5, 10, 1).layers]
    assert norms == [True] * (len(norms) - 1) + [False]
