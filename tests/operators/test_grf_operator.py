import torch
from torch_geometric.data import Batch

from pyg_topomask.operators import GRFOperator, SparseFactorOperator
from pyg_topomask.ops import masked_linear_attention
from pyg_topomask.ops.attention.masked import masked_linear_attention_reference
from pyg_topomask.ops.walks.product import walk_product
from pyg_topomask.testing import GRAPHS, OperatorCase
from pyg_topomask.transforms import AddRandomWalks

F = torch.tensor([1.3, -0.4, 0.2, 0.7], dtype=torch.float64)
TABLES = ("walk", "walk_key")
PARTS = ("index", "length", "load")


def walked(data, **settings):
    return AddRandomWalks(num_walks=3, max_length=3, halt_prob=0.2, seed=0, **settings)(data.clone())


def features(data, name, modulation):
    """Phi, entry by entry from the stored walks."""
    phi = torch.zeros(data.num_nodes, data.num_nodes, dtype=torch.float64)
    index, length, load = (data[f"{name}_{part}"].tolist() for part in PARTS)
    for i, v, hops, weight in zip(*index, length, load):
        phi[i, v] += modulation[hops] * weight
    return phi


class GRFCase(OperatorCase):
    graphs = {name: walked(data) for name, data in GRAPHS.items()}  # noqa: RUF012
    modulation = F
    tables = TABLES
    tol = {"rtol": 1e-10, "atol": 1e-10}  # noqa: RUF012

    def build(self, data):
        first, second = ([data[f"{name}_{part}"] for part in PARTS] for name in (self.tables * 2)[:2])
        walks = walk_product(*first, *second, data.num_nodes, 3, torch.float64)
        return GRFOperator(walks, self.modulation)

    def reference(self, data):
        modulations = self.modulation if self.modulation.dim() == 2 else self.modulation[None]
        heads = []
        for f in modulations:
            left, right = (features(data, name, f) for name in (self.tables * 2)[:2])
            heads.append(left @ right.t())
        return torch.stack(heads) if self.modulation.dim() == 2 else heads[0]


class TestTwoTables(GRFCase):
    pass


class TestOneTable(GRFCase):
    tables = ("walk",)


class TestHeads(GRFCase):
    modulation = torch.stack([F, F.flip(0), -F])


class KeyModulationCase(GRFCase):
    """An asymmetric pair of modulation functions."""

    keys = torch.tensor([0.6, 0.9, -1.1, 0.0], dtype=torch.float64)

    def build(self, data):
        return GRFOperator(super().build(data).walks, self.modulation, key_modulation=self.keys)

    def reference(self, data):
        pairs = zip(self.modulation, self.keys) if self.keys.dim() == 2 else [(self.modulation, self.keys)]
        names = (self.tables * 2)[:2]
        heads = [features(data, names[0], f) @ features(data, names[1], g).t() for f, g in pairs]
        return torch.stack(heads) if self.keys.dim() == 2 else heads[0]


class TestKeyModulation(KeyModulationCase):
    pass


class TestKeyModulationOfHeadsAndOneTable(KeyModulationCase):
    tables = ("walk",)
    modulation, keys = torch.stack([F, F.flip(0)]), torch.stack([F.flip(0).abs(), -F])


class TestAsymmetric(GRFCase):
    def build(self, data):
        walks = walk_product(*(data[f"walk_{part}"] for part in PARTS), None, None, None, data.num_nodes, 3, F.dtype)
        return GRFOperator(walks, F)

    def reference(self, data):
        return features(data, "walk", F)


def test_modulation_has_a_gradient_on_both_forms():
    case = TestTwoTables()
    walks = case.build(case.graphs["weighted"]).walks
    x = torch.randn(5, 2, dtype=torch.float64)
    f = F.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda f: GRFOperator(walks, f) @ x, (f,))
    assert torch.autograd.gradcheck(lambda f: GRFOperator(walks, f).T @ x, (f,))
    assert torch.autograd.gradcheck(lambda f: GRFOperator(walks, f).support.pairs(None)[1].values, (f,))


def test_a_batch_of_a_batch_is_the_same_mask():
    case = TestTwoTables()
    parts = [case.graphs[name] for name in ("star", "single", "one_way")]
    dense = case.build(Batch.from_data_list(parts)).to_dense()
    torch.testing.assert_close(dense, torch.block_diag(*(case.build(part).to_dense() for part in parts)))


def test_terms_that_cancel_count_in_the_bounding_mask():
    left = torch.tensor([[0, 0, 1, 2], [0, 1, 1, 2]]), torch.ones(4, dtype=torch.float64)
    right = torch.tensor([[1, 1, 0, 2], [0, 1, 0, 2]]), torch.tensor([1.0, -1.0, 1.0, 1.0], dtype=torch.float64)
    mask = SparseFactorOperator(left, right, 3)
    q, k, v = (torch.rand(3, 1, 2, dtype=torch.float64) + 0.1 for _ in range(3))
    wanted = masked_linear_attention_reference(q, k, v, mask.to_dense(), bound=mask.bound.to_dense())
    assert (mask.to_dense() == 0).sum() > (mask.bound.to_dense() == 0).sum()
    for path in ("pairwise", "factored", "blocks"):
        torch.testing.assert_close(masked_linear_attention(q, k, v, mask, path=path), wanted)


def test_learned_factors_have_a_gradient_on_blocks():
    index, value = torch.tensor([[0, 0, 1, 2], [0, 1, 1, 2]]), torch.rand(4).requires_grad_()
    q, k, v = (torch.rand(3, 1, 2) for _ in range(3))

    def gradient(path):
        mask = SparseFactorOperator((index, value), (index, value), 3)
        return torch.autograd.grad(masked_linear_attention(q, k, v, mask, path=path).square().sum(), value)

    torch.testing.assert_close(gradient("blocks"), gradient("dense"))


def test_factors_are_sparse_factors():
    case = TestTwoTables()
    operator = case.build(case.graphs["star"])
    assert isinstance(operator.factors, SparseFactorOperator)
    # Entries are counted before those of equal positions are merged.
    assert operator.num_multiply_adds >= operator.factors.num_multiply_adds
    assert operator.support.count() == operator.factors.support.count()


class TestCorrectedDiagonal(GRFCase):
    """One table, whose diagonal is given by coefficients of the products of ``f``."""

    graphs = {name: walked(data, diagonal="corrected") for name, data in GRAPHS.items()}  # noqa: RUF012
    tables = ("walk",)

    def build(self, data):
        table = [data[f"walk_{part}"] for part in PARTS]
        walks = walk_product(*table, *table, data.num_nodes, 3, torch.float64, data.walk_diagonal)
        return GRFOperator(walks, self.modulation)

    def reference(self, data):
        modulations = self.modulation if self.modulation.dim() == 2 else self.modulation[None]
        out = []
        for f, dense in zip(modulations, super().reference(data).reshape(len(modulations), data.num_nodes, -1)):
            products = torch.stack([f[a] * f[b] for b in range(4) for a in range(b + 1)])
            diagonal = data.walk_diagonal.double() @ products
            out.append(torch.where(torch.eye(data.num_nodes, dtype=torch.bool), diagonal, dense))
        return torch.stack(out) if self.modulation.dim() == 2 else out[0]


class TestCorrectedDiagonalOfHeads(TestCorrectedDiagonal):
    modulation = torch.stack([F, -F.flip(0)])
