"""Every key of a config changes what is trained, how or where, or is listed with its reason."""

import zlib
from pathlib import Path
from typing import Literal, get_args, get_origin

import pytest
import torch
from torch_geometric.data import Data

from pyg_topomask.datasets import DigitsDataset
from pyg_topomask.nn import MASK, POSITIONAL_ENCODERS
from pyg_topomask.run.data.loaders import loaders, prepare
from pyg_topomask.run.graphgps.check import check_config
from pyg_topomask.run.graphgps.config.schema import all_keys, keys
from pyg_topomask.run.graphgps.reading import experiment_of
from pyg_topomask.run.training import trainer as trainers
from pyg_topomask.run.training.callbacks import early_stopping
from pyg_topomask.run.training.lightning_module import GraphModule
from tests.acting import another, differ

KEYS = {key.name: key for key in keys()}
ELSEWHERE = {
    **dict.fromkeys(["wandb.entity", "wandb.project", "wandb.name"], "arguments of a package that may be missing"),
    **dict.fromkeys(["dataset.format", "dataset.dir", "dataset.split_dir"], "other data: tests/run/data"),
    **dict.fromkeys(["dataset.task", "dataset.task_type"], "other targets: tests/run/data/test_own.py"),
    **dict.fromkeys(["dataset.slic_compactness", "dataset.use_node_attr"], "settings of PyG's data sets"),
    "dataset.resample_negative": "for ranked edges: test_every_dataset and tests/run/data/test_loaders.py",
    **dict.fromkeys(["run_multiple_splits", "train.mode"], "several runs, or none: tests/run/test_runner.py"),
    **dict.fromkeys(
        ["pretrained.reset_prediction_head", "pretrained.freeze_main", "pretrained.dir"],
        "a finished run: tests/run/graphgps/test_pretrained.py",
    ),
    **dict.fromkeys(["devices", "metric_agg", "gt.dim_edge", "gnn.dim_inner", "gnn.residual"], "one value is accepted"),
    **dict.fromkeys(
        [f"posenc_{name}.enable" for name in POSITIONAL_ENCODERS], "refused unless it agrees with the name"
    ),
    "share.gradient_checkpointing": "memory for time",
    "num_workers": "processes that load data",
    "train.compile": "torch.compile: tests/nn/test_compile.py",
    "train.cuda_graphs": "equal results, and refused without a GPU: tests/run/training/test_captured.py",
    "dataset.name": "a name without meaning for own files",
    "prep.exp_max_num_iters": "draws of small graphs end at the first: tests/test_arguments_act.py",
    "topomask.path": "ways to equal results",
    "topomask.mask_tree.method": "ways to equal results",
}
"""Keys that change nothing of what is compared here, with their reasons."""

POSENC = "dataset.node_encoder_name=LinearNode+{0} posenc_{0}.enable=true posenc_{0}.dim_pe=4 "
STEPS = "posenc_{0}.kernel.times=[1,2,3]"
BIAS = "gt.layer_type=GCN+BiasedTransformer dataset.node_encoder_name=LinearNode+{0} posenc_{0}.enable=true "
SIZES = " ".join(f"posenc_GraphormerBias.num_{size}=5" for size in ("spatial_types", "in_degrees", "out_degrees"))
CUSTOM = "model.type=custom_gnn gnn.layer_type=gcnconv gnn.residual=true"
ONE = "DATA=one dataset.task=node dataset.split_mode=random "
GKAT, MASKED, RANDOM = (f"gt.layer_type=GCN+{x}" for x in ("GKAT", "Masked topomask.mask={0}", "Performer"))
WIDE = "gt.dim_hidden=3 gt.n_heads=1"
GRID = "DATA=grids gt.layer_type=GCN+Masked topomask.mask="
TYPES = "DATA=types gt.layer_type=GAT+GRF dataset.node_encoder_name=TypeDictNode dataset.node_encoder_num_types=3 "
TYPES += "dataset.edge_encoder=true dataset.edge_encoder_name=TypeDictEdge dataset.edge_encoder_num_types=3"
EDGES = "gt.layer_type=GAT+GRF dataset.edge_encoder=true dataset.edge_encoder_name=LinearEdge"
LINKS = "DATA=links dataset.task=link_pred"
MIXED = "gt.layer_type=GCN+Masked topomask.mask=[none,hop]"
BLOCKS = "gt.layer_type=GCN+BigBird gt.bigbird.block_size=1 gt.bigbird.num_random_blocks=0"
MOTIF = "dataset.format=PyG-MotifDataset dataset.name=circle dataset.num_graphs=8 dataset.num_nodes=12 dataset.dir=null"
WALKED, GATES = ("RWSE", "HKdiagSE"), "dataset.node_encoder_name=LinearNode+EquivStableLapPE gt.layer_type=GINE+GRF "
GATES += "posenc_EquivStableLapPE.enable=true dataset.edge_encoder=true dataset.edge_encoder_name=LinearEdge"
BESIDE = {
    "gt.sparse.": "gt.layer_type=GCN+KMIP gt.sparse.k=2", "gt.bigbird.": BLOCKS,
    "metric_best": "train.early_stop_patience=2",
    "prep.add_self_loops": ONE, "prep.": "gt.layer_type=GCN+Exphormer prep.exp_deg=2",
    "posenc_LapPE.n_heads": POSENC.format("LapPE") + "posenc_LapPE.model=Transformer",
    "posenc_LapPE.": POSENC.format("LapPE") + "posenc_LapPE.model=DeepSet posenc_LapPE.eigen.max_freqs=3",
    "posenc_SignNet.": POSENC.format("SignNet") + "posenc_SignNet.model=MLP posenc_SignNet.post_layers=2",
    **{f"posenc_{x}.layers": POSENC.format(x) + STEPS.format(x) + f" posenc_{x}.model=MLP" for x in WALKED},
    "posenc_ElstaticSE.layers": POSENC.format("ElstaticSE") + "posenc_ElstaticSE.model=MLP",
    **{f"posenc_{x}.": POSENC.format(x) + STEPS.format(x) + f" posenc_{x}.model=Linear" for x in WALKED},
    "posenc_ElstaticSE.": POSENC.format("ElstaticSE") + "posenc_ElstaticSE.model=Linear",
    "posenc_RRWP.": BIAS.format("RRWP") + STEPS.format("RRWP"),
    "posenc_GraphormerBias.": BIAS.format("GraphormerBias") + SIZES,
    "graphormer.": BIAS.format("GraphormerBias") + SIZES, "posenc_EquivStableLapPE.": GATES,
    "topomask.mask_low_rank.max_period": "gt.layer_type=GCN+Masked topomask.mask=low_rank",
    **{f"topomask.mask_{name}.": MASKED.format(name) for name in MASK if name not in ("grid_heat", "toeplitz")},
    "topomask.mask_toeplitz.": GRID + "toeplitz topomask.mask_toeplitz.grid_shape=[8,8]",
    "topomask.mask_grid_heat.": GRID + "grid_heat", "gt.gamma": "gt.layer_type=GCN+SAN",
    "gt.full_graph": "gt.layer_type=GCN+SAN", "gnn.residual": CUSTOM, "gnn.layers_mp": CUSTOM,
    "gnn.layer_type": CUSTOM, "gnn.dropout": CUSTOM, "gnn.batchnorm": "gnn.layers_pre_mp=1",
    "dataset.node_encoder_num_types": TYPES, "dataset.edge_encoder_num_types": TYPES,
    "dataset.edge_encoder": "gt.layer_type=GAT+GRF", "dataset.edge_encoder_name": EDGES,
    "dataset.edge_encoder_bn": EDGES, "dataset.split_index": "dataset.split_mode=cv-kfold-4",
    "dataset.node_encoder": WIDE, "dataset.normalize_targets": "dataset.task_type=regression model.loss_fun=l1",
    "dataset.resample_negative": "DATA=links dataset.task=link_pred", "model.edge_decoding": LINKS,
    "dataset.num_graphs": MOTIF, "dataset.num_nodes": MOTIF,
    **{f"train.{key}": ONE + "train.sampler=random_partition" for key in ("num_parts", "sampler")},
    "train.neighbor_sizes": ONE + "train.sampler=neighbor",
    "train.max_nodes": ONE + "train.sampler=walks train.max_nodes=5",
    "val.sampler": ONE + "train.sampler=random_partition",
    "model.param_budget": "model.auto_satisfy_param_budget=true", "optim.momentum": "optim.optimizer=sgd",
    "optim.num_warmup_epochs": "optim.scheduler=cosine_with_warmup", "optim.steps": "optim.scheduler=step",
    "optim.lr_decay": "optim.scheduler=step optim.steps=[2]",
    **{f"optim.{key}": "optim.scheduler=reduce_on_plateau" for key in ("reduce_factor", "schedule_patience", "min_lr")},
    "optim.clip_grad_norm_value": "optim.clip_grad_norm=true", "topomask.tables": "topomask.num_tables=2",
    "topomask.redraw": "", "topomask.transition": "gt.layer_type=GCN+GKAT topomask.redraw=1",
    "topomask.mask": "gt.layer_type=GCN+Masked", "topomask.mask_heads": "gt.n_heads=4 " + MIXED,
    "topomask.spanning_tree": MASKED.format("tree"),
    **{f"topomask.{key}": "gt.layer_type=GCN+GKAT" for key in ("decay", "alpha", "learnable")},
    **{f"topomask.{key}": "gt.layer_type=GCN+Primphormer" for key in ("num_virtual", "rank", "eta")},
    "topomask.num_features": "gt.layer_type=GCN+Performer", "topomask.num_samples": "gt.layer_type=GCN+Primal",
    "topomask.layer_norm_mode": "gt.batch_norm=false gt.layer_norm=true", "gt.layer_norm": "gt.batch_norm=false",
    "gt.attn_dropout": "gt.layer_type=GCN+Transformer",
}  # fmt: skip
"""What a key is looked at with, by its name or by the start of it."""

OTHER = {
    "out_dir": "elsewhere", "name_tag": "b", "metric_best": "f1", "run_multiple_splits": "[1]",
    "precision": "bf16-mixed", "dataset.split": "[0.25,0.5,0.25]", "dataset.split_seed": 3,
    "dataset.node_encoder_name": "Constant", "dataset.node_encoder_bn": "true",
    "dataset.edge_encoder_name": "DummyEdge", "train.neighbor_sizes": "[1]", "gt.sparse.kq_dim": 3,
    "gt.sparse.val_dim": 3, "gnn.head": "mlp_graph", "gnn.layer_type": "gatconv", "optim.steps": "[2]",
    "topomask.scheme": "antithetic", "topomask.mask": "hop", "topomask.mask_heads": "[1,3]", "topomask.kernel": "elu1",
    "topomask.mask_grf.diagonal": "corrected", "topomask.mask_grf.initial": "geometric", "topomask.mask_grf.stitch": 2,
    "topomask.mask_power_series.coeffs": "[1.0,0.3]", "gt.layer_type": "GIN+GRF",
    "topomask.mask_power_series.edge_type": 1, "topomask.mask_heat.laplacian": "random_walk", "gt.n_heads": 4,
    "topomask.mask_toeplitz.grid_shape": "[9,9]", "topomask.mask_toeplitz.function": "distance", "gt.dim_hidden": 32,
    "topomask.mask_low_rank.encoding": "convolutional", "topomask.diagonal": "corrected",
    "prep.exp_algorithm": "Hamiltonian", **{f"posenc_{x}.kernel.times": "[1,4]" for x in ("RWSE", "HKdiagSE", "RRWP")},
    **{f"posenc_{x}.kernel.times_func": "range(1,5)" for x in ("RWSE", "HKdiagSE", "RRWP")},
    **{f"posenc_{x}.model": "mlp" for x in ("RWSE", "HKdiagSE", "ElstaticSE")},
    **{f"posenc_GraphormerBias.num_{size}": 3 for size in ("spatial_types", "in_degrees", "out_degrees")},
    "gt.sparse.head_agg": "none", "topomask.mask_heat.max_time": 3.0, "model.param_budget": 30000,
    "dataset.split_mode": "fixed", "dataset.name": "ladder", "posenc_LapPE.n_heads": 2,
    "posenc_LapPE.model": "Transformer", "posenc_SignNet.model": "DeepSet", "gt.layers": 1,
    "topomask.mask_tree.max_hops": 2, "topomask.mask_hop.max_hops": 2,
}  # fmt: skip
"""Another value of a key whose type does not give one that fits."""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Files of graphs with features, or with categories of nodes and edges, and one of a single graph."""
    folder, found = tmp_path_factory.mktemp("graphs"), {}
    for name, sizes in {"numbers": [7, 9, 8] * 4, "types": [7, 9, 8] * 4, "one": [40], "links": [7, 9, 8] * 4}.items():
        torch.manual_seed(0)
        graphs = []
        for number, size in enumerate(sizes):
            edges = torch.cat(
                [torch.stack([torch.arange(size - 1), torch.arange(1, size)]), torch.tensor([[0], [4]])], 1
            )
            graph = Data(edge_index=torch.cat([edges, edges.flip(0)], 1), num_nodes=size)
            graph.edge_weight = torch.linspace(0.5, 2, size).repeat(2)
            graph.edge_type = torch.arange(2 * size) % 2
            rows = size, graph.num_edges
            graph.x, graph.edge_attr = (torch.randint(3, (n, 1)) if name == "types" else torch.rand(n, 3) for n in rows)
            graph.y = torch.arange(size) % 3 if name == "one" else torch.tensor([number % 2])
            graphs.append(graph)
        if name == "links":
            for graph in graphs:
                graph.edge_label_index, graph.edge_label = graph.edge_index[:, :4], torch.tensor([1, 0, 1, 0])
        torch.save(graphs, folder / f"{name}.pt")
        found[name] = str(folder / f"{name}.pt")
    torch.save([*DigitsDataset(folder / "digits", num_graphs=8)], folder / "grids.pt")
    return found | {"grids": str(folder / "grids.pt")}


def other_value(key, value):
    """Another value of a key than the given one, by its row or by its type."""
    kind = KEYS[key].field.annotation
    if key in OTHER:
        return OTHER[key]
    choices = [c for part in (kind, *get_args(kind)) if get_origin(part) is Literal for c in get_args(part)]
    if choices:
        return next(choice for choice in choices if str(choice).lower() != str(value).lower())
    return str(another(value)).lower()


def beside(key):
    """The row of a key, or that of its section."""
    rows = [text for start, text in BESIDE.items() if key == start or (start.endswith(".") and key.startswith(start))]
    return (rows or [""])[0]


def config_of(data, *overrides):
    words = " ".join(overrides).split()
    name = next((word.removeprefix("DATA=") for word in words if word.startswith("DATA=")), "numbers")
    values = {"dataset": {"format": "Files", "name": "own", "dir": data[name], "split_mode": "random"}}
    values |= {"gt": {"layer_type": "GCN+GRF", "dim_hidden": 16, "n_heads": 2}, "optim": {"max_epoch": 5}}
    values |= {"topomask": {}, "train": {"batch_size": 4}, "accelerator": "cpu"}
    values["dataset"]["split"] = [0.5, 0.25, 0.25]
    return check_config(values, [word for word in words if not word.startswith("DATA=")])[0]


def numbers_of(batch):
    return [
        torch.as_tensor(value) for _, value in sorted(batch.to_dict().items()) if not isinstance(value, (str, list))
    ]


def stages(parsed, monkeypatch):
    """What a config leads to, in parts that take more and more time: texts, and lists of numbers."""
    experiment = experiment_of(parsed)
    source, training = experiment.data, experiment.training
    monkeypatch.setattr(trainers.pl, "Trainer", lambda **settings: settings | {"plugins": None})
    stopping = [
        {k: v for k, v in vars(x).items() if k in ("monitor", "mode", "patience")} for x in early_stopping(training)
    ]
    place = experiment.out, experiment.name, experiment.seed, experiment.splits
    yield str([place, trainers.build_trainer(training), stopping])
    yield str([trainers.device_problems(training), training.ckpt_period])
    notes = []
    yield str([experiment._loggers(Path("x"), "y", notes.append), notes])
    drawn, inference = source.draws(experiment.seed), training.inference
    splits = prepare(source, source.load(), experiment.seed, drawn, cache=False, inference=inference)
    train, val, _ = loaders(source.serving, splits, experiment.seed)
    torch.manual_seed(0)
    module = GraphModule(experiment, splits)
    made = module.configure_optimizers()
    optimizer = made["optimizer"] if isinstance(made, dict) else made
    yield str([type(optimizer), [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]])
    yield str(
        made.get("lr_scheduler") and schedule(made["lr_scheduler"], optimizer) if isinstance(made, dict) else None
    )
    splits.set_epoch(1)
    batches = [*train]
    yield [number for batch in (*batches, *val) for number in numbers_of(batch)]
    yield [value.detach().clone() for value in module.model.parameters()]
    for name, value in module.model.named_parameters():
        value.data.normal_(0.1, 0.4, generator=torch.Generator().manual_seed(zlib.crc32(name.encode())))
    loss = module.training_step(batches[0], 0)
    loss.backward()
    grads = [value.grad for value in module.model.parameters() if value.grad is not None and value.grad.any()]
    yield [loss, *grads, module.eval().model(next(iter(val)))]


def schedule(scheduler, optimizer):
    """Rates of some epochs, or the settings of a schedule by the loss."""
    if isinstance(scheduler, dict):
        return {k: v for k, v in vars(scheduler["scheduler"]).items() if isinstance(v, (int, float, list))}
    return [(optimizer.step(), scheduler.step(), optimizer.param_groups[0]["lr"])[-1] for _ in range(6)]


@pytest.fixture(scope="module")
def bases():
    """Configs that keys are looked at with, and what these lead to."""
    return {}


@pytest.mark.filterwarnings("ignore:.* takes no 'edge_weight'")
@pytest.mark.parametrize("key", [pytest.param(key, marks=[pytest.mark.slow] * bool(beside(key))) for key in all_keys()])
def test_every_key_acts_or_has_a_reason(key, data, bases, monkeypatch):
    if key in ELSEWHERE:
        return
    text = beside(key)
    if text not in bases:
        parsed = config_of(data, text)
        bases[text] = parsed, list(stages(parsed, monkeypatch))
    parsed, first = bases[text]
    other = config_of(data, text, f"{key}={other_value(key, parsed.config.value(key))}")
    assert other.config.was_read(key), "its row in BESIDE must make it read"
    changes = any(differ(*pair) for pair in zip(first, stages(other, monkeypatch)))
    assert changes, f"{key} changes nothing, and no note says so"
