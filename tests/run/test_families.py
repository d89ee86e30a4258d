"""For each family of data sets in GraphGPS's configs, the model is built and trained on graphs with its attributes."""

from pathlib import Path

import pytest
import torch

from pyg_topomask.run.data.loaders import loaders, prepare
from pyg_topomask.run.data.source import LoadedDataset, width
from pyg_topomask.run.graphgps.check import check_config
from pyg_topomask.run.graphgps.config.load import ParsedConfig
from pyg_topomask.run.graphgps.model import build_model
from pyg_topomask.run.graphgps.parts import build_optimizer, fake_graphs, source_of
from pyg_topomask.run.graphgps.reading import experiment_of
from pyg_topomask.run.task import Task, classification
from pyg_topomask.run.training.lightning_module import GraphModule

CONFIGS = Path(__file__).parents[2] / "configs"
GATED = "CustomGatedGCN+Transformer"
REGRESSION = Task("graph", "regression", 1)
DUMMY = "dataset.edge_encoder=true dataset.edge_encoder_name=DummyEdge"
TRANSFORMER = (
    "posenc_LapPE.enable=true posenc_LapPE.model=Transformer posenc_LapPE.layers=2 posenc_LapPE.dim_pe=4 "
    "posenc_LapPE.eigen.max_freqs=3 posenc_LapPE.n_heads=2 posenc_LapPE.post_layers=1"
)
ZINC = "full/zinc"
LAPLACE = (
    "posenc_LapPE.enable=true posenc_LapPE.model=DeepSet posenc_LapPE.layers=2 posenc_LapPE.dim_pe=4 "
    "posenc_LapPE.eigen.max_freqs=3"
)
STABLE = (
    "posenc_EquivStableLapPE.enable=true posenc_EquivStableLapPE.raw_norm_type=batchnorm "
    "posenc_EquivStableLapPE.eigen.max_freqs=3"
)
WEBKB = (
    "dataset.format=PyG-WebKB dataset.name=texas dataset.task=node dataset.split_mode=random "
    f"dataset.node_encoder_name=LinearNode+EquivStableLapPE {STABLE}"
)
FAMILIES = {
    "molecules": (Task("graph", "multilabel", 10), "primphormer/peptides-func"),
    "molecules, signs": (
        Task("graph", "multilabel", 128),
        "primphormer/ogbg-molpcba dataset.node_encoder_name=Atom+SignNet "
        "posenc_SignNet.enable=true posenc_SignNet.model=MLP posenc_SignNet.layers=2 posenc_SignNet.dim_pe=4 "
        "posenc_SignNet.eigen.max_freqs=3 posenc_SignNet.post_layers=2 posenc_SignNet.phi_hidden_dim=6 "
        "posenc_SignNet.phi_out_dim=2 gnn.head=san_graph",
    ),
    "superpixels": (classification("node", 21), f"full/pascalvoc-sp {TRANSFORMER}"),
    "contacts": (
        Task("edge", "binary", 1, ranked=True),
        f"primphormer/pcqm-contact dataset.node_encoder_name=Atom+EquivStableLapPE {STABLE}",
    ),
    "ZINC": (REGRESSION, f"{ZINC} dataset.node_encoder_name=TypeDictNode+LapPE+RWSE {LAPLACE} gt.layer_type={GATED}"),
    "ZINC, relative walks": (
        REGRESSION,
        f"{ZINC} dataset.node_encoder_name=TypeDictNode+RRWP posenc_RRWP.enable=true "
        "posenc_RRWP.kernel.times_func=range(4) gt.layer_type=GINE+BiasedTransformer",
    ),
    "ZINC, Graphormer": (
        REGRESSION,
        f"{ZINC} dataset.node_encoder_name=TypeDictNode+GraphormerBias posenc_GraphormerBias.enable=true "
        "posenc_GraphormerBias.num_spatial_types=5 posenc_GraphormerBias.num_in_degrees=8 "
        "posenc_GraphormerBias.num_out_degrees=8 graphormer.use_graph_token=true "
        "model.graph_pooling=graph_token gt.layer_type=GINE+BiasedTransformer",
    ),
    "ZINC, other encodings": (
        REGRESSION,
        f"{ZINC} dataset.node_encoder_name=TypeDictNode+HKdiagSE+ElstaticSE dataset.node_encoder_bn=true "
        "posenc_HKdiagSE.enable=true posenc_HKdiagSE.model=Linear posenc_HKdiagSE.dim_pe=4 "
        "posenc_HKdiagSE.raw_norm_type=BatchNorm posenc_HKdiagSE.kernel.times=[1,2,3] posenc_ElstaticSE.enable=true "
        "posenc_ElstaticSE.model=Linear posenc_ElstaticSE.dim_pe=4 gt.layer_type=GINE+Performer",
    ),
    "MalNetTiny": (
        classification("graph", 5),
        "exphormer/malnet-tiny dataset.node_encoder=false prep.exp=true prep.exp_deg=2 prep.num_virt_node=1",
    ),
    "PATTERN, SAN": (
        classification("node", 2),
        f"dataset.format=PyG-GNNBenchmarkDataset dataset.name=PATTERN dataset.node_encoder_name=LapPE {DUMMY} "
        f"{TRANSFORMER} model.type=SANTransformer "
        "model.loss_fun=weighted_cross_entropy gt.layer_type=SANLayer gt.full_graph=true gt.gamma=0.01 "
        "gnn.head=inductive_node metric_best=accuracy-SBM",
    ),
    "WebKB, Exphormer's": (
        classification("node", 5),
        f"{WEBKB} {DUMMY} model.type=MultiModel gt.layer_type=CustomGatedGCN+Exphormer gt.layer_norm=true "
        "gt.batch_norm=false prep.exp_deg=2 prep.add_edge_index=false",
    ),
    "City-Networks": (
        classification("node", 10),
        "kmip/paris model.param_budget=60000 gt.sparse.k=2 gt.sparse.val_dim=34",
    ),
    "rooms, GINE": (
        classification("node", 13),
        f"dataset.format=PyG-S3DISOnDisk dataset.node_encoder_name=LinearNode {DUMMY} model.type=custom_gnn "
        "model.loss_fun=weighted_cross_entropy gnn.layer_type=gineconv gnn.layers_mp=2 gnn.dim_inner=16 "
        "gnn.residual=true gnn.act=gelu gnn.head=default gnn.layers_post_mp=2 metric_best=mIoU",
    ),
    "ppa": (
        classification("graph", 37),
        "dataset.format=OGB dataset.name=ogbg-ppa dataset.node_encoder_name=PPANode dataset.edge_encoder=true "
        "dataset.edge_encoder_name=PPAEdge dataset.edge_encoder_bn=true gt.layer_type=CustomGatedGCN+Performer",
    ),
    "code2": (
        Task("graph", "subtoken", 9, tuple("abcdefgue")),
        "dataset.format=OGB dataset.name=ogbg-code2 dataset.task_type=subtoken_prediction "
        "dataset.node_encoder_name=ASTNode dataset.edge_encoder=true dataset.edge_encoder_name=ASTEdge "
        "gnn.head=ogb_code_graph",
    ),
}
"""The task of each family, and its config or settings as on the command line."""


def checked(family, *more):
    """The config of a family, and its task."""
    task, settings = FAMILIES[family]
    first, *others = settings.split()
    source = {} if "=" in first else CONFIGS / f"{first}.yaml"
    return check_config(source, [*([] if source else [first]), *others, *more])[0].config, task


def targets(graph, task, label):
    rows = graph.num_nodes if task.level == "node" else 1
    if task.kind == "subtoken":
        graph.y, graph.words = torch.tensor([[0, 1, 8, 8, 8]]), ["a", "b"]
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
    small = "gt.layers=2 gt.n_heads=2 gt.attn_dropout=0.1 train.batch_size=2"
    defaults = {"gt.layer_type": GATED, "gt.dim_hidden": "16"}
    own = "=" not in FAMILIES[family][1].split()[0]
    more = [f"{key}={value}" for key, value in defaults.items() if key not in FAMILIES[family][1] and not own]
    config, task = checked(family, *small.split(), *more)
    dataset = fake_dataset(config, task)
    experiment = experiment_of(ParsedConfig(config, family))
    source = experiment.data
    splits = prepare(source, dataset, 0, source.draws(0))
    torch.manual_seed(0)
    module = GraphModule(experiment, splits).train()
    model = module.model
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    optimizer = build_optimizer(config, module)
    train, val, _ = loaders(source.serving, splits, seed=0)
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
    first = "layers.0.conv" if config.gt.convs else "layers.0.attn"
    attention = ["layers.1.attn"] if config.gt.attentions else []
    for part in ("node_encoder", first, *attention, "head"):
        assert any(name.startswith(part) for name in changed), part
    module.eval()
    for batch in val:
        module.validation_step(batch, 0)
    assert all(name.startswith("val_") for name in module.collect("val"))


def test_encodings_of_a_config_are_all_that_is_computed():
    overrides = ["posenc_SignNet.enable=true", "dataset.node_encoder_name=TypeDictNode+RWSE"]
    config, task = checked("ZINC", *overrides)
    graph = prepare(source_of(config), fake_dataset(config, task), 0, []).train[0]
    assert graph.random_walk_diagonal.shape == (4, 20)
    assert torch.equal(graph.random_walk_diagonal[:, 0], torch.zeros(4))
    assert not any("laplacian" in name or "sign_net" in name for name in graph.to_dict())
    assert width(graph.x) == 1


def test_plain_attention_reads_no_bias_of_pairs():
    plain = checked("ZINC, Graphormer", "gt.dim_hidden=16", "gt.layer_type=GINE+Transformer")[0]
    model = build_model(plain, 1, 1, 1)
    assert model.bias_encoder is None
    assert not any(layer.attn.requires for layer in model.layers)


def test_the_last_layer_updates_no_edges():
    config, _ = checked("ZINC")
    norms = [layer.conv.norm_edge is not None for layer in build_model(config, 1, 1, 1).layers]
    assert norms == [True] * (len(norms) - 1) + [False]
