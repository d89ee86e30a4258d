"""Programs of ``torch.export``: one for batches of all sizes, also in a process without this package."""

import subprocess
import sys

import pytest
import torch
from torch.export import Dim
from torch.utils._pytree import tree_leaves, tree_structure
from torch_geometric.data import Batch
from torch_geometric.datasets import FakeDataset
from torch_geometric.nn import GCNConv

from pyg_topomask import nn
from pyg_topomask import plan as plans
from pyg_topomask.transforms import AddRandomWalks
from tests.nn.plan_cases import (
    ATTENTIONS,
    MASKED,
    NETWORKS,
    attention,
    batches_for,
    checked,
    model_of,
    network_of,
    slow,
    tolerance,
)

# The sweeps of products with trees are as many as the trees are deep. Blocks, of which softmax reads them, need none.
ON_TREES = {"forest, relu": "forest, softmax", "tree max_hops=8, relu": "tree max_hops=8, softmax"}


@slow
@pytest.mark.parametrize("name", [*ATTENTIONS, *(ON_TREES.get(n, n) for n in MASKED if n.endswith("relu"))])
def test_every_attention_is_exported(name):
    attn = attention(name).double().eval()
    model = model_of(lambda: attn).double().eval()
    checked(model, tolerance(name))


IN_NEW_PROCESS = """
import sys
import torch
from torch.testing import assert_close

file, kind = sys.argv[1:]
inputs, expected = torch.load(file + ".pt")
program = torch._inductor.aoti_load_package(file) if kind == "package" else torch.export.load(file).module()
assert "pyg_topomask" not in sys.modules and "torch_geometric" not in sys.modules
with torch.no_grad():
    for _ in range(2):
        assert_close(program(**inputs), expected)
"""


@slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of AOTInductor itself
@pytest.mark.parametrize("kind", ["program", "package"])
def test_new_process_without_this_package(kind, tmp_path):
    attentions = [nn.GRFAttention, nn.FullAttention, nn.PrimphormerAttention]
    model = model_of(*[lambda cls=cls: cls(8, 2) for cls in attentions]).eval()
    file = str(tmp_path / "model.pt2")
    first, other, _ = batches_for(model, dtype=torch.float32)
    program = nn.export_model(model, first)
    torch.save((nn.graph_inputs(other, model), model(other.x, other.edge_index, other.batch, other)), f"{file}.pt")
    if kind == "package":
        torch._inductor.aoti_compile_and_package(program, package_path=file)
    else:
        torch.export.save(program, file)
    subprocess.run([sys.executable, "-c", IN_NEW_PROCESS, file, kind], check=True)


@slow
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_are_exported(name):
    network = network_of(name).eval()
    first, other, _ = batches_for(network, edge_dim=3)
    found = nn.export_model(network, first).module()(**nn.graph_inputs(other, network))
    torch.testing.assert_close(found, network(other), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    "layer",
    [nn.GKATConv(8, 3, heads=2), nn.MaskedAttention(8, 2), nn.PerformerAttention(8, 2, num_features=12)],
    ids=lambda layer: type(layer).__name__,
)
def test_own_modules_are_exported_with_ordinary_plans(layer):
    class Planned(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer.double()

        def forward(self, x, plan):
            return self.layer(x, plan=plan)

    model = Planned().eval()
    first, other, _ = batches_for(layer)
    plan, another = (layer.plan(batch) for batch in (first, other))
    sizes = [dict.fromkeys(range(leaf.dim()), Dim.AUTO) for leaf in (first.x, *tree_leaves(plan))]
    program = torch.export.export(model, (first.x, plan), dynamic_shapes=(sizes[0], sizes[1:]), strict=False)
    torch.testing.assert_close(program.module()(other.x, another), layer(other.x, graph=other))


def test_plans_of_programs_take_nothing_from_other_plans_of_the_batch():
    graphs = AddRandomWalks(seed=0)(FakeDataset(num_graphs=4, avg_num_nodes=20, avg_degree=3, num_channels=32))
    first, other = Batch.from_data_list(graphs[:2]), Batch.from_data_list(graphs[2:])
    model = nn.GPSModel(32, 32, 1, 1, lambda i: GCNConv(32, 32), lambda i: nn.GRFAttention(32, heads=4)).eval()
    model(first.x, first.edge_index, plan=model.plan(first))
    with plans.plain():
        assert tree_structure(model.plan(first)) == tree_structure(model.plan(other))


def test_inputs_that_are_missing_are_named():
    model = model_of(lambda: nn.GRFAttention(8, 2), edge_dim=3, conv=lambda *_: nn.GatedGCN(8)).double()
    batch = next(batches_for(model, edge_dim=3))
    del batch.edge_attr
    with pytest.raises(ValueError, match="the model needs 'edge_attr' on the graph"):
        nn.graph_inputs(batch, model)
