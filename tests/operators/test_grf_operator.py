"""The mask of graph random features against its walks, read entry by entry."""

import pytest
import torch

from pyg_topomask import operators, testing, transforms
from pyg_topomask.ops.walks.product import walk_product

F = torch.tensor([1.3, -0.4, 0.2, 0.7], dtype=torch.float64)
KEYS = torch.tensor([0.6, 0.9, -1.1, 0.0], dtype=torch.float64)
HEADS = torch.stack([F, F.flip(0), -F])


def walked(data, **settings):
    return transforms.AddRandomWalks(num_walks=3, max_length=3, halt_prob=0.2, seed=0, **settings)(data.clone())


def table(data, name, load=lambda load: load):
    index, length, values = (data[f"{name}_{part}"] for part in ("index", "length", "load"))
    return index, length, load(values)


def phi(data, name, modulation):
    """The features of nodes, entry by entry from the stored walks."""
    out = torch.zeros(data.num_nodes, data.num_nodes, dtype=torch.float64)
    index, length, load = (part.tolist() for part in table(data, name))
    for i, v, hops, weight in zip(*index, length, load):
        out[i, v] += modulation[hops] * weight
    return out


# Modulation functions of queries and, if they have their own, of keys, and the table of the keys.
CASES = {
    "two tables": (F, None, "walk_key"),
    "one table": (F, None, "walk"),
    "heads": (HEADS, None, "walk_key"),
    "no keys": (F, None, None),
    "diagonal": (F, None, "diagonal"),
    "diagonal of heads": (HEADS, None, "diagonal"),
    "two functions": (F, KEYS, "walk_key"),
    "two functions of heads, one table": (HEADS, HEADS.roll(1, 1), "walk"),
    "two functions, diagonal": (F, KEYS, "diagonal"),
    "two functions of heads, diagonal": (HEADS, HEADS.roll(1, 1), "diagonal"),
}


class TestGRFOperator(testing.OperatorCase):
    graphs = {name: walked(data, diagonal="corrected") for name, data in testing.GRAPHS.items()}  # noqa: RUF012
    tol = {"rtol": 1e-10, "atol": 1e-10}  # noqa: RUF012

    @pytest.fixture(autouse=True, params=CASES)
    def _case(self, request):
        self.modulation, self.keys, self.second = CASES[request.param]
        if self.second == "walk_key":
            self.graphs = {name: walked(data) for name, data in testing.GRAPHS.items()}

    def build(self, data, modulation=None, keys=None):
        first, diagonal = table(data, "walk"), data.walk_diagonal if self.second == "diagonal" else None
        second = (None,) * 3 if self.second is None else table(data, "walk_key") if "key" in self.second else first
        f = self.modulation if modulation is None else modulation
        walks = walk_product(*first, *second, data.num_nodes, 3, f.dtype, diagonal)
        return operators.GRFOperator(walks, f, self.keys if keys is None else keys)

    def parameters(self, data):
        keys = {} if self.keys is None else {"keys": self.keys + 0.05}  # |.| has no derivative at 0
        return {"modulation": self.modulation, **keys}

    def reference(self, data):
        heads, keys = [], self.modulation if self.keys is None else self.keys
        for f, g in zip(self.modulation.view(-1, 4), keys.view(-1, 4)):
            dense = phi(data, "walk", f)
            if self.second is not None:
                dense = dense @ phi(data, "walk_key" if "key" in self.second else "walk", g).t()
            if self.second == "diagonal":
                products = torch.stack([(f[a] * g[b] + f[b] * g[a]) / 2 for b in range(4) for a in range(b + 1)])
                dense = torch.diagonal_scatter(dense, data.walk_diagonal.double() @ products)
            heads.append(dense)
        return torch.stack(heads) if self.modulation.dim() == 2 else heads[0]


def of_star(f, load=lambda load: load):
    """An operator of the walks of a star, with loads changed by a function."""
    data = walked(testing.GRAPHS["star"])
    walks = walk_product(*table(data, "walk", load), *table(data, "walk_key", load), data.num_nodes, 3, torch.float64)
    return operators.GRFOperator(walks, torch.as_tensor(f, dtype=torch.float64))


def test_a_mask_without_negative_numbers_is_its_own_bound():
    op = of_star([1.0, 0, 0.2, 0])
    for form in (op, op.T):
        assert form.bound is form


def test_the_bound_of_signed_walks_takes_loads_absolute_before_they_add_up():
    signed = of_star([1.0, -0.5, 0.3, 0.2], lambda load: load * (-1.0) ** torch.arange(load.numel()))
    plain = of_star([1.0, 0.5, 0.3, 0.2])
    torch.testing.assert_close(signed.bound.to_dense(), plain.to_dense())
    torch.testing.assert_close(signed.T.bound.to_dense(), plain.to_dense().t())


def test_the_bound_has_derivative_plus_one_where_the_function_is_zero():
    walks, grads = of_star([1.0] * 4).walks, []
    for first in (0.0, 1e-9):
        f = torch.tensor([first, -1, 2, 1], dtype=torch.float64, requires_grad=True)
        grads += torch.autograd.grad(operators.GRFOperator(walks, f).bound.to_dense().sum(), f)
    torch.testing.assert_close(*grads, rtol=1e-6, atol=1e-6)


def test_precision_is_that_of_the_loads():
    single, double = (torch.finfo(dtype).eps for dtype in (torch.float32, torch.float64))
    assert of_star(F).eps == single  # float32 loads, a float64 modulation function
    assert of_star(F, lambda load: load.double()).eps == double
