import pytest
import torch
from torch.nn import Linear
from torch.nn.functional import cosine_similarity, elu, normalize

from pyg_topomask.nn import HEADS
from tests.nn.gps_cases import batch_of

C = 8
SHAPES = {"node": (11, 3), "inductive_node": (11, 3), "edge": (9,), "inductive_edge": (9,), "ogb_code_graph": (4, 5, 3)}
"""Of predictions for eleven nodes in four graphs; ``(4, 3)`` for other heads."""


def labelled(*names):
    batch = batch_of(*names)
    batch.edge_label_index = torch.randint(batch.num_nodes, (2, 9))
    return batch


@pytest.mark.parametrize("name", HEADS)
def test_every_head(name):
    batch, head = labelled("path", "single", "empty", "two_parts"), HEADS[name](C, 1 if "edge" in name else 3)
    x = torch.randn(11, C, requires_grad=True)
    out = head(x, batch)
    assert out.shape == SHAPES.get(name, (4, 3))
    out.square().sum().backward()
    assert x.grad.isfinite().all()
    assert all((p.grad != 0).any() for p in head.parameters())
    if "edge" not in name:
        parts = zip(x.split(batch.ptr.diff().tolist()), batch.to_data_list())
        torch.testing.assert_close(out, torch.cat([head(rows, part) for rows, part in parts]))


def test_head_widths_and_norms():
    san = HEADS["san_graph"](64, 10, pool="add")
    assert [m.weight.shape for m in san.predict.lins] == [(32, 64), (16, 32), (10, 16)]
    x = torch.randn(5, C)
    for act, l2_norm in ((torch.relu, True), (elu, False)):
        head = HEADS["node"](C, 3, layers=2, act=act.__name__, l2_norm=l2_norm)
        first, last = (m for m in head.layers if isinstance(m, Linear))
        hidden = act(first(x))
        torch.testing.assert_close(head(x), last(normalize(hidden, dim=1) if l2_norm else hidden))
    mlp, single = HEADS["mlp_graph"](C, 3, layers=1, dropout=0.5), batch_of("single")
    assert len({tuple(mlp(torch.ones(1, C), single)[0].tolist()) for _ in range(9)}) > 1  # before the only layer


@pytest.mark.parametrize("decoding", ["dot", "cosine_similarity", "concat"])
def test_edge_decoding(decoding):
    batch, x = labelled("path", "star"), torch.randn(9, C)
    head = HEADS["inductive_edge"](C, 1, layers=2, decoding=decoding)
    z, (i, j) = head.embed(x), batch.edge_label_index
    wanted = {
        "dot": lambda: torch.einsum("ec,ec->e", z[i], z[j]),
        "cosine_similarity": lambda: cosine_similarity(z[i], z[j]),
        "concat": lambda: head.mlp(torch.cat([x[i], x[j]], 1))[:, 0],
    }[decoding]()
    torch.testing.assert_close(head(x, batch), wanted)
    if decoding == "concat":
        assert HEADS["edge"](C, 3, decoding=decoding)(x, batch).shape == (9, 3)
    else:
        with pytest.raises(ValueError, match="gives one score per pair, but 3 are requested"):
            HEADS["edge"](C, 3, decoding=decoding)
