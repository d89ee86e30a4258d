"""Masks of graph random features: their expectation, their parameters, and the walks that they read."""

import math

import numpy as np
import pytest
import torch
from torch_geometric.data import Batch

from pyg_topomask import nn, ops, transforms
from pyg_topomask.testing import GRAPHS
from tests.expressivity.graphs import cycles
from tests.matrices import normalised_adjacency, power_series

F, G = [1.2, 0.5, -0.3], [-0.4, 0.7, 0.2]
K, DRAWS = len(F) - 1, 500
OFF = ~torch.eye(5, dtype=torch.bool)


def walked(data, **settings):
    return transforms.AddRandomWalks(**{"num_walks": 4, "max_length": K, "seed": 0, **settings})(data.clone())


def series(data, coeffs):
    return power_series(normalised_adjacency(data), coeffs)


def mask_of(f=F, g=G, **settings):
    mask = nn.GRFMask(**{"max_length": len(f) - 1, **settings}).double()
    with torch.no_grad():
        mask.modulation.copy_(torch.as_tensor(f))
        if mask.key_modulation is not None:
            mask.key_modulation.copy_(torch.as_tensor(g))
    return mask


def samples(data, mask, **settings):
    """Many draws of a mask, ``[DRAWS, N, N]``, as the blocks of one batch."""
    batch = Batch.from_data_list(transforms.AddRandomWalks(4, K, seed=None, **settings)([data] * DRAWS))
    with torch.no_grad():
        dense = mask(batch).to_dense().view(DRAWS, data.num_nodes, DRAWS, data.num_nodes)
    return dense[torch.arange(DRAWS), :, torch.arange(DRAWS)]


def standard_errors(values, wanted):
    return (values.mean(0) - wanted).abs() / (values.std(0) / len(values) ** 0.5 + 1e-6)


@pytest.mark.parametrize("diagonal", ["corrected", "independent"])
@pytest.mark.parametrize("scheme", ["iid", "antithetic", "repelling"])
@pytest.mark.parametrize(("name", "halt_prob"), [("isolated", 0.3), ("weighted", 0.0), ("star", 0.3)])
def test_the_mean_of_many_masks_is_the_power_series_everywhere(name, scheme, diagonal, halt_prob):
    """Also with walks of a fixed length, which never halt."""
    data, mask = GRAPHS[name], mask_of(diagonal=diagonal)
    values = samples(data, mask, scheme=scheme, diagonal=diagonal, halt_prob=halt_prob)
    assert standard_errors(values, series(data, np.convolve(F, F))).max() <= 5


TWO, CORRECTED, COEFFS = {"key_modulation": True}, {"diagonal": "corrected"}, np.convolve(F, G)


@pytest.mark.parametrize(
    ("name", "settings", "walks", "wanted"),
    [
        *((name, {"symmetric": False}, {}, series(GRAPHS[name], F)) for name in ("weighted", "one_way")),
        ("one_way", {}, {}, series(GRAPHS["one_way"], F) @ series(GRAPHS["one_way"], F).t()),
        ("weighted", TWO, {}, series(GRAPHS["weighted"], COEFFS)),
        ("one_way", TWO, {}, series(GRAPHS["one_way"], F) @ series(GRAPHS["one_way"], G).t()),
        ("weighted", TWO | {"stitch": 2}, {"num_tables": 2}, series(GRAPHS["weighted"], np.convolve(COEFFS, COEFFS))),
        ("weighted", TWO | CORRECTED, CORRECTED, series(GRAPHS["weighted"], COEFFS)),
    ],
)
def test_masks_of_other_forms_have_means_of_their_own(name, settings, walks, wanted):
    assert standard_errors(samples(GRAPHS[name], mask_of(**settings), **walks), wanted).max() <= 5


def test_one_table_is_unbiased_off_the_diagonal_only():
    data, wanted = GRAPHS["weighted"], series(GRAPHS["weighted"], np.convolve(F, F))
    values = samples(data, mask_of(independent=False), independent=False)
    assert standard_errors(values, wanted)[OFF].max() <= 5
    assert (values.mean(0) - wanted).diagonal().min() > 0
    assert standard_errors(values, wanted).diagonal().max() > 10


def test_only_the_diagonal_is_corrected():
    data = walked(GRAPHS["weighted"], diagonal="corrected")
    dense, shared = (mask_of(diagonal=kind)(data).to_dense() for kind in ("corrected", "shared"))
    products = torch.tensor([F[a] * F[b] for b in range(3) for a in range(b + 1)]).double()
    torch.testing.assert_close(dense.diagonal(), data.walk_diagonal.double() @ products)
    torch.testing.assert_close(dense[OFF], shared[OFF])
    assert not torch.allclose(shared.diagonal(), dense.diagonal())


@pytest.mark.parametrize(
    ("initial", "wanted"),
    [
        ("exp", [1, 1 / 2, 1 / 8, 1 / 48]),
        ("geometric", [1, 1 / 2, 1 / 4, 1 / 8]),
        ("far", [1 / 4] * 4),
        ([2.0, -1], [2, -1, 0, 0]),
        (ops.deconvolve(torch.tensor([1.0, 1, 1, 1])), [1, 1 / 2, 3 / 8, 5 / 16]),
    ],
)
def test_initial_modulation(initial, wanted):
    mask = nn.GRFMask(2, max_length=3, initial=initial, key_modulation=True)
    assert len([*mask.parameters()]) == 2
    for parameter in mask.parameters():
        torch.testing.assert_close(parameter.detach(), torch.tensor([wanted, wanted], dtype=torch.float32))
    if initial == "exp":
        f = nn.GRFMask(max_length=400).modulation[:13].detach().double().numpy()
        np.testing.assert_allclose(np.convolve(f, f)[:13], [1 / math.factorial(k) for k in range(13)], atol=1e-10)


def test_the_far_mask_reaches_further_than_the_default_one():
    found = []
    for mask in (nn.GRFMask(), nn.GRFMask(initial="far")):
        shares = ops.reach(mask, transforms.that_add(mask.requires, seed=0, **mask.transform_settings)(cycles(150)))
        found.append(float(shares[:-1] @ torch.arange(17.0).double()))
    assert mask.stitch == 3
    assert found[0] < 0.9 < 2.5 < found[1]


def test_positive_modulation_has_no_negative_entry():
    data, minus = walked(GRAPHS["star"]), -np.asarray(F)
    op, plain = mask_of(g=minus, positive=True, key_modulation=True)(data), mask_of(np.abs(F))
    torch.testing.assert_close(op.to_dense(), plain(data).to_dense())
    assert op.bound is op


def test_walks_that_change_are_seen():
    """The remembered structure follows the tensors: changed in place, replaced, another batch."""
    data, mask = walked(GRAPHS["star"]), mask_of()
    before = mask(data).to_dense()
    data.walk_load.mul_(2)
    torch.testing.assert_close(mask(data).to_dense(), 2 * before)
    data.walk_load = data.walk_load / 2
    torch.testing.assert_close(mask(data).to_dense(), before)
    batch = Batch.from_data_list([data, data])
    torch.testing.assert_close(mask(batch).to_dense(), torch.block_diag(before, before))


def test_walks_of_other_lengths():
    data = walked(GRAPHS["star"], diagonal="corrected")
    short, longer = mask_of(diagonal="corrected")(data), mask_of([*F, 5.0], diagonal="corrected")
    torch.testing.assert_close(longer(data).to_dense(), short.to_dense())
    torch.testing.assert_close(mask_of([3.0])(walked(data, max_length=0)).to_dense(), 9 * torch.eye(5).double())
    with pytest.raises(ValueError, match="the stored diagonal has 15 coefficients"):
        mask_of(diagonal="corrected")(walked(GRAPHS["isolated"], max_length=4, halt_prob=0.999, diagonal="corrected"))


def prefix_of(table):
    return "walk" if table == 0 else f"walk_table{table}"


def test_sets_of_walks_are_independent_and_the_first_is_that_of_a_single_one():
    data, alone = walked(GRAPHS["weighted"], num_tables=3), walked(GRAPHS["weighted"])
    for key, value in alone.to_dict().items():
        assert torch.equal(torch.as_tensor(data[key]), torch.as_tensor(value)), key
    names = [name + key for name in map(prefix_of, range(3)) for key in ("", "_key")]
    assert len({tuple(data[f"{name}_load"].tolist()) for name in names}) == len(names)


@pytest.mark.parametrize(
    ("diagonal", "keys"), [("independent", False), ("corrected", False), ("shared", False), ("independent", True)]
)
def test_masks_and_heads_use_the_set_of_their_number(diagonal, keys):
    data, found = walked(GRAPHS["weighted"], num_tables=3, diagonal=diagonal), []
    f, g = torch.randn(2, 3, K + 1).double()
    settings = {"diagonal": diagonal, "key_modulation": keys}
    for head, table in enumerate((2, 0, 2)):
        alone = GRAPHS["weighted"].clone()
        for key, value in data.to_dict().items():
            if key.startswith(f"{prefix_of(table)}_"):
                alone["walk" + key.removeprefix(prefix_of(table))] = value
        alone.walk_size = data.walk_size
        found.append(mask_of(f[head], g[head], **settings)(alone).to_dense())
        one = mask_of(f[head], g[head], table=np.int64(table), **settings)
        torch.testing.assert_close(one(data).to_dense(), found[-1])
    mask = mask_of(f, g, heads=3, max_length=K, table=(2, 0, 2), **settings)
    torch.testing.assert_close(mask(data).to_dense(), torch.stack(found))


@pytest.mark.parametrize("path", ["auto", "pairwise", "factored", "blocks"])
@pytest.mark.parametrize(
    ("attribute", "change", "message"),
    [
        ("walk_index", lambda x: x.index_fill(1, torch.tensor([5]), 10**6), "stored walks name node 1000000"),
        ("walk_key_index", lambda x: x.index_fill(1, torch.tensor([5]), -1), "stored walks name node -1"),
        ("walk_length", lambda x: x.index_fill(0, torch.tensor([5]), -1), "length of -1 hops"),
        ("walk_load", lambda x: x[:10], "index .2, nnz., lengths .nnz. and loads .nnz."),
    ],
)
def test_damaged_tables_are_refused_before_any_path_reads_them(path, attribute, change, message):
    graph = walked(cycles(30), max_length=3)
    graph[attribute] = change(graph[attribute])
    with pytest.raises(ValueError, match=message):
        nn.GRFAttention(16, 4, max_length=3, path=path)(torch.randn(30, 16), None, graph)
