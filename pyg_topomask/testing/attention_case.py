"""Checks that every attention module must pass."""

import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import Module
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import checkpoint
from torch_geometric.data import Batch, Data
from torch_geometric.utils import to_dense_batch

from pyg_topomask.nn.attention.base import has_carry
from pyg_topomask.nn.auxiliary import auxiliary_loss
from pyg_topomask.testing import checks
from pyg_topomask.testing.examples import prepared
from pyg_topomask.testing.graphs import GRAPHS, block_permutation, empty_graph
from pyg_topomask.transforms.relabel import permute


class AttentionCase:
    """Checks of one attention ``attn(x, batch=None, graph=None) -> [N, C]``; a subclass defines how to build it.

    .. code-block:: python

        class TestGRFAttention(AttentionCase):
            def build(self):
                return GRFAttention(self.channels, heads=2)

    An attention that draws new random numbers in each call cannot pass; build it in evaluation mode. Define
    `reference`, too: the same result from the formula, slow and plain.
    """

    channels: ClassVar[int] = 8
    """Width of the attention that `build` returns."""
    gradcheck_channels: ClassVar[int] = 4
    """Width for comparing gradients with finite differences, which takes two calls per parameter."""
    names: ClassVar[tuple[str, ...]] = ("path", "isolated", "single", "star", "two_parts")
    """Names of the graphs for the checks."""
    tol: ClassVar[dict[str, Any]] = {"rtol": 1e-10, "atol": 1e-12}
    """Tolerances of comparisons in float64."""
    plan_tol: ClassVar[dict[str, Any]] = {"rtol": 1e-9, "atol": 1e-11}
    """Tolerances of results with a plan in float64: it may choose another engine, or a longer series."""
    transform: ClassVar[str] = "add the transform Add"
    """What the error about a missing attribute must say."""
    equivariant: ClassVar[bool] = True
    """Whether relabelling the nodes relabels the result. If not, it must change the result on the graphs `names`."""

    def build(self) -> Module:
        """The attention under test, of width ``self.channels``, with parameters from torch's default generator.

        `test_gradcheck` lowers ``self.channels``.
        """
        raise NotImplementedError

    def prepare(self, data: Data) -> Data:
        """Add the attributes that the attention requires; they must depend only on the graph.

        By default, the transforms do that which declare these attributes.
        """
        with torch.random.fork_rng(devices=[]):
            return prepared(self.build(), [data], num_walks=4)[0]

    def reference(self, attn: Any, x: Tensor, batch: Batch, carry: Any) -> Any:
        """What ``attn`` gives by its definition, without its code: ``[N, C]`` for ``x`` in float64.

        An attention that has a carry gets one and returns ``(x, carry)``. The last result may be the auxiliary loss.
        """
        raise NotImplementedError

    def combined(self, attn: Any, x: Tensor, batch: Batch, pairs: Tensor, weights: Tensor) -> Tensor | None:
        """The result ``[N, C]`` that follows from the weights ``[P, H]`` of pairs ``[2, P]``, which ``attn`` returns.

        If it is :obj:`None`, as by default, the weights are not compared with the result.
        """
        return None

    def permute(self, data: Data, perm: Tensor) -> Data:
        """Copy of ``data`` whose node ``i`` is the old node ``perm[i]``, with all required attributes."""
        return permute(data, perm)

    @pytest.fixture(autouse=True)
    def _seed(self) -> None:
        torch.manual_seed(0)

    def _graphs(self) -> list[Data]:
        return [self.prepare(GRAPHS[name].clone()) for name in self.names]

    def _case(self, dtype: torch.dtype = torch.float64) -> tuple[Any, Batch, Tensor]:
        """The attention, the graphs in a batch, and an input for it."""
        batch = Batch.from_data_list(self._graphs())
        return self.build().to(dtype), batch, self._input(batch.num_nodes, dtype)

    def _one(self) -> tuple[Any, Data, Tensor]:
        """The attention, the first graph, and an input for it, in float32."""
        data = self.prepare(GRAPHS[self.names[0]].clone())
        return self.build(), data, self._input(data.num_nodes, torch.float32)

    def _input(self, num_nodes: int, dtype: torch.dtype = torch.float64) -> Tensor:
        return torch.randn(num_nodes, self.channels, dtype=dtype)

    def test_forward_contract(self) -> None:
        attn = self.build()
        for data in self._graphs():
            x = self._input(data.num_nodes, torch.float32)
            before = x.clone()
            out = attn(x, None, data)
            assert out.shape == x.shape
            assert out.dtype == x.dtype
            assert out.isfinite().all()
            assert torch.equal(x, before)
            assert torch.equal(out, attn(x, None, data))  # equal results of equal calls

    def _batch(self) -> Batch:
        """All graphs, and one without nodes."""
        return Batch.from_data_list([*self._graphs(), self.prepare(empty_graph())])

    def test_is_the_definition(self) -> None:
        if type(self).reference is AttentionCase.reference:
            pytest.skip("the case defines no reference")
        attn: Any = self.build().double()
        batch = self._batch()
        x, carry = self._input(batch.num_nodes).requires_grad_(), None
        inputs = [x, *attn.parameters()]
        if has_carry(attn):
            carry = torch.randn_like(attn.initial_carry(batch.num_graphs)).requires_grad_()
            inputs.append(carry)
        wanted = _listed(self.reference(attn, x, batch, carry))
        more: dict[str, Any] = {} if carry is None else {"carry": carry}
        found = _listed(attn(x, batch.batch, batch, **more))
        found += [auxiliary_loss(attn)] * (len(wanted) - len(found))
        torch.testing.assert_close(found, wanted, **self.tol)
        for one, other in zip(*(_gradients(results, inputs) for results in (found, wanted))):
            torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)
        more = {} if carry is None else {"carry": carry.float()}
        single = _listed(attn.float()(x.float(), batch.batch, batch, **more))
        torch.testing.assert_close(single[0], wanted[0].float(), rtol=1e-4, atol=1e-5)

    def test_weights_of_pairs_are_those_that_multiply_the_values(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(self, "channels", 16)  # more of a head than nodes of a graph: the values tell all apart
        attn, batch, x = self._case()
        call, size = partial(attn, return_attention_weights=True), batch.num_nodes
        if attn._weights is None:
            with pytest.raises(NotImplementedError, match=f"{type(attn).__name__} forms no weights of pairs"):
                call(x, batch.batch, batch)
            return
        out, (pairs, weights) = call(x, batch.batch, batch)
        assert torch.equal(out, attn(x, batch.batch, batch))
        if (combined := self.combined(attn, x, batch, pairs, weights)) is not None:
            torch.testing.assert_close(combined, out, **self.tol)
        if bool((weights >= 0).all()):  # and so the mask is its own bound
            total = weights.new_zeros(int(pairs.max()) + 1, weights.size(1)).index_add(0, pairs[0], weights)
            torch.testing.assert_close(total, (total > 0.5).to(total), **self.tol)
        assert torch.equal(pairs, pairs.unique(dim=1))
        same = call(*to_dense_batch(x, batch.batch), batch)[1]  # numbers without padding
        torch.testing.assert_close(same, (pairs, weights), **self.tol)
        chosen = torch.isin(pairs[0], torch.tensor([1, size - 1]))
        rows = call(x, batch.batch, batch, rows=[size - 1, 1])[1]
        torch.testing.assert_close(rows, (pairs[:, chosen], weights[chosen]), **self.tol)
        torch.testing.assert_close(call(x, plan=attn.plan(batch))[1], (pairs, weights), **self.tol)
        with pytest.raises(ValueError, match=f"'rows' must be numbers of nodes.*got \\[{size}"):
            call(x, batch.batch, batch, rows=[size])

    def test_the_carry_goes_with_its_graph(self) -> None:
        attn: Any = self.build().double()
        if not hasattr(attn, "initial_carry"):
            return
        batch = self._batch()
        x, initial = self._input(batch.num_nodes), attn.initial_carry(batch.num_graphs)
        afresh = attn(x, batch.batch, batch)
        torch.testing.assert_close(attn(x, batch.batch, batch, carry=initial)[0], afresh, **self.tol)
        start = torch.randn_like(initial)
        out, carry = attn(x, batch.batch, batch, carry=start)
        for number, part in enumerate(batch.to_data_list()):
            mine = batch.batch == number
            alone = attn(x[mine], None, part, carry=start[[number]])
            torch.testing.assert_close(alone, (out[mine], carry[[number]]), **self.tol)
        perm = block_permutation(batch.batch)
        moved = self.permute(batch, perm)
        again = attn(x[perm], moved.batch, moved, carry=start)
        torch.testing.assert_close(again, (out[perm], carry), **self.tol)
        with pytest.raises(ValueError, match="'carry'"):
            attn(x, batch.batch, batch, carry=start[:1])

    def test_a_plan_gives_the_same(self) -> None:
        attn: Any = self.build().double()
        batch = self._batch()
        x = self._input(batch.num_nodes).requires_grad_()
        inputs = [x, *attn.parameters()]

        def results(out: Tensor) -> list[Tensor]:
            return [out, auxiliary_loss(attn), *_gradients([out, auxiliary_loss(attn)], inputs)]

        plan, wanted = attn.plan(batch), results(attn(x, batch.batch, batch))
        leaves, spec = tree_flatten(plan)
        assert all(isinstance(leaf, Tensor) for leaf in leaves)
        assert plan.nbytes == sum(leaf.nbytes for leaf in leaves)
        for same in (plan, tree_unflatten(leaves, spec), pickle.loads(pickle.dumps(plan)), plan.to("cpu")):
            torch.testing.assert_close(results(attn(x, plan=same)), wanted, **self.plan_tol)
        with torch.no_grad():
            attn.eval()
            torch.testing.assert_close(attn(x, plan=plan), attn(x, batch.batch, batch), **self.plan_tol)

    def test_checkpointing_changes_no_gradient(self) -> None:
        (attn, batch, x), found = self._case(), []
        x.requires_grad_()
        for call in (attn, partial(checkpoint, attn, use_reentrant=False)):
            out = call(x, batch.batch, batch)
            found.append(_gradients([out, auxiliary_loss(attn)], [x, *attn.parameters()]))
        torch.testing.assert_close(found[1], found[0], **self.tol)

    def test_batch_equals_each_graph_alone(self) -> None:
        attn, batch, x = self._case()
        out, parts = attn(x, batch.batch, batch), batch.to_data_list()
        alone = [attn(rows, None, data) for data, rows in zip(parts, x.split(batch.ptr.diff().tolist()))]
        torch.testing.assert_close(out, torch.cat(alone), **self.tol)
        out = attn.float()(x.float(), batch.batch, batch)
        torch.testing.assert_close(out, torch.cat(alone).float(), rtol=1e-5, atol=1e-6)

    def test_dense_and_nested_nodes_give_what_flat_ones_give(self) -> None:
        attn, batch = self.build().double(), self._batch()
        x, sizes = self._input(batch.num_nodes).requires_grad_(), batch.ptr.diff()
        mask = torch.arange(int(sizes.max()) + 2) < sizes[:, None]
        dense = x.new_full((*mask.shape, self.channels), torch.nan).masked_scatter(mask[..., None], x)
        out, nested = attn(dense, mask, batch), attn(torch.nested.nested_tensor_from_jagged(x, batch.ptr), graph=batch)
        assert out.shape == dense.shape
        assert (out[~mask] == 0).all()
        assert torch.equal(attn(dense, graph=batch, mask=mask), out)
        wanted = attn(x, None, batch)
        found = [(flat, *_gradients([flat], [x])) for flat in (wanted, out[mask], nested.values())]
        for one in found[1:]:
            torch.testing.assert_close(one, found[0], **self.tol)

    def test_neighbouring_graph_cannot_be_seen(self) -> None:
        for dtype in (torch.float32, torch.float64):
            attn, batch, x = self._case(dtype)
            out = attn(x, batch.batch, batch)
            for number in range(batch.num_graphs):
                inside = batch.batch == number
                scaled = torch.where(inside[:, None], x, 1e6 * x)
                # Bit equality holds on any machine: the operations and the shapes are the same.
                assert torch.equal(attn(scaled, batch.batch, batch)[inside], out[inside])

    def test_gradient_stays_in_its_graph(self) -> None:
        attn, batch, x = self._case()
        first = batch.batch == 0
        (grad,) = torch.autograd.grad(attn(x.requires_grad_(), batch.batch, batch)[first].square().sum(), x)
        assert (grad[~first] == 0).all()
        assert (grad[first] != 0).any()

    def test_permutation_equivariance(self) -> None:
        attn, batch, x = self._case()
        perm = block_permutation(batch.batch)
        assert not torch.equal(perm, torch.arange(batch.num_nodes))
        out = attn(x, batch.batch, batch)
        moved = self.permute(batch, perm)
        moved_out = attn(x[perm], moved.batch, moved)
        if self.equivariant:
            torch.testing.assert_close(moved_out, out[perm], **self.tol)
        else:
            assert not torch.allclose(moved_out, out[perm], **self.tol)

    def test_gradients_are_finite_and_reach_every_parameter(self) -> None:
        attn, batch, x = self._case(torch.float32)
        loss = (attn(x.requires_grad_(), batch.batch, batch) * torch.randn_like(x)).sum()
        (loss + auxiliary_loss(attn)).backward()
        assert x.grad is not None
        assert x.grad.isfinite().all()
        for name, parameter in attn.named_parameters():
            assert parameter.grad is not None, f"no gradient for {name}"
            assert parameter.grad.isfinite().all(), name
            assert (parameter.grad != 0).any(), f"zero gradient for {name}"

    def test_gradcheck(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(self, "channels", self.gradcheck_channels)
        run, inputs = self._function_of(self.prepare(GRAPHS["path"].clone()), torch.float64, with_loss=True)
        assert torch.autograd.gradcheck(run, [value.requires_grad_() for value in inputs])

    def _function_of(
        self, data: Data, dtype: torch.dtype, with_loss: bool = False
    ) -> tuple[Callable[..., Tensor], list[Tensor]]:
        """The attention as a function of its input and its parameters, and these; its loss may follow the result."""
        attn = self.build().to(dtype)
        names = [name for name, _ in attn.named_parameters()]

        def run(x: Tensor, *values: Tensor) -> Tensor:
            out: Tensor = functional_call(attn, dict(zip(names, values)), (x, None, data))
            return torch.cat([out.flatten(), auxiliary_loss(attn).view(1)]) if with_loss else out

        return run, [self._input(data.num_nodes, dtype), *(value.detach() for value in attn.parameters())]

    def test_forward_mode_transforms_and_autocast(self) -> None:
        batch = Batch.from_data_list(self._graphs())
        checks.check_forward_mode(*self._function_of(batch, torch.float64))
        checks.check_reverse_mode(*self._function_of(batch, torch.float64))
        checks.check_backward_in_autocast(*self._function_of(batch, torch.float32))

    def test_repeats_on_two_threads(self) -> None:
        checks.check_threads(*self._function_of(Batch.from_data_list(self._graphs() * 100), torch.float32))

    def test_parameters_on_the_meta_device_can_be_filled(self) -> None:
        attn, data, x = self._one()
        with torch.device("meta"):
            other = self.build()
        assert all(parameter.is_meta for parameter in other.parameters())
        other = other.to_empty(device="cpu")
        for module in other.modules():  # what is not in a state dict
            getattr(module, "reset_parameters", lambda: None)()
        other.load_state_dict(attn.state_dict())
        assert torch.equal(other(x, None, data), attn(x, None, data))

    def test_inference_mode_before_training(self) -> None:
        """Results that are cached for a batch in inference mode must also work in a backward pass."""
        attn, batch, x = self._case(torch.float32)
        with torch.inference_mode():
            value = attn(x, batch.batch, batch)
        out = attn(x, batch.batch, batch)
        (out.sum() + auxiliary_loss(attn)).backward()
        torch.testing.assert_close(out, value)

    def test_copies_pickles_and_state_dicts_are_the_same(self) -> None:
        attn, data, x = self._one()
        out, other = attn(x, None, data), self.build()  # the first may hold a loss, whose gradient cannot be copied
        assert not torch.equal(other(x, None, data), out)
        other.load_state_dict(attn.state_dict())
        for same in (other, copy.deepcopy(attn), pickle.loads(pickle.dumps(attn))):
            assert torch.equal(same(x, None, data), out)

    def test_reset_draws_every_parameter_anew(self) -> None:
        attn: Any = self.build()
        for parameter in attn.parameters():
            parameter.data.fill_(7.0)
        attn.reset_parameters()
        for name, parameter in attn.named_parameters():
            assert parameter.isfinite().all(), name
            assert (parameter != 7).all(), name

    def test_graphs_without_nodes(self) -> None:
        attn, empty = self.build().double(), self.prepare(empty_graph())
        for data in (empty, Batch.from_data_list([empty, empty])):
            x = self._input(0).requires_grad_()
            (attn(x, data.batch, data).sum() + auxiliary_loss(attn)).backward()
            assert x.grad is not None
            assert x.grad.shape == (0, self.channels)
        parts = [self.prepare(GRAPHS["path"].clone()), empty, self.prepare(GRAPHS["single"].clone())]
        batch = Batch.from_data_list(parts)
        x = self._input(batch.num_nodes)
        alone = torch.cat([attn(x[:4], None, parts[0]), attn(x[4:], None, parts[2])])
        torch.testing.assert_close(attn(x, batch.batch, batch), alone, **self.tol)

    def test_bfloat16_autocast(self) -> None:
        attn, batch, x = self._case(torch.float32)
        other = Batch.from_data_list(batch.to_data_list())
        exact = attn(x, other.batch, other)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = attn(x, batch.batch, batch)
        assert torch.equal(attn(x, batch.batch, batch), exact)  # cached results do not depend on autocast
        out.float().sum().backward()
        assert all(parameter.grad.isfinite().all() for parameter in attn.parameters() if parameter.grad is not None)
        assert (out.float() - exact).norm() <= 0.05 * exact.norm()
        with torch.autocast("cpu", dtype=torch.bfloat16):  # as after another layer, which has already rounded
            out = attn(x.bfloat16(), batch.batch, batch)
        assert out.dtype == torch.bfloat16
        assert (out.float() - exact).norm() <= 0.1 * exact.norm()

    def test_bfloat16(self) -> None:
        attn, batch, x = self._case(torch.float32)
        exact, half = attn(x, batch.batch, batch), x.bfloat16().requires_grad_()
        out = attn.bfloat16()(half, batch.batch, batch)
        assert out.dtype == torch.bfloat16
        assert (out.float() - exact).norm() <= 0.1 * exact.norm()
        out.float().sum().backward()
        assert half.grad is not None
        assert half.grad.isfinite().all()

    def test_batch_defaults_to_that_of_the_graph(self) -> None:
        attn, batch, x = self._case()
        assert torch.equal(attn(x, None, batch), attn(x, batch.batch, batch))

    def test_missing_attributes_name_the_transform(self) -> None:
        attn, data = self.build(), self.prepare(GRAPHS["path"].clone())
        x = self._input(4, torch.float32)
        required: tuple[str, ...] = getattr(attn, "requires")  # noqa: B009
        for name in required:
            bare = data.clone()
            del bare[name]
            with pytest.raises(ValueError, match=f"{name}.*{self.transform}"):
                attn(x, None, bare)
        if required:
            with pytest.raises(ValueError, match="needs the graph"):
                attn(x)

    def test_bad_input_is_refused(self) -> None:
        attn, data = self.build(), self.prepare(GRAPHS["path"].clone())
        x = self._input(4, torch.float32)
        with pytest.raises(ValueError, match="'batch' must be sorted"):
            attn(x, torch.tensor([0, 1, 0, 1]), data)
        with pytest.raises(ValueError, match=rf"'x' must have shape \[N, {self.channels}\]"):
            attn(torch.ones(4, self.channels + 1), None, data)
        x[2, 1] = torch.nan
        with pytest.raises(ValueError, match="NaN or infinity, first at node 2"):
            attn(x, None, data)


def _listed(results: Any) -> list[Tensor]:
    return list(results) if isinstance(results, tuple) else [results]


def _gradients(results: list[Tensor], inputs: list[Tensor]) -> tuple[Tensor, ...]:
    """Gradients of one number that depends on all results."""
    loss = torch.stack([result.sin().sum() for result in results]).sum()
    return torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True)
