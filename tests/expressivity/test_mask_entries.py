import random

import pytest
import torch

from pyg_topomask.expressivity import distinguishes, pairs
from pyg_topomask.nn import GRFMask, GridHeatMask, LowRankMask, ToeplitzMask, TreeMask
from pyg_topomask.operators import DenseOperator
from pyg_topomask.ops import masked_linear_attention
from pyg_topomask.testing import dense_adjacency
from pyg_topomask.transforms import AddGridShape, AddPositions, AddRandomWalks, AddTreeOrder
from tests.expressivity.graphs import cycles, gkat_mask, graph, relabelled, transition

DECALIN = graph(10, [(i, (i + 1) % 10) for i in range(10)] + [(0, 5)])
BICYCLOPENTYL = graph(10, [(s + i, s + (i + 1) % 5) for s in (0, 5) for i in range(5)] + [(0, 5)])


def test_gkat_tells_apart_what_attention_without_a_mask_does_not():
    """Decalin and bicyclopentyl: equal for colour refinement, not for attention under GKAT's exact mask."""
    assert not distinguishes(DECALIN, BICYCLOPENTYL)
    assert distinguishes(DECALIN, BICYCLOPENTYL, mask=gkat_mask)
    assert distinguishes(DECALIN, BICYCLOPENTYL, mask=lambda data: DenseOperator(gkat_mask(data)))
    assert pairs([DECALIN, BICYCLOPENTYL], mask=gkat_mask).apart_with == 1

    def gap(mask):
        x = torch.ones(10, 1, 3, dtype=torch.float64)
        v = torch.stack([transition(data).ne(0).sum(1).double() for data in (DECALIN, BICYCLOPENTYL)])[:, :, None, None]
        masks = [DenseOperator(mask(data)) for data in (DECALIN, BICYCLOPENTYL)]
        sums = [masked_linear_attention(x, x, v[i], mask).sum() for i, mask in enumerate(masks)]
        return abs(float(sums[0] - sums[1]))

    assert gap(gkat_mask) > 1e-4  # features are degrees, which colour refinement has after a round
    assert gap(lambda data: transition(data) @ transition(data) + torch.eye(10)) < 1e-12  # a power series


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (lambda data: GRFMask(1, 3)(AddRandomWalks(4, 3)(data.clone())), "'mask' differs .* sampled walks"),
        (lambda data: torch.arange(100.0).view(10, 10), "'mask' differs"),
        (lambda data: torch.ones(3, 3), r"\[N, N\] or \[H, N, N\] with N = 10 \(got \(3, 3\)\)"),
        (lambda data: torch.full((10, 10), torch.nan), "'mask' holds NaN"),
        (lambda data: None, r"a MaskOperator or a tensor \(got NoneType\)"),
        (lambda data: torch.ones(10, 10) * 1j, "'mask' must be real"),
    ],
    ids=["sampled", "numbering", "shape", "nan", "nothing", "complex"],
)
def test_masks_that_cannot_be_compared(mask, message):
    with pytest.raises((TypeError, ValueError), match=message):
        distinguishes(DECALIN, BICYCLOPENTYL, mask=mask)


SQUARE = graph(4, [(0, 1), (2, 3), (0, 2), (1, 3)])


@pytest.mark.parametrize(
    ("mask", "transform", "first", "second"),
    [
        (TreeMask(), AddTreeOrder(), cycles(6), cycles(3, 3)),
        (LowRankMask(), AddPositions(), cycles(6), cycles(3, 3)),
        (GridHeatMask(), AddGridShape(), SQUARE, graph(4, [(0, 1), (1, 2), (2, 3)])),
    ],
    ids=["tree", "position", "grid_shape"],
)
def test_attributes_stored_on_the_graphs_are_part_of_them(mask, transform, first, second):
    first, second = transform(first), transform(second)
    assert distinguishes(first, second, mask=mask)
    assert not distinguishes(first, first.clone(), mask=mask)
    if not isinstance(mask, GridHeatMask):  # a grid has one numbering
        assert not distinguishes(first, relabelled(first, random.Random(0)), mask=mask)


def test_a_transform_prepares_what_the_mask_reads():
    path, star = graph(4, [(0, 1), (1, 2), (2, 3)]), graph(4, [(0, 1), (0, 2), (0, 3)])
    assert distinguishes(path, star, AddTreeOrder(), mask=TreeMask())
    assert not distinguishes(SQUARE, SQUARE.clone(), AddGridShape(), mask=ToeplitzMask([2, 2]))
    with pytest.raises(ValueError, match=r"needs 'tree_index'.* add the transform AddTreeOrder\(\)"):
        distinguishes(SQUARE, SQUARE, mask=TreeMask())


def test_walks_stored_on_the_graphs_are_refused():
    first, second = (AddRandomWalks(4, 4)(data.clone()) for data in (DECALIN, BICYCLOPENTYL))
    with pytest.raises(ValueError, match="'mask' reads 'walk_index', walks stored on the graphs, which are a sample"):
        distinguishes(first, second, mask=GRFMask())


def test_noise_beside_zeros_separates_nothing():
    """A pseudo-inverse is 0 between components, up to rounding that depends on the numbering."""
    data = graph(9, [(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3), (3, 6), (7, 8)])

    def mask(data):
        adjacency = dense_adjacency(data)
        return torch.linalg.pinv(adjacency.sum(1).diag() - adjacency)

    for seed in range(3):
        assert not distinguishes(data, relabelled(data, random.Random(seed)), mask=mask)
