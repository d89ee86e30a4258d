"""Where Triton's kernels can run, and whether they compile for a GPU: Triton's compiler needs none."""

import os
import subprocess
import sys

import pytest
import torch

from pyg_topomask.ops import triton_support

# Compiles each kernel for a GPU of compute capability 8.0. Strides and sizes are int32, and the rest is known by name.
PROGRAM = """
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from pyg_topomask.ops.attention import triton_kernels as pairs
from pyg_topomask.ops.topk import triton_kernel as topk

def build(kernel, floats, integers, **constants):
    types = {name: "constexpr" if name in constants else "i32" for name in kernel.arg_names}
    types |= dict.fromkeys(floats.split(), "*fp32") | dict.fromkeys(integers.split(), "*i32")
    types |= {name: kind for name, kind in (("order", "*i64"), ("seed", "i64"), ("out", "*i64")) if name in types}
    made = compile(ASTSource(kernel, types, constants), GPUTarget("cuda", 80, 32))
    print(len(made.asm["cubin"]) > 0)

shared = dict(KERNEL=2, SLOPE=0.0, DROPPED=9, SCALE=1.1, PAIRS=16, HEADS=4, WIDTH=8, CHANNELS=8)
flags = dict(HAS_BOUND=True, SHARED_ENTRY=True, SHARED_BOUND=False)
arrays = "q k v entry bound "
build(pairs.forward, arrays + "sums", "row_ptr col", **shared)
build(pairs.backward_rows, arrays + "grad tops grad_q grad_entry grad_bound", "row_ptr col", **flags, **shared)
build(pairs.backward_columns, arrays + "grad tops grad_k grad_v", "column_ptr row_of_pair", **shared)
build(topk.search_block, "q k", "blocks", QUERIES=16, KEYS=64, DIM=16, WIDTH=16)
"""


@pytest.mark.slow
def test_the_kernels_compile_without_a_gpu(tmp_path):
    pytest.importorskip("triton", reason="Triton is only published for Linux")
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
    assert done.stdout == 4 * "True\n", done.stderr


def test_reasons(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    assert triton_support.refuses(torch.device("cpu")) == "it runs on CUDA, and the queries are on cpu"
    monkeypatch.setattr(triton_support, "_missing", triton_support._missing.__wrapped__)
    monkeypatch.setitem(sys.modules, "triton", None)  # an import of it fails
    assert triton_support.refuses(torch.device("cuda")) == "Triton is not installed (pip install triton)"
    monkeypatch.setitem(sys.modules, "triton", sys)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "")
    assert "neither gcc nor clang is on the path" in triton_support.refuses(torch.device("cuda"))
