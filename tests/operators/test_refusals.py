"""Arguments that masks refuse, and the errors that say why."""

import pytest
import torch

from pyg_topomask import operators as op

DENSE, HEADS, FOUR = (op.DenseOperator(torch.ones(shape)) for shape in ((3, 3), (2, 3, 3), (4, 4)))
EDGE, ONE = torch.tensor([[0], [1]]), torch.ones(1)
EDGES = torch.tensor([[0, 1], [1, 0]])
PARENT = torch.tensor([-1, 0, 0])


REFUSED = [
    (lambda: op.DenseOperator(torch.ones(2, 3)), ValueError, r"\[N, N\] or \[H, N, N\] \(got \[2, 3\]\)"),
    (lambda: op.DenseOperator(torch.ones(3, 3).long()), TypeError, r"floating point \(got torch.int64\)"),
    (lambda: DENSE @ torch.ones(3, dtype=torch.long), TypeError, "floating-point tensor"),
    (lambda: DENSE @ HEADS, TypeError, r"floating-point tensor \(got DenseOperator\).*ProductOperator"),
    (lambda: op.OnesOperator(torch.tensor([1, 0])), ValueError, "must be sorted"),
    (lambda: op.OnesOperator(torch.tensor([0.0])), TypeError, "integer graph"),
    (lambda: DENSE + FOUR, ValueError, r"share their nodes \(got \[3, 4\]\)"),
    (lambda: HEADS + op.DenseOperator(torch.ones(4, 3, 3)), ValueError, r"heads cannot be combined \(got \[2, 4\]\)"),
    (lambda: torch.ones(2) * DENSE, ValueError, r"scaled by one number \(got a tensor of shape \[2\]\)"),
    (lambda: DENSE + 1, TypeError, "unsupported operand"),
    (lambda: op.HeadStackOperator([]), ValueError, "at least one mask"),
    (lambda: op.HeadStackOperator([HEADS]), ValueError, "each with the heads that it serves"),
    (lambda: op.HeadStackOperator([DENSE, FOUR]), ValueError, "share their nodes"),
    (lambda: op.BlockDiagonalOperator([]), ValueError, "at least one block"),
    (lambda: op.ProductOperator(DENSE, FOUR), ValueError, "share their nodes"),
    (lambda: op.ProductOperator(DENSE, op.HeatOperator(EDGE[:, :0], 3, 1.0)), ValueError, "must be exact"),
    (lambda: op.SparseFactorOperator((EDGE, torch.ones(2)), None, 3), ValueError, r"must be \[1\].*got \[2\]"),
    (lambda: op.SparseFactorOperator(None, (EDGE[0], ONE), 3), ValueError, r"'right' must have shape \[2, "),
    (lambda: op.SparseFactorOperator((EDGE.float(), ONE), None, 3), TypeError, "'left' must hold integers"),
    (lambda: op.SparseFactorOperator((EDGE, ONE.long()), None, 3), TypeError, "'left' must be floating point"),
    (lambda: op.SparseFactorOperator((EDGE, ONE), None, 1), ValueError, "'left' contains node 1"),
    (lambda: op.SparseOperator(EDGE, ONE, 1), ValueError, "'index' contains node 1"),
    (lambda: op.SparseFactorOperator((EDGE, ONE[:, None]), (EDGE, torch.ones(1, 3)), 3), ValueError, "of heads"),
    (lambda: DENSE * FOUR, ValueError, r"nodes \(got \[3, 4\]\)"),
    (lambda: HEADS * op.DenseOperator(torch.ones(3, 3, 3)), ValueError, "heads"),
    (lambda: DENSE * "2", TypeError, "unsupported operand|can't multiply"),
    (lambda: op.HeatOperator(EDGES, 2, 1.0, laplacian="signed"), ValueError, "combinatorial, normalized, "),
    (lambda: op.HeatOperator(EDGES, 2, 1.0, tol=0.0), ValueError, r"'tol' must be in \[1e-13, 1\)"),
    (lambda: op.HeatOperator(EDGES, 2, -1.0), ValueError, "'time' must be a finite number of at least 0"),
    (lambda: op.HeatOperator(EDGES[:, :1], 2, 1.0), ValueError, "undirected graph, but edges 0 → 1"),
    (lambda: op.HeatOperator(EDGES, 2, 1.0, -torch.ones(2)), ValueError, "edge weights of at least 0"),
    (lambda: op.HeatOperator(EDGES, 2, 1000.0, laplacian="adjacency"), ValueError, r"exp\(1000\) is beyond.*float64"),
    (lambda: op.HeatOperator(EDGES, 1, 1.0), ValueError, "'edge_index' contains node 1"),
    (lambda: op.PowerSeriesOperator(EDGES, 2, torch.ones(0)), ValueError, r"'coeffs' must be .*got \[0\]"),
    (lambda: op.PowerSeriesOperator(EDGES, 2, torch.ones(2).long()), TypeError, "'coeffs' must be floating point"),
    (lambda: op.PowerSeriesOperator(EDGES, 2, torch.ones(2), torch.ones(3)), ValueError, "one number per edge"),
    (lambda: op.LowRankOperator(torch.ones(3, 2), torch.ones(3, 1)), ValueError, r"got \[3, 2\] and \[3, 1\]"),
    (lambda: op.LowRankOperator(torch.ones(3, 2).long(), torch.ones(3, 2)), TypeError, "floating point"),
    (lambda: op.LowRankOperator(torch.ones(2, 1), torch.ones(2, 1), torch.tensor([1, 0])), ValueError, "sorted"),
    (lambda: op.SparseOperator(EDGES, torch.ones(3), 2), ValueError, r"\[2\] or \[2, H\] \(got \[3\]\)"),
    (lambda: op.PaddingOperator(torch.ones(3)), TypeError, "'node_mask' must be boolean"),
    (lambda: op.PaddingOperator(torch.ones(3) > 0, torch.zeros(2).long()), ValueError, r"\[3\] and \[2\]"),
    (lambda: op.ToeplitzOperator(torch.ones(3, 4), (2, 2)), ValueError, r"must be \[3, 3\].*grid \[2, 2\].*\[3, 4\]"),
    (lambda: op.ToeplitzOperator(torch.ones(1, 1, 3, 3), (2, 2)), ValueError, r"got \[1, 1, 3, 3\]"),
    (lambda: op.ToeplitzOperator(torch.ones(3).long(), (2,)), TypeError, "floating point"),
    (lambda: op.ToeplitzOperator(torch.ones(1), ()), ValueError, "size of each axis"),
    (lambda: op.ToeplitzOperator(torch.ones(3), (2,), -1), ValueError, "'num_graphs' must be at least 0"),
    (lambda: op.GridHeatOperator((2, 0), 1.0), ValueError, "'grid_shape' must be at least 1"),
    (lambda: op.GridHeatOperator((2.5,), 1.0), TypeError, "'grid_shape' must be an integer"),
    (lambda: op.GridHeatOperator((2,), -1.0), ValueError, r"'time' .*at least 0 \(got \[-1.0\]\)"),
    (lambda: op.GridHeatOperator((2,), torch.tensor(torch.nan)), ValueError, "'time' .*nan"),
    (lambda: op.GridHeatOperator((2,), torch.tensor(1)), TypeError, "torch.int64"),
    (lambda: op.HypercubeHeatOperator(-1, 1.0), ValueError, "'dim' must be at least 0"),
    (lambda: op.HypercubeHeatOperator(2, torch.ones(2, 2)), ValueError, r"\[H\] \(got \[2, 2\]\)"),
    (lambda: op.ForestExpOperator(PARENT, torch.ones(2), -1.0, 0.0), ValueError, r"'length'.*\[3\].*got \[2\]"),
    (lambda: op.ForestExpOperator(PARENT, torch.ones(3).long(), -1.0, 0.0), TypeError, "'length' must be floating"),
    (lambda: op.ForestExpOperator(PARENT, torch.ones(3), "x", 0.0), TypeError, "'a' must be a number"),
    (lambda: op.ForestExpOperator(PARENT, torch.ones(3), torch.ones(2), torch.ones(3)), ValueError, "heads"),
    (lambda: op.ForestExpOperator(torch.tensor([1, 0]), torch.ones(2), 0.0, 0.0), ValueError, "cycle"),
    (lambda: op.TreeDistanceOperator(PARENT, torch.ones(2), "fast"), ValueError, "histogram, centroid .*'fast'"),
    (lambda: op.TreeDistanceOperator(PARENT, torch.ones(0)), ValueError, r"\[K \+ 1\].*got \[0\]"),
    (lambda: op.TreeDistanceOperator(PARENT, torch.ones(2).long()), TypeError, "floating point"),
    (lambda: op.CausalOperator(torch.tensor([1, 0])), ValueError, "sorted"),
]


@pytest.mark.parametrize(("build", "error", "message"), REFUSED)
def test_bad_arguments_are_refused(build, error, message):
    with pytest.raises(error, match=message):
        build()
