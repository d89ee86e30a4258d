import gc
import weakref

import pytest
import torch
from torch_geometric.data import Batch

from pyg_topomask import nn, ops, testing
from pyg_topomask.ops.memo import once_per_batch
from pyg_topomask.ops.walks import product as pairs
from pyg_topomask.transforms import AddRandomWalks


class Result:
    pass


def counted():
    calls = []

    @once_per_batch
    def function(*args):
        calls.append(None)
        return Result()

    return function, calls


def test_same_tensors_are_computed_once():
    function, calls = counted()
    a, b = torch.arange(3), torch.arange(3)
    first = function(a, b, 4, torch.float32)
    assert function(a, b, 4, torch.float32) is first
    assert len(calls) == 1
    assert function(a, b, 5, torch.float32) is not first
    assert function(a, b, 4, torch.float64) is not first
    assert function(a, None, 4, torch.float32) is not first
    assert function(a, a, 4, torch.float32) is not first
    assert function(b, b, 4, torch.float32) is not first  # equal values are not the same tensor
    assert function(a, b, 4, torch.float32) is first
    assert len(calls) == 6


def test_changed_in_place_is_computed_again():
    function, calls = counted()
    a, b = torch.arange(3), torch.arange(3)
    first = function(a, b)
    a[0] = 7
    second = function(a, b)
    assert second is not first
    b += 1
    assert function(a, b) is not second
    assert len(calls) == 3


def test_results_go_with_their_tensors():
    function, _ = counted()
    a, b = torch.arange(3), torch.arange(3)
    alive = [weakref.ref(function(a, b))]
    gc.collect()
    assert alive[0]() is not None
    alive += [weakref.ref(function(a, torch.arange(2))) for _ in range(20)]
    gc.collect()
    assert sum(result() is not None for result in alive) <= 3  # those of dead second tensors do not pile up
    del a
    gc.collect()
    assert not any(result() for result in alive)


def test_a_new_tensor_at_an_old_id_is_not_mistaken():
    total, ids = once_per_batch(lambda a, b: int(a.sum() + b.sum())), set()
    a = torch.zeros(3, dtype=torch.long)
    for number in range(200):  # ids of dead tensors are used again
        b = torch.full((2,), number)
        ids.add(id(b))
        assert total(a, b) == 2 * number
        assert total(b, b) == 4 * number
        del b
    assert len(ids) < 200


@pytest.mark.parametrize("path", ["factored", "pairwise"])
def test_batches_are_freed(path):
    attentions = [nn.GRFAttention(8, path=path), nn.MaskedAttention(8), nn.MaskedAttention(8, kernel="softmax")]
    parts = [AddRandomWalks(seed=0)(testing.GRAPHS[name].clone()) for name in ("star", "path")]
    batch = Batch.from_data_list(parts)
    for attn in attentions:
        attn(torch.randn(9, 8), batch.batch, batch).sum().backward()
    tensors = [weakref.ref(value) for value in batch.to_dict().values() if isinstance(value, torch.Tensor)]
    assert len(tensors) > 10
    del batch, parts
    gc.collect()
    assert all(tensor() is None for tensor in tensors)


def test_graph_structures_are_built_once_for_all_layers(monkeypatch):
    built = []
    original = pairs.WalkProduct.__init__
    monkeypatch.setattr(
        pairs.WalkProduct, "__init__", lambda self, *args: (built.append(weakref.ref(self)), original(self, *args))[0]
    )
    data = AddRandomWalks(seed=0)(testing.GRAPHS["star"].clone())
    model = nn.GPSModel(4, 8, 2, 3, attn=lambda _: nn.GRFAttention(8))
    for _ in range(2):
        model(data.x.float(), data.edge_index, None, data).sum().backward()
    assert len(built) == 1
    del data
    gc.collect()
    assert built[0]() is None


def test_nothing_is_kept_while_a_graph_is_captured(monkeypatch):
    """A captured CUDA graph would read one batch's results in each replay; with a plan, it reads those of the plan."""
    model = nn.GPSModel(4, 8, 2, 1, attn=lambda _: nn.GRFAttention(8, 2)).eval()
    batch = Batch.from_data_list([AddRandomWalks(4, seed=0)(testing.GRAPHS[name].clone()) for name in ("path", "star")])
    x = torch.randn(batch.num_nodes, 4)
    plan, wanted = model.plan(batch), model(x, batch.edge_index, batch.batch, batch)
    monkeypatch.setattr(ops.memo, "is_captured", lambda x: True)
    torch.testing.assert_close(model(x, batch.edge_index, plan=plan), wanted)
    with pytest.raises(RuntimeError, match=r"capture model\(x, edge_index, plan=plan\)"):
        model(x, batch.edge_index, batch.batch, batch)
