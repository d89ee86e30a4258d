"""Run code as if on CUDA, on a machine without a GPU: what is launched, what waits, and what a GPU would refuse.

Tensors are `OnCuda`: they say that they lie on cuda:7, and hold a CPU tensor with the values. `AsIfCuda` sees every
call of an ATen operator on them, in forward and backward passes, computes it on CPU, and

- raises `WrongDeviceError` if a call mixes tensors of both devices, or if a kernel of Triton cannot take its arguments;
- counts the kernels that CUDA launches, with a fixed number for each operator (`KERNELS`, otherwise 1; views launch
  none), so that the total is an estimate;
- adds up the bytes of what kernels read and write (``moved``), each argument and result once;
- counts the calls after which the host waits: copies to the host and blocking copies from it, and operators whose
  result has a size that depends on values.

Triton's kernels are not run, but their arguments are kept in ``kernels``, and the results come from plain torch.
"""

from __future__ import annotations

import sys
import traceback
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from math import prod
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import Module, Parameter, functional
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from pyg_topomask.ops import sparse, triton_support
from pyg_topomask.ops.attention import full_softmax
from pyg_topomask.ops.attention.engines.blocks_triton import BlockMeansTriton
from pyg_topomask.ops.attention.engines.pairs_triton import PairSums
from pyg_topomask.ops.native import loader, op
from pyg_topomask.ops.native.op import CompiledOp
from pyg_topomask.ops.topk import triton as topk_triton
from pyg_topomask.ops.topk.means import KeptMeans

DEVICE = torch.device("cuda:7")  # what is stored for a device is not found by code that runs on a real GPU

KERNELS = {
    **dict.fromkeys(("_unique2", "unique_dim"), 9),
    **dict.fromkeys(("unique_consecutive", "index_put", "index_put_", "_index_put_impl_", "randperm"), 5),
    "embedding_dense_backward": 5,
    **dict.fromkeys(("sort", "argsort", "masked_select", "bincount", "repeat_interleave"), 4),
    **dict.fromkeys(("nonzero", "topk", "sparse_sampled_addmm", "masked_scatter", "masked_scatter_"), 3),
    **dict.fromkeys(("cumsum", "native_batch_norm", "native_batch_norm_backward", "scatter_reduce", "equal"), 2),
    "native_layer_norm_backward": 2,
    "_linalg_eigh": 20,
}
"""Kernels of one call on CUDA (CUB, cuSPARSE, cuSOLVER), where it is not one."""

WAITS = {"_local_scalar_dense", "nonzero", "_unique2", "unique_consecutive", "unique_dim", "masked_select", "bincount"}
WAITS |= {"equal", "_linalg_eigh"}
FREE = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "lift_fresh", "_unsafe_view"}
FREE |= {"_sparse_compressed_tensor_unsafe", "_sparse_csr_tensor_unsafe", "_assert_async", "resize_", "detach"}
ON_HOST = {"copy_", "_to_copy", "index", "index_put", "index_put_", "_index_put_impl_"}  # take tensors of both devices
SIZES = {"PAIRS", "CUT", "HEADS", "WIDTH", "CHANNELS", "SIZE", "QUERIES", "KEYS", "DIM", "TOPK", "num_warps"}
"""What Triton wants as powers of two."""


class WrongDeviceError(RuntimeError):
    """What a GPU would refuse."""


class OnCuda(Tensor):
    """A tensor that tells Python that it lies on cuda:7. Autograd, which is not asked, sees one on CPU."""

    inner: Tensor
    device, is_cuda, is_cpu = DEVICE, True, False  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, inner: Tensor) -> OnCuda:
        shape: dict[str, Any] = {"layout": inner.layout, "dtype": inner.dtype}
        if inner.layout == torch.strided:
            shape |= {"strides": inner.stride(), "storage_offset": inner.storage_offset()}
        made: OnCuda = Tensor._make_wrapper_subclass(cls, inner.shape, **shape)  # type: ignore[attr-defined]
        made.inner = inner
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    def cpu(self) -> Tensor:
        return self.to("cpu")

    def tolist(self) -> Any:
        return self.to("cpu").tolist()

    def numpy(self, *, force: bool = False) -> Any:
        raise WrongDeviceError("numpy() of a tensor on CUDA")

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise WrongDeviceError(f"{func} is called outside of AsIfCuda")


class AsIfCuda(TorchDispatchMode):
    """The mode. Move batches with ``.to(DEVICE)``, and modules by `to_cuda`."""

    def __init__(self) -> None:
        super().__init__()
        self.launches, self.waits, self.kernels = Counter[str](), Counter[str](), list[tuple[Any, ...]]()
        self.moved = 0
        self._stack = ExitStack()

    def clear(self) -> None:
        """Count from 0 on."""
        self.launches.clear(), self.waits.clear()
        self.moved = 0

    def __enter__(self) -> AsIfCuda:
        for holder, name, value in (
            (Tensor, "to", self._moving(Tensor.to)),
            (torch.cuda, "_lazy_init", lambda: None),
            (torch.cuda, "is_current_stream_capturing", lambda: False),
            (loader, "is_traced", lambda: False),
            (op, "_ORDINARY", (*op._ORDINARY, OnCuda)),
            (triton_support, "launch", self._launch_triton),
            (PairSums, "run", self._run_twin(PairSums.run)),
            (KeptMeans, "run", self._run_twin(KeptMeans.run)),
            (BlockMeansTriton, "run", self._run_twin(BlockMeansTriton.run)),
            (sparse, "_csr_tensor", _csr_tensor(sparse._csr_tensor)),
            (full_softmax, "scaled_dot_product_attention", _attend),
            (functional, "dropout", _drop),
            (functional, "scaled_dot_product_attention", _attend),
        ):
            self._stack.enter_context(patch.object(holder, name, value))
        torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor() then calls an operator to copy to the device
        self._stack.callback(torch._C._set_only_lift_cpu_tensors, False)
        return super().__enter__()  # type: ignore[no-any-return]

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self._stack.close()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = dict(kwargs or {}), func._schema.name.split("::")[1]
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        made = {id(x.inner): x for x in given if isinstance(x, OnCuda)}  # results that are arguments, as in x.add_(1)
        to_cuda = torch.device(kwargs.get("device") or "cpu").type == "cuda"
        if not (to_cuda or made or (not given and _from_autograd())):
            return func(*args, **kwargs)
        self._check(func, name, given)
        self._count(func, name, kwargs, given)
        if to_cuda:
            kwargs["device"] = torch.device("cpu")
        out = func(*tree_map(_inner, args), **tree_map(_inner, kwargs))
        if not (func.is_view or name in FREE):
            self.moved += sum(map(_bytes, [*given, *tree_leaves(out)]))
        if name == "copy_" and not isinstance(given[0], OnCuda):
            return out
        return tree_map_only(Tensor, lambda x: made[id(x)] if id(x) in made else OnCuda(x), out)

    def _check(self, func: Any, name: str, given: Sequence[Tensor]) -> None:
        if func.namespace not in ("aten", "prim", "prims") and name != "topk_search":  # which has kernels for CUDA
            raise WrongDeviceError(f"{func} has no kernel for CUDA")
        here = [x for x in given if not isinstance(x, OnCuda) and x.dim() > 0]
        if here and name not in ON_HOST:
            raise WrongDeviceError(f"{name} mixes CUDA with CPU tensors of the shapes {[list(x.shape) for x in here]}")

    def _count(self, func: Any, name: str, kwargs: Any, given: Sequence[Tensor]) -> None:
        copies = name in ON_HOST and not all(isinstance(x, OnCuda) for x in given)
        by_mask = "index" in name and any(x.dtype == torch.bool for x in given[1:])
        unsized = name == "repeat_interleave" and kwargs.get("output_size") is None
        if name in WAITS or by_mask or unsized or (copies and not kwargs.get("non_blocking")):
            self.waits[f"{name} at {_place()}"] += 1
        if not (func.is_view or name in FREE):
            self.launches[name] += KERNELS.get(name, 1) + 3 * by_mask

    def _moving(self, to: Any) -> Any:
        """``Tensor.to``: autograd believes that all tensors are on CPU, so copies to and from it are made here."""

        def move(x: Tensor, *args: Any, copy: bool = False, **kwargs: Any) -> Tensor:
            if args and isinstance(args[0], Tensor):
                args = args[0].device, args[0].dtype, *args[1:]
            device, dtype, non_blocking, _ = torch._C._nn._parse_to(*args, **kwargs)
            if device is None or device.type == x.device.type:
                return to(x, dtype=dtype or x.dtype, copy=copy)  # type: ignore[no-any-return]
            if not non_blocking:
                self.waits[f"to at {_place()}"] += 1
            inner = _inner(x.detach()).to(dtype=dtype or x.dtype, copy=True)
            return OnCuda(inner) if device.type == "cuda" else inner

        return move

    def _launch_triton(
        self, module: str, name: str, grid: Any, arguments: Any, constants: Any, num_warps: int = 4
    ) -> None:
        """In place of a launch: check what Triton would, and search by torch. Operations get their results later."""
        for x in arguments:
            if isinstance(x, Tensor) and not isinstance(x, OnCuda):
                raise WrongDeviceError(f"the kernel {name} is given a CPU tensor of shape {list(x.shape)}")
            if not isinstance(x, (Tensor, int, float, type(None))):
                raise WrongDeviceError(f"the kernel {name} is given {x!r}")
        sizes = {**constants, "num_warps": num_warps}
        odd = {key: size for key, size in sizes.items() if key in SIZES and size & (size - 1)}
        if odd:
            raise WrongDeviceError(f"the kernel {name} needs powers of two (got {odd})")
        self.kernels.append((module, name, arguments, constants, num_warps))
        if 0 not in grid:
            self.launches[f"triton {name}"] += 1
            self.moved += sum(map(_bytes, arguments))
        if name == "search_block":
            _search(*(_inner(x) for x in arguments[:4]), arguments[-1])

    def _run_twin(self, run: Any) -> Any:
        def run_and_fill(op: CompiledOp, inputs: Any, results: Any, grads: Any = (), room: Any = ()) -> None:
            run(op, inputs, results, grads, room)
            with _disable_current_modes(), torch.enable_grad():
                given = [_inner(x) for x in inputs]
                first = [x if x is None else x.detach().requires_grad_() for x in given[: op.differentiable]]
                made = op.twin(*first, *given[op.differentiable :])
                made = (made,) if isinstance(made, Tensor) else made
                if not grads:
                    for result, x in zip(results, made):
                        _inner(result).copy_(x.detach())
                    return
                wanted = [(x, _inner(space)) for x, space in zip(first, room) if space is not None]
                outs, of_outs = zip(*((x, _inner(grad)) for x, grad in zip(made, grads) if x.requires_grad))
                found = torch.autograd.grad(outs, [x for x, _ in wanted], of_outs)
                for (_, space), grad in zip(wanted, found):
                    space.copy_(grad)

        return run_and_fill


def to_cuda(module: Module) -> Module:
    """The module with parameters and buffers on cuda:7; what layers share stays shared."""
    moved: dict[int, Tensor] = {}
    for part in module.modules():
        for table in (part._parameters, part._buffers):
            for name, x in table.items():
                if x is not None:
                    there = OnCuda(x.detach())
                    table[name] = moved.setdefault(id(x), Parameter(there) if isinstance(x, Parameter) else there)  # type: ignore[assignment]
    return module


def _inner(x: Any) -> Any:
    return x.inner if isinstance(x, OnCuda) else x


def _bytes(x: Any) -> int:
    """Bytes of the distinct numbers of a tensor."""
    x = _inner(x)
    if not isinstance(x, Tensor):
        return 0
    if x.layout == torch.sparse_csr:
        return sum(map(_bytes, (x.crow_indices(), x.col_indices(), x.values())))
    return x.element_size() * prod(size for size, stride in zip(x.shape, x.stride()) if stride or not size)


def _csr_tensor(make: Any) -> Any:
    """`sparse._csr_tensor` on the values of tensors."""

    def make_there(pattern: sparse.Pattern, value: Tensor) -> Tensor:
        parts = pattern.rowptr, pattern.col, value
        if not any(isinstance(x, OnCuda) for x in parts):
            return make(pattern, value)  # type: ignore[no-any-return]
        if not all(isinstance(x, OnCuda) for x in parts):
            raise WrongDeviceError("a sparse matrix mixes CUDA with CPU tensors")
        rowptr, col, values = map(_inner, parts)
        return OnCuda(make(sparse.Pattern(None, col, pattern.num_rows, pattern.num_cols, rowptr=rowptr), values))

    return make_there


def _from_autograd() -> bool:
    """Whether autograd makes a tensor: zeros in place of a missing gradient."""
    frame: Any = sys._getframe(2)
    while frame is not None and "/torch/" in frame.f_code.co_filename:
        if frame.f_code.co_name == "_engine_run_backward":
            return True
        frame = frame.f_back
    return False


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Scaled dot-product attention as one kernel, as on CUDA; without dropout."""
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=q.dtype).masked_fill_(~attn_mask, -torch.inf)
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return kernel(q, k, v, 0.0, is_causal, attn_mask=attn_mask, scale=scale)[0]  # type: ignore[no-any-return]


def _drop(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Dropout as one kernel, as on CUDA."""
    return torch.native_dropout(x, p, True)[0] if training and p else x


def _search(q: Tensor, k: Tensor, out: Tensor, blocks: Tensor, topk: int) -> None:
    """What `search_block` computes."""
    out.fill_(-1)
    for a, b, c, d in blocks.tolist():
        order = (q[:, a : min(a + topk_triton._QUERIES, b)] @ k[:, c:d].mT).sort(dim=-1, descending=True, stable=True)[
            1
        ]
        out[:, a : a + order.size(1), : min(topk, d - c)] = order[..., :topk] + c


def _place() -> str:
    """The innermost lines of this package, or of the caller."""
    frames = [f for f in traceback.extract_stack() if "/torch/" not in f.filename and f.filename != __file__]
    own = [f for f in frames if "pyg_topomask" in f.filename] or frames
    return " < ".join(f"{f.filename.split('/')[-1]}:{f.lineno} {f.name}" for f in own[:-4:-1])
