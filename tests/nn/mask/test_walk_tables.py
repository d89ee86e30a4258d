"""Several sets of walks on one graph, for layers or heads."""

import numpy as np
import pytest
import torch
from torch_geometric.data import Batch

from pyg_topomask.nn import GPSModel, GRFAttention, GRFMask
from pyg_topomask.testing import GRAPHS, AttentionCase
from pyg_topomask.transforms import AddRandomWalks

GRAPH = GRAPHS["weighted"]


def walked(data=GRAPH, **settings):
    return AddRandomWalks(**{"num_walks": 4, "seed": 0, "num_tables": 3, **settings})(data.clone())


def prefix_of(table):
    return "walk" if table == 0 else f"walk_table{table}"


def test_the_first_set_is_that_of_a_single_one_and_all_differ():
    data, alone = walked(), walked(num_tables=1)
    for key, value in alone.to_dict().items():
        assert data[key] is value or torch.equal(torch.as_tensor(data[key]), torch.as_tensor(value)), key
    names = [name + key for name in map(prefix_of, range(3)) for key in ("", "_key")]
    loads = {tuple(data[f"{name}_load"].tolist()) for name in names}
    assert len(loads) == len(names)


@pytest.mark.parametrize("diagonal", ["independent", "corrected", "shared"])
@pytest.mark.parametrize("table", [0, 2])
def test_a_mask_uses_the_set_of_its_number(table, diagonal):
    data, mask = walked(diagonal=diagonal), GRFMask(diagonal=diagonal, table=table)
    alone = GRAPH.clone()
    for key, value in data.to_dict().items():
        if key.startswith(f"{prefix_of(table)}_"):
            alone["walk" + key.removeprefix(prefix_of(table))] = value
    alone.walk_size = data.walk_size
    wanted = GRFMask(diagonal=diagonal)(alone).to_dense()
    torch.testing.assert_close(mask(data).to_dense(), wanted)


def test_heads_with_their_own_walks():
    data, f = Batch.from_data_list([walked(GRAPHS["path"]), walked(GRAPHS["star"])]), torch.randn(3, 5)
    mask = GRFMask(3, table=(2, 0, 2))
    with torch.no_grad():
        mask.modulation.copy_(f)
    dense = mask(data).to_dense()
    for head, table in enumerate((2, 0, 2)):
        one = GRFMask(table=np.int64(table))
        with torch.no_grad():
            one.modulation.copy_(f[head])
        torch.testing.assert_close(dense[head], one(data).to_dense())


@pytest.mark.parametrize("kernel", ["relu", "softmax"])
def test_heads_with_their_own_walks_attend_alike_on_every_path(kernel):
    torch.manual_seed(0)
    batch = Batch.from_data_list([walked(GRAPHS["star"]), walked(GRAPHS["isolated"])])
    x, outs = torch.randn(batch.num_nodes, 8, dtype=torch.float64), []
    state = GRFAttention(8, 2, kernel=kernel).state_dict()
    state["mask.modulation"] = torch.randn(2, 5)
    for path in ("dense", "blocks", "auto", *(["factored"] if kernel == "relu" else [])):
        attn = GRFAttention(8, 2, kernel=kernel, table=range(2), path=path)
        attn.load_state_dict(state)
        outs.append(attn.double()(x, None, batch))
        torch.testing.assert_close(outs[-1], outs[0])
    with pytest.raises(ValueError, match="path 'pairwise' cannot serve this problem: it needs a sparse support"):
        GRFAttention(8, 2, kernel=kernel, table=range(2), path="pairwise")(x.float(), None, batch)


def test_layers_have_their_own_walks():
    torch.manual_seed(0)
    model = GPSModel(3, 8, 2, 3, attn=lambda layer: GRFAttention(8, 2, table=layer))
    batch, x = walked(), torch.randn(5, 3)
    out = model(x, batch.edge_index, graph=batch)
    batch.walk_table2_load = batch.walk_table2_load.square()
    assert not torch.allclose(model(x, batch.edge_index, graph=batch), out)


class TestGRFAttentionWithWalksPerHead(AttentionCase):
    transform = "AddRandomWalks"

    def build(self):
        return GRFAttention(self.channels, heads=2, table=(1, 0))

    def prepare(self, data):
        return walked(data, num_tables=2)


def test_wrong_numbers_are_refused():
    for table, message in (
        ((0, 1), r"'table' must be one number, or one for each of the 3 heads \(got \(0, 1\)\)"),
        (-1, r"'table' must be at least 0 \(got -1\)"),
    ):
        with pytest.raises(ValueError, match=message):
            GRFMask(3, table=table)
    with pytest.raises(ValueError, match="'num_tables' must be at least 1"):
        AddRandomWalks(num_tables=0)
    with pytest.raises(ValueError, match=r"needs 'walk_table3_index'.*num_tables=4"):
        GRFMask(table=3)(walked())
