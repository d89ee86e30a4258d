"""Kernels of the code that Inductor makes for CUDA, for one training step with a plan. It needs no GPU.

A step is a forward and a backward pass of the models of ``launches.py``, on the same graphs. The plan is made as if on
CUDA, and ``torch.compile(fullgraph=True)`` traces the step without this machine's compiled code, as it does on CUDA.
Inductor then lowers both graphs with fake CUDA tensors: its code is read, and not run. Counted are its Triton kernels
and its calls of libraries, with its own settings and with ``combo_kernels=True, split_reductions=False``.

PyG's ``GPSConv`` with "multihead" attention is one graph only if it is given the sizes that it reads from the batch:
its padded form has constant sizes here, and nodes return from it by their places.

Run: python scripts/bench/compiled_kernels.py [--only NAME …]
"""

import argparse
import copy
import os
import re
import warnings
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from _as_if_cuda import DEVICE, AsIfCuda, OnCuda, to_cuda
from launches import NAMES, PYG, SIZES, graphs_of, model_of
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.device_interface import CudaInterface
from torch._functorch.aot_autograd import aot_function, make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition as partition
from torch._guards import tracing
from torch._inductor import config, debug, decomposition
from torch._inductor.fx_passes import post_grad, replace_random
from torch._inductor.graph import GraphLowering
from torch._inductor.runtime.hints import DeviceProperties
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import Module
from torch.nn.functional import l1_loss
from torch.utils._python_dispatch import _disable_current_modes
from torch_geometric.data import Batch
from torch_geometric.nn.conv import gps_conv
from torch_geometric.utils import to_dense_batch

from pyg_topomask.nn import auxiliary_loss
from pyg_topomask.ops import triton_support

SETTINGS: dict[str, dict[str, Any]] = {"default": {}, "joined": {"combo_kernels": True, "split_reductions": False}}
OF_GPU = {"warp_size": 32, "max_threads_per_block": 1024, "multi_processor_count": 132, "major": 9}
OF_GPU |= {"max_threads_per_multi_processor": 2048, "regs_per_multiprocessor": 65536}
GPU = SimpleNamespace(name="H200", minor=0, total_memory=140 << 30, gcnArchName="", L2_cache_size=50 << 20, **OF_GPU)
GPU.shared_memory_per_block_optin = GPU.shared_memory_per_multiprocessor = 232448
PRETENDED: dict[str, Any] = {
    "torch._inductor.runtime.hints.DeviceProperties.create": lambda _: DeviceProperties("cuda", 0, cc=90, **OF_GPU),
    "torch.cuda.get_device_properties": lambda *_: GPU,
    "torch.cuda.get_device_capability": lambda *_: (9, 0),
    "torch.cuda.current_device": lambda: 0,
    "torch.cuda.is_available": lambda: True,
    "torch._inductor.scheduler.has_triton": lambda: True,
    "torch.utils._triton.triton_hash_with_backend": lambda: "none",
    "torch._inductor.fx_passes.post_grad.reinplace_inplaceable_ops": lambda *_: None,  # which fails on this trace
}
OF_INTERFACE = {"is_available": lambda: True, "current_device": lambda: 0, "get_compute_capability": lambda _=None: 90}


def code_for_cuda(traced: torch.fx.GraphModule, inputs: list[Any], is_backward: bool, settings: dict[str, Any]) -> str:
    """Inductor's code for a graph that was traced on CPU, after it was traced again with fake tensors of CUDA."""
    traced, fake = copy.deepcopy(traced), FakeTensorMode(allow_non_fake_inputs=True)
    for node in traced.graph.nodes:
        if node.kwargs.get("device") is not None:
            node.kwargs = {**node.kwargs, "device": torch.device("cuda:0")}
    traced.recompile()
    with ExitStack() as stack:
        stack.enter_context(_disable_current_modes())
        stack.enter_context(tracing(None))
        for place, value in PRETENDED.items():
            stack.enter_context(patch(place, value))
        for name, value in OF_INTERFACE.items():
            stack.enter_context(patch.object(CudaInterface, name, staticmethod(value)))
        stack.enter_context(config.patch(fx_graph_cache=False, compile_threads=1, **settings))
        with fake:
            args = [
                torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda:0") if isinstance(x, Tensor) else x
                for x in inputs
            ]
            graph = make_fx(traced)(*args)
        stack.enter_context(V.set_fake_mode(fake))
        stack.enter_context(debug.DebugContext())
        stack.enter_context(V.set_debug_handler(debug.DebugContext()))
        replace_random.replace_random_passes(graph)
        post_grad.post_grad_passes(graph, False)
        graph.recompile()
        lowered = GraphLowering(graph, example_inputs=args, is_inference=False, is_backward=is_backward)
        with V.set_graph_handler(lowered):
            lowered.run(*args)
            code = lowered.codegen()[0]
    return str(getattr(code, "value", code))


def count(code: str) -> int:
    """Launches of Triton kernels and calls of libraries in Inductor's code."""
    body = code.split("def call(", 1)[1]
    return len(re.findall(r"\.run\(|(?:extern_kernels\.\w+|torch\.ops\.[\w.]+)\(", body))


def codes_of(name: str) -> dict[str, list[str]]:
    """Inductor's code of the forward and the backward pass, by settings."""
    codes = {setting: list[str]() for setting in SETTINGS}
    batch, model = Batch.from_data_list(graphs_of(name)), model_of(name)

    def compiler(is_backward: bool) -> Any:
        def compile_(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
            for setting, options in SETTINGS.items():
                codes[setting].append(code_for_cuda(graph, inputs, is_backward, options))
            return make_boxed_func(graph.forward)

        return compile_

    def step(x: Tensor, edge_index: Tensor, edge_attr: Tensor, y: Tensor, plan: Any) -> Tensor:
        out = model(x, edge_index, edge_attr=edge_attr, plan=plan)
        return l1_loss(out, y) + auxiliary_loss(model)

    def step_of_pyg(x: Tensor, edge_index: Tensor, edge_attr: Tensor, y: Tensor, graph: Tensor, state: Any) -> Tensor:
        return l1_loss(torch.func.functional_call(model, state, (x, edge_index, graph, batch, edge_attr)), y)

    settings: dict[str, Any] = {"fw_compiler": compiler(False), "bw_compiler": compiler(True)}
    settings |= {"decompositions": decomposition.select_decomp_table(), "partition_fn": partition}
    inputs = batch.x, batch.edge_index, batch.edge_attr, batch.y
    if name in PYG:
        with patch.object(gps_conv, "to_dense_batch", fixed_dense_batch):
            state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
            aot_function(step_of_pyg, **settings)(*inputs, batch.batch, state).backward()
        return codes
    plan = plan_as_if_on_cuda(name, batch)
    torch._dynamo.reset()
    with patch.dict(os.environ, TOPOMASK_NATIVE="0"):
        compiled = torch.compile(step, backend=aot_autograd(**settings), fullgraph=True, dynamic=False)
        compiled(*inputs, plan).backward()
    return codes


class Places(NamedTuple):
    """Places of nodes in the padded form of a batch, in place of PyG's mask."""

    graph: Tensor
    place: Tensor

    def __invert__(self) -> Tensor:
        padding = self.graph.new_ones(len(SIZES), max(SIZES), dtype=torch.bool)
        return padding.index_put(tuple(self), padding.new_zeros(()))


def fixed_dense_batch(x: Tensor, batch: Tensor) -> tuple[Tensor, Places]:
    """PyG's ``to_dense_batch`` of the graphs of ``launches.py``, without sizes that depend on values."""
    dense, _ = to_dense_batch(x, batch, x.new_zeros(()), max(SIZES), len(SIZES))
    sizes = batch.new_zeros(len(SIZES)).index_add(0, batch, torch.ones_like(batch))
    first = sizes.cumsum(0) - sizes
    return dense, Places(batch, torch.arange(batch.numel(), device=x.device) - first[batch])


def plan_as_if_on_cuda(name: str, batch: Batch) -> Any:
    """The plan of a model with the engines for CUDA, on CPU."""
    model: Module = model_of(name)
    with AsIfCuda(), patch.object(triton_support, "_missing", lambda _: None):
        plan: Any = to_cuda(model).plan(copy.copy(batch).to(DEVICE))  # type: ignore[operator]
    return plan._changed(lambda x: x.inner if isinstance(x, OnCuda) else x, torch.device("cpu"))


def main() -> None:
    names = [name for name in NAMES if name != "PyG performer"]  # whose mask cannot be places
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    options.add_argument("--only", nargs="+", choices=names, metavar="NAME", default=names, help="attentions and masks")
    given = options.parse_args()
    warnings.simplefilter("ignore")  # torch says that there is no CUDA
    print(f"{'one step':22} {'default':>8} {'joined':>8}")
    for name in given.only:
        try:
            codes = codes_of(name)
        except Exception as error:  # the others are still counted
            print(f"{name:22} {type(error).__name__}: {' '.join(str(error).split())[:200]}", flush=True)
            continue
        print(f"{name:22}", *(f"{sum(map(count, of_passes)):8d}" for of_passes in codes.values()), flush=True)


if __name__ == "__main__":
    main()
