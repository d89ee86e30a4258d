import copy
import io

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.prune import l1_unstructured
from torch.utils.checkpoint import checkpoint
from torch_geometric.data import Batch
from torch_geometric.nn import GCNConv

from pyg_topomask.nn import (
    ATTENTION,
    GPSModel,
    GPSStack,
    MaskedAttention,
    PrimalAttention,
    PrimphormerAttention,
    auxiliary_loss,
)
from pyg_topomask.testing import GRAPHS, AttentionCase, block_permutation, empty_graph

EXACT = {"rtol": 1e-10, "atol": 1e-12}


class TestPrimphormer(AttentionCase):
    def build(self):
        return ATTENTION["Primphormer"](self.channels, heads=2, num_virtual=5, rank=3)


class TestPrimphormerOneHeadNoBias(AttentionCase):
    def build(self):
        return PrimphormerAttention(self.channels, num_virtual=2, rank=4, bias=False)


class TestPrimal(AttentionCase):
    def build(self):
        return PrimalAttention(self.channels, heads=2, num_samples=3, rank=4)

    def test_permutation_equivariance(self):
        attn, batch = self.build().double(), Batch.from_data_list(self._graphs())
        x, perm = self._input(batch.num_nodes), block_permutation(batch.batch)
        moved = attn(x[perm], batch.batch, batch)
        assert not torch.allclose(moved, attn(x, batch.batch, batch)[perm], rtol=1e-3)


def batch_of(*names):
    return Batch.from_data_list([GRAPHS[name].clone() for name in names or ("path", "single", "star")])


def naive(attn, x, batch, carry):
    """Output, new carry and J, node by node and with f_X formed for each graph, from the definition."""
    heads, width, s = attn.heads, attn.channels // attn.heads, attn.rank
    out, energy, handed = torch.empty_like(x), torch.zeros((), dtype=x.dtype), []
    for graph in range(carry.size(0)):
        mine = (batch == graph).nonzero().flatten()
        mean = x[mine].sum(0) / max(len(mine), 1)
        handed.append(carry[graph] + attn.virtual.weight @ mean + attn.virtual.bias)
        f_x = attn.projection + handed[-1][:, None] * torch.ones(1, attn.num_virtual, dtype=x.dtype)
        for i in mine.tolist():
            qk = attn.qk.weight @ x[i] + attn.qk.bias
            for h in range(heads):
                part = slice(h * width, (h + 1) * width)
                q, k = qk[: attn.channels][part], qk[attn.channels :][part]
                e = f_x @ attn.weight_e[:, part] @ (q / q.norm())
                r = f_x @ attn.weight_r[:, part] @ (k / k.norm())
                lam = torch.diag(attn.sqrt_lambda[h] ** 2)
                energy = energy + (e @ lam @ e + r @ lam @ r) / (2 * len(x) * heads)
                out[i, part] = attn.out.weight @ torch.cat([e, r]) + attn.out.bias
    assert (s, attn.num_virtual) == attn.projection.shape
    trace = sum(
        torch.trace(attn.weight_e[:, h * width : (h + 1) * width].t() @ attn.weight_r[:, h * width : (h + 1) * width])
        for h in range(heads)
    )
    return out, torch.stack(handed), energy - trace / heads


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_is_the_definition(dtype):
    batch = Batch.from_data_list([GRAPHS["path"], empty_graph(), GRAPHS["single"], GRAPHS["star"], empty_graph()])
    attn = PrimphormerAttention(8, heads=2, num_virtual=7, rank=5).to(dtype)
    x, carry = torch.randn(10, 8, dtype=dtype), torch.randn(5, 5, dtype=dtype)
    out, handed = attn(x, batch.batch, batch, carry=carry)
    wanted, wanted_carry, objective = naive(attn.double(), x.double(), batch.batch, carry.double())
    tol = EXACT if dtype == torch.float64 else {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(out.double(), wanted, **tol)
    torch.testing.assert_close(handed.double(), wanted_carry, **tol)
    assert objective.abs() > 1e-3
    torch.testing.assert_close(attn.auxiliary_loss.double(), objective.square(), **tol)


def test_gradients_are_those_of_the_definition():
    batch = batch_of()
    attn = PrimphormerAttention(8, heads=2, num_virtual=4, rank=3).double()
    x, carry = torch.randn(10, 8, dtype=torch.float64), torch.randn(3, 3, dtype=torch.float64)
    inputs = [x.requires_grad_(), carry.requires_grad_(), *attn.parameters()]

    def loss(out, handed, square):
        return out.sin().sum() + handed.cos().sum() + square

    fast = loss(*attn(x, batch.batch, carry=carry), attn.auxiliary_loss)
    out, handed, objective = naive(attn, x, batch.batch, carry)
    slow = loss(out, handed, objective.square())
    for a, b in zip(torch.autograd.grad(fast, inputs), torch.autograd.grad(slow, inputs), strict=True):
        torch.testing.assert_close(a, b, **EXACT)


def test_carry_alone_and_afresh():
    batch, x = batch_of(), torch.randn(10, 8, dtype=torch.float64)
    attn = PrimphormerAttention(8, heads=2, num_virtual=4, rank=3).double()
    zero = attn.initial_carry(3)
    assert zero.shape == (3, 3)
    assert (zero == 0).all()
    out, handed = attn(x, batch.batch, carry=zero)
    assert torch.equal(out, attn(x, batch.batch))
    again, twice = attn(x, batch.batch, carry=handed)
    torch.testing.assert_close(twice, 2 * handed)
    assert not torch.allclose(again, out)
    single, _ = attn(x[:4], carry=handed[:1])  # one graph, no batch vector
    torch.testing.assert_close(single, again[:4], **EXACT)


def stack(num_layers=3, norm=None, **settings):
    return GPSModel(
        4,
        8,
        2,
        num_layers,
        lambda _: GCNConv(8, 8),
        lambda _: PrimphormerAttention(8, heads=2, num_virtual=4, rank=3, **settings),
        norm=norm,
    )


def test_the_carry_runs_through_layers_of_a_model():
    batch, model = batch_of(), stack().double()
    x, state = model.encoder(batch.x), torch.zeros(3, 3, dtype=torch.float64)
    objectives = []
    for layer in model.layers:
        out, state, objective = naive(layer.attn, x, batch.batch, state)
        x = x + layer.conv(x, batch.edge_index) + (out + x)
        x = x + layer.mlp(x)
        objectives.append(objective.square())
    torch.testing.assert_close(model(batch.x, batch.edge_index, batch.batch, batch), model.head(x), **EXACT)
    torch.testing.assert_close(auxiliary_loss(model), sum(objectives), **EXACT)


def test_layers_of_a_model_share_one_matrix():
    model = stack()
    first = model.layers[0].attn.projection
    assert all(layer.attn.projection is first for layer in model.layers)
    assert sum(name.endswith("projection") for name, _ in model.named_parameters()) == 1
    for other in (copy.deepcopy(model), stack()):
        other.load_state_dict(model.state_dict())
        shared = other.layers[0].attn.projection
        assert all(layer.attn.projection is shared for layer in other.layers)
        assert shared is not first
        assert torch.equal(shared, first)
        batch = batch_of()
        arguments = (batch.x.float(), batch.edge_index, batch.batch)
        assert torch.equal(other(*arguments), model(*arguments))
    assert len({id(layer.attn.weight_e) for layer in model.layers}) == 3


def test_layers_cannot_share_one_attention():
    shared = PrimphormerAttention(8)
    with pytest.raises(ValueError, match="several layers have the same PrimphormerAttention, whose auxiliary loss"):
        GPSStack(8, 2, attn=lambda layer: shared)


def test_other_sizes_cannot_be_tied():
    for setting in ({"rank": 3}, {"num_virtual": 9}):
        sizes = [{"num_virtual": 4, "rank": 4}, {"num_virtual": 4, "rank": 4} | setting]
        with pytest.raises(ValueError, match=r"same 'num_virtual' and 'rank'.*after 4 and 4"):
            GPSModel(4, 8, 2, 2, attn=lambda n, sizes=sizes: PrimphormerAttention(8, **sizes[n]))
    with pytest.raises(TypeError, match=r"tied to each other only.*MaskedAttention"):
        PrimphormerAttention(8).tie(MaskedAttention(8))


def test_a_trained_module_can_be_copied_and_pickled():
    attn, x = PrimphormerAttention(8, heads=2), torch.randn(5, 8)
    out = attn(x)
    assert attn.auxiliary_loss.requires_grad
    buffer = io.BytesIO()
    torch.save(attn, buffer)
    buffer.seek(0)
    for other in (copy.deepcopy(attn), torch.load(buffer, weights_only=False)):
        assert other.auxiliary_loss is None
        assert torch.equal(other(x), out)


def test_checkpointing_changes_neither_loss_nor_gradient():
    batch, model = batch_of(), stack().double()
    x = model.encoder(batch.x).detach().requires_grad_()

    def run(call):
        y, carry = x, model.layers[0].attn.initial_carry(3)
        for layer in model.layers:
            y, carry = call(layer, y, batch.edge_index, batch.batch, batch, carry)
        loss = y.square().sum() + carry.sum() + 0.1 * auxiliary_loss(model)
        return loss, torch.autograd.grad(loss, list(model.layers.parameters()))

    plain = run(lambda layer, *arguments: layer(*arguments))
    saving = run(lambda layer, *arguments: checkpoint(layer, *arguments, use_reentrant=False))
    torch.testing.assert_close(saving, plain)
    with pytest.raises(RuntimeError, match="use_reentrant=False"):
        run(lambda layer, *arguments: checkpoint(layer, *arguments, use_reentrant=True))


def test_validation_without_gradients_is_allowed():
    attn, x = PrimphormerAttention(8), torch.randn(5, 8)
    attn.eval()
    with torch.no_grad():
        attn(x)
        value = auxiliary_loss(attn)
    assert torch.equal(value, auxiliary_loss(attn))
    attn.train()
    with torch.no_grad():
        attn(x)
        assert torch.equal(value, auxiliary_loss(attn))


def test_distributed_training_finds_every_parameter_used():
    """A second step fails where a parameter of the first had no gradient (find_unused_parameters=False)."""
    batch = batch_of()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        torch.manual_seed(3)
        model = DistributedDataParallel(stack())
        for eta in (0.1, 0.0):
            model.zero_grad()
            out = model(batch.x.float(), batch.edge_index, batch.batch, batch)
            (out.sum() + eta * auxiliary_loss(model)).backward()
            assert all(parameter.grad is not None for parameter in model.parameters())
        out = model(batch.x.float(), batch.edge_index, batch.batch, batch)
        out.sum().backward()  # without the objective Λ has no gradient
        with pytest.raises(RuntimeError, match="Expected to have finished reduction"):
            model(batch.x.float(), batch.edge_index, batch.batch, batch)
    finally:
        dist.destroy_process_group()


def test_compiled_equals_eager():
    batch, x = batch_of(), torch.randn(10, 8)
    attn = PrimphormerAttention(8, heads=2, num_virtual=4, rank=3)
    compiled, carry = torch.compile(attn, backend="aot_eager", fullgraph=True), attn.initial_carry(3)
    results = []
    for call in (attn, compiled):
        out, handed = call(x, batch.batch, carry=carry)
        loss = out.square().sum() + handed.sum() + attn.auxiliary_loss
        results.append((loss, *torch.autograd.grad(loss, list(attn.parameters()))))
    torch.testing.assert_close(results[0], results[1])
    torch.testing.assert_close(torch.compile(attn, backend="aot_eager")(x, batch.batch), attn(x, batch.batch))


def test_mean_of_any_function_of_the_nodes():
    """The universal construction of the paper's appendix C.4: rows (1, x, ξ(x), 0) get mean ξ in the last place."""
    width, latent = 3, 2
    channels = 1 + width + 2 * latent
    attn = PrimphormerAttention(channels, num_virtual=4, rank=latent, bias=False).double()
    batch = batch_of("path", "star", "single")
    nodes = torch.randn(batch.num_nodes, width, dtype=torch.float64)
    xi = torch.stack([nodes.sin().sum(1), nodes.prod(1)], dim=1)
    x = torch.cat([torch.ones(len(nodes), 1), nodes, xi, torch.zeros(len(nodes), latent)], dim=1)
    eye = torch.eye(latent, dtype=torch.float64)
    with torch.no_grad():
        for parameter in attn.parameters():
            parameter.zero_()
        attn.qk.weight[[0, channels], 0] = 1  # W_q = W_k = e_1 e_1^T
        attn.virtual.weight[:, 1 + width : 1 + width + latent] = eye
        attn.weight_e[0, 0] = attn.weight_r[0, 0] = 1
        attn.out.weight[-latent:] = torch.cat([eye, eye], dim=1) / 2
    mean = torch.stack([xi[batch.batch == graph].mean(0) for graph in range(3)])[batch.batch]
    wanted = torch.cat([torch.zeros(len(nodes), 1 + width + latent, dtype=torch.float64), mean], dim=1)
    torch.testing.assert_close(attn(x, batch.batch), wanted, rtol=1e-14, atol=1e-15)


def test_objective_is_zero_at_a_stationary_point():
    """Theorem 2, with Λ = N Σ^-1 for means in place of sums, from the singular values of a kernel matrix."""
    num_nodes, channels, rank, num_virtual = 7, 6, 3, 5
    attn = PrimphormerAttention(channels, num_virtual=num_virtual, rank=rank).double()
    x = torch.randn(num_nodes, channels, dtype=torch.float64)
    norms, t = torch.tensor([0.5, 1.0, 2.0]).double(), torch.tensor([1.5, -1.0, 0.5]).double()
    with torch.no_grad():
        attn.virtual.weight.zero_()
        attn.virtual.bias.zero_()
        torch.nn.init.orthogonal_(attn.projection).mul_(norms[:, None])
        q, k = (part / part.norm(dim=1, keepdim=True) for part in attn.qk(x).split(channels, dim=1))
        u, values, vh = torch.linalg.svd(q @ k.t())
        attn.weight_e.copy_(attn.projection.t() @ torch.diag(t) @ vh[:rank] @ k)
        attn.weight_r.copy_(attn.projection.t() @ torch.diag(t) @ u[:, :rank].t() @ q)
        attn.sqrt_lambda.copy_((num_nodes / (values[:rank] * norms**2)).sqrt())
    attn(x)
    trace = float(torch.trace(attn.weight_e.t() @ attn.weight_r).detach())
    assert trace == pytest.approx(float((values[:rank] * norms**2 * t**2).sum()))
    assert trace > 1
    assert attn.auxiliary_loss.item() < (1e-13 * trace) ** 2
    with torch.no_grad():  # beside the point it is not, and its gradient is felt everywhere that it depends on
        for parameter in attn.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    attn(x)
    assert attn.auxiliary_loss > 1e-6
    grads = dict(zip(names_of(attn), torch.autograd.grad(attn.auxiliary_loss, attn.parameters(), allow_unused=True)))
    assert all((grads[name] != 0).any() for name in grads if not name.startswith("out."))
    assert not grads["out.weight"].any()  # W_c is the task's alone


def names_of(module):
    return [name for name, _ in module.named_parameters()]


@pytest.mark.parametrize("eta", [0.0, 0.1])
def test_it_trains(eta):
    batch = batch_of("path", "star", "two_parts", "one_way")
    model = stack(num_layers=2, norm="batch_norm", dropout=0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    x, y = batch.x.float(), batch.batch % 2
    losses, objectives = [], []
    for _ in range(60):
        optimizer.zero_grad()
        task = torch.nn.functional.cross_entropy(model(x, batch.edge_index, batch.batch, batch), y)
        objective = auxiliary_loss(model)
        (task + eta * objective).backward()
        assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
        optimizer.step()
        losses.append(float(task.detach()))
        objectives.append(float(objective.detach()))
    assert losses[-1] < 0.3 * losses[0]
    if eta > 0:
        assert objectives[-1] < 0.1 * objectives[0]


def test_objective_does_not_see_dropout():
    attn, x = PrimphormerAttention(8, dropout=0.5), torch.randn(20, 8)
    first, loss = attn(x), attn.auxiliary_loss
    assert not torch.equal(attn(x), first)
    assert torch.equal(attn.auxiliary_loss, loss)
    attn.eval()
    assert torch.equal(attn(x), attn(x))


def test_queries_without_a_direction():
    attn = PrimphormerAttention(8, heads=2, bias=False)
    x = torch.randn(6, 8)
    x[2], x[3] = 0, 1e-30
    x.requires_grad_()
    out = attn(x)
    assert (out[2:4] == 0).all()
    (out.square().sum() + attn.auxiliary_loss).backward()
    assert x.grad.isfinite().all()
    assert x.grad.abs().max() < 1e3


def test_scores_are_float32_under_autocast_and_in_half_precision():
    attn, x, batch = PrimphormerAttention(8, heads=2), torch.randn(10, 8), batch_of()
    exact = attn(x, batch.batch)
    objective = attn.auxiliary_loss
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, carry = attn(x, batch.batch, carry=attn.initial_carry(3))
    assert (out.dtype, carry.dtype, attn.auxiliary_loss.dtype) == (torch.bfloat16, torch.float32, torch.float32)
    torch.testing.assert_close(attn.auxiliary_loss, objective, rtol=0.02, atol=1e-3)
    half = attn.bfloat16()
    out, carry = half(x.bfloat16(), batch.batch, carry=half.initial_carry(3))
    assert (out.dtype, carry.dtype) == (torch.bfloat16, torch.float32)
    assert (out.float() - exact).norm() < 0.05 * exact.norm()


def test_no_nodes():
    attn = PrimphormerAttention(8, heads=2).double()
    out, carry = attn(torch.zeros(0, 8).double(), torch.zeros(0).long(), carry=torch.ones(2, 30).double())
    assert out.shape == (0, 8)
    assert carry.shape == (2, 30)
    (out.sum() + attn.auxiliary_loss).backward()
    trace = (attn.weight_e * attn.weight_r).sum() / 2
    torch.testing.assert_close(attn.auxiliary_loss, trace.square())
    assert all(parameter.grad.isfinite().all() for parameter in attn.parameters() if parameter.grad is not None)


def test_initial_parameters():
    attn = PrimphormerAttention(48, heads=4)
    for matrix in (attn.weight_e, attn.weight_r, attn.projection):
        assert matrix.shape[0] == 30
        torch.testing.assert_close(matrix @ matrix.t(), torch.eye(30), rtol=1e-5, atol=1e-5)
    assert attn.sqrt_lambda.shape == (4, 30)
    assert attn.sqrt_lambda.min() >= 0
    assert attn.sqrt_lambda.max() <= 1
    before = attn.weight_e.clone()
    attn.reset_parameters()
    assert not torch.equal(attn.weight_e, before)


def test_primal_is_the_definition():
    attn = PrimalAttention(8, heads=2, num_samples=4, rank=3).double()
    batch = batch_of("two_parts", "single", "star")
    x = torch.randn(12, 8, dtype=torch.float64)
    samples = [[0, 1, 3, 5], [6, 6, 6, 6], [7, 8, 9, 11]]  # of 6, 1 and 5 nodes
    wanted, energy = torch.empty_like(x), 0
    for i in range(12):
        qk = attn.qk.weight @ x[i] + attn.qk.bias
        for h in range(2):
            f_x = x[samples[batch.batch[i]], 4 * h : 4 * h + 4]  # [4 samples, D]
            q, k = qk[4 * h : 4 * h + 4], qk[8 + 4 * h : 12 + 4 * h]
            e = (f_x.t() @ attn.weight_e[h]).t() @ (q / q.norm())
            r = (f_x.t() @ attn.weight_r[h]).t() @ (k / k.norm())
            wanted[i, 4 * h : 4 * h + 4] = attn.out.weight @ torch.cat([e, r]) + attn.out.bias
            energy = energy + (attn.sqrt_lambda[h] ** 2 * (e * e + r * r)).sum() / (2 * 12 * 2)
    torch.testing.assert_close(attn(x, batch.batch), wanted, **EXACT)
    trace = sum(torch.trace(attn.weight_e[h].t() @ attn.weight_r[h]) for h in range(2)) / 2
    torch.testing.assert_close(attn.auxiliary_loss, (energy - trace).square(), **EXACT)


@pytest.mark.parametrize("cls", [PrimphormerAttention, PrimalAttention])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"heads": 3}, r"divisible by 'heads' \(got 8 and 3\)"),
        ({"heads": 0}, "'heads' must be at least 1"),
        ({"rank": 0}, r"'rank' must be at least 1 \(got 0\)"),
        ({"dropout": 1.0}, r"in \[0, 1\) \(got 1.0\)"),
    ],
)
def test_bad_arguments_are_refused(cls, arguments, message):
    with pytest.raises(ValueError, match=message):
        cls(8, **arguments)


class Doubled(torch.nn.Module):
    """A wrapper, such as those for low-rank updates of a weight."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return 2 * self.inner(x)


@pytest.mark.parametrize("build", [TestPrimphormer, TestPrimal])
@pytest.mark.parametrize("bias", [True, False])
def test_hooks_and_replacements_of_the_output_map_count(build, bias):
    attn, x = build().build().double(), torch.randn(9, build.channels, dtype=torch.float64)
    if not bias:
        attn.out.bias = None
    batch = torch.tensor([0] * 4 + [1] * 5)
    plain, seen = attn(x, batch), []
    loss = attn.auxiliary_loss
    hook = attn.out.register_forward_hook(lambda module, inputs, out: seen.append(inputs[0].shape))
    torch.testing.assert_close(attn(x, batch), plain, **EXACT)
    torch.testing.assert_close(attn.auxiliary_loss, loss, **EXACT)
    assert seen == [(9, 2, 2 * attn.rank)]
    hook.remove()
    attn.out = Doubled(attn.out)
    torch.testing.assert_close(attn(x, batch), 2 * plain, **EXACT)
    attn.out = attn.out.inner
    attn.out.forward = lambda scores: torch.zeros_like(attn.out.weight[:, 0].expand(*scores.shape[:-1], -1))
    assert not attn(x, batch).any()
    del attn.out.forward
    attn.reset_parameters()


def test_the_map_of_the_virtual_node_may_be_wrapped():
    attn, x = PrimphormerAttention(8, heads=2), torch.randn(5, 8)
    plain = attn(x)
    attn.virtual = Doubled(attn.virtual)
    assert not torch.allclose(attn(x), plain)


def test_a_pruned_output_map_is_used():
    attn, x = PrimphormerAttention(8, heads=2, num_virtual=5, rank=3), torch.randn(5, 8)
    l1_unstructured(attn.out, "weight", 0.5)
    attn(x).square().sum().backward()
    with torch.no_grad():
        attn.out.weight_orig.mul_(2)
        attn.out.bias.mul_(2)
    twin = PrimphormerAttention(8, heads=2, num_virtual=5, rank=3)
    others = {key: value for key, value in attn.state_dict().items() if "out.weight" not in key}
    twin.load_state_dict(others, strict=False)
    with torch.no_grad():
        twin.out.weight.copy_(attn.out.weight_orig * attn.out.weight_mask)
    torch.testing.assert_close(attn(x), twin(x))


def test_bad_sizes_and_carries_are_refused():
    with pytest.raises(ValueError, match=r"'num_virtual' must be at least 1 \(got 0\)"):
        PrimphormerAttention(8, num_virtual=0)
    with pytest.raises(ValueError, match=r"'num_samples' must be at least 1 \(got 0\)"):
        PrimalAttention(8, num_samples=0)
    attn, x, batch = PrimphormerAttention(8, rank=3), torch.randn(10, 8), batch_of()
    for carry in (torch.zeros(3, 4), torch.zeros(3)):
        with pytest.raises(ValueError, match=r"'carry' must have shape \[B, 3\]"):
            attn(x, batch.batch, carry=carry)
    with pytest.raises(ValueError, match="'carry' has 2 rows, but the batch has 3 graphs"):
        attn(x, batch.batch, carry=torch.zeros(2, 3))
    with pytest.raises(ValueError, match="'carry' has 2 rows, but the batch has 1 graph"):
        attn(x, carry=torch.zeros(2, 3))
