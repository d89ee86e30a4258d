"""The runner with a model, a loss and data of your own: seeds, resuming, summaries, loggers and callbacks."""

import torch
from lightning.pytorch.callbacks import LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger
from torch_geometric.datasets import FakeDataset

from pyg_topomask.nn import GPSModel, GRFAttention
from pyg_topomask.run import Experiment, Serving, Source, Task, Training
from pyg_topomask.transforms import AddRandomWalks

graphs = list(FakeDataset(200, avg_num_nodes=12, num_channels=8, num_classes=0, task="graph"))
for graph in graphs:  # two targets: the mean of the first feature, and the number of edges
    graph.y = torch.stack([graph.x[:, 0].mean(), torch.tensor(graph.num_edges / 100)])
data = Source(
    graphs,
    Task("graph", "regression", 2),
    draws=lambda seed: [AddRandomWalks(seed=seed)],
    serving=Serving(batch_size=50),
)


def build(sizes):
    attn = lambda layer: GRFAttention(32, heads=4)  # noqa: E731
    return GPSModel(sizes.in_channels, 32, sizes.out_channels, num_layers=2, attn=attn, pool="add")


def weighted(prediction, target):  # a loss of your own: the first target counts twice
    return ((prediction - target).square() * torch.tensor([2.0, 1.0])).mean()


experiment = Experiment(
    data,
    build,
    Training(loss=weighted, metric="mae", epochs=5),
    name="two-targets",
    call=lambda model, batch: model(batch.x, batch.edge_index, batch.batch, graph=batch),
)
summary = experiment.run(
    "results",
    repeat=2,
    loggers=lambda seed: [CSVLogger("results/logs", name=f"seed-{seed}")],
    callbacks=lambda seed: [LearningRateMonitor()],
)
print(f"test mean absolute error: {summary['metrics']['test_mae']['mean']:.3f}")
