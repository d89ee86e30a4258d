"""A model with masked attention in PyG's GraphGym, on a data set that GraphGym does not know."""

import torch
from torch_geometric.datasets import FakeDataset
from torch_geometric.graphgym import register
from torch_geometric.graphgym.config import assert_cfg, cfg
from torch_geometric.graphgym.model_builder import create_model
from torch_geometric.graphgym.train import GraphGymDataModule, train
from torch_geometric.graphgym.utils.comp_budget import params_count

from pyg_topomask.run.graphgym import build_transform

settings = """dataset.format fake dataset.task graph model.type TopomaskGPS model.graph_pooling mean
    gnn.layers_pre_mp 1 gnn.layers_post_mp 1 gnn.dim_inner 32 gt.dim_hidden 32 gt.layer_type GCN+GRF gt.layers 2
    gt.n_heads 2 optim.max_epoch 2 accelerator cpu"""
cfg.merge_from_list(settings.split())  # or cfg.merge_from_file("config.yaml")
assert_cfg(cfg)


@register.register_loader("fake")
def load(format, name, folder):
    if format != "fake":
        return None
    data = FakeDataset(num_graphs=64, avg_num_nodes=20, num_channels=8, num_classes=3, transform=build_transform())
    for part, index in zip(("train", "val", "test"), torch.arange(64).split([48, 8, 8])):
        data._data[f"{part}_graph_index"] = index
        data.slices[f"{part}_graph_index"] = torch.tensor([0, index.numel()])
    return data


datamodule = GraphGymDataModule()
model = create_model()
cfg.params = params_count(model)  # GraphGym's logger reads it
train(model, datamodule)
