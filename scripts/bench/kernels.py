"""Compile every Triton kernel that a shipped config launches, for GPUs that need not be there, and count instructions.

Each attention of each config runs as if on CUDA on a small batch (`_as_if_cuda`), which records the arguments of its
kernels. Triton's compiler and NVIDIA's assembler, both part of the wheel, then make what a GPU would run. For each
kernel, the script prints:

- warps of a program, registers of a thread, spilled bytes: the script fails above ``--most``, because memory is slow;
- ``issued``: machine instructions of a program times its warps, and barriers among them;
- ``per_score``: of the search, instructions that a thread issues for each score, in tiles from which no key enters;
- ``overflows``: offsets in memory that may not fit into their bits; the script fails if there are any.

Run: TRITON_INTERPRET=0 python scripts/bench/kernels.py [--sm 80 90] [--widest] [--json FILE]
"""

import argparse
import importlib
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import torch
import triton
from _as_if_cuda import DEVICE, AsIfCuda, to_cuda
from _machine_code import disassembled, overflows
from _measure import CONFIGS, save_json
from torch import Tensor
from torch_geometric.data import Batch
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

from pyg_topomask.run.graphgps.attentions import attention_arguments, build_attention
from pyg_topomask.run.graphgps.config.load import load
from pyg_topomask.testing import GRAPHS, prepared

TYPES = {torch.float32: "*fp32", torch.float64: "*fp64", torch.int32: "*i32", torch.int64: "*i64"}
TYPES |= {torch.bfloat16: "*bf16", torch.float16: "*fp16"}
HALF = ("q", "k", "v", "grad_q", "grad_k", "grad_v", "array")
SIZES = ("DIM", "WIDTH", "CHANNELS", "HEADS", "SIZE")
SHOWN = (*SIZES, "KERNEL", "SOFTMAX", "OF_EDGE", "DROPPED")

Launch = tuple[str, str, tuple[Any, ...], dict[str, Any], int]


def launches() -> dict[tuple[Any, ...], Launch]:
    """One launch of each kernel and set of constants, from the first config that has it, and additive attention."""
    seen, found = set(), dict[tuple[Any, ...], Launch]()
    for path in sorted(CONFIGS.rglob("*.yaml")):
        config = load(path).config
        for name in config.gt.attentions:
            arguments = attention_arguments(config, name) | {"seed": 0}
            key = (name, config.gt.dim_hidden, str(sorted(arguments.items())), config.mask_name)
            if key not in seen:
                seen.add(key)
                for launch in launches_of(config, name):
                    _, kernel, given, constants, _ = launch
                    flags = {key: bool(x) if key == "DROPPED" else x for key, x in constants.items() if key != "SCALE"}
                    found.setdefault((kernel, *sorted(flags.items()), *(x is None for x in given)), launch)
    on_pairs = [launch for launch in found.values() if "KERNEL" in launch[3]]
    for module, kernel, given, constants, warps in on_pairs[:3]:  # of `GKATConv`, which is in no config
        found[kernel, "additive"] = module, kernel, given, constants | {"KERNEL": 2}, warps
    for key, launch in list(found.items()):
        if launch[0].endswith("triton_kernels"):  # others read float32
            found[key, "half"] = in_half(launch)
    return found


def in_half(launch: Launch) -> Launch:
    """The launch with queries, keys, values and their gradients in half precision."""
    module, name, given, constants, warps = launch
    names, half = getattr(importlib.import_module(module), name).arg_names, torch.empty(0, dtype=torch.bfloat16)
    names = ["" if key == "grad_k" and constants.get("OF_EDGE") else key for key in names]
    return module, name, tuple(half if key in HALF else x for key, x in zip(names, given)), constants, warps


def launches_of(config: Any, name: str) -> list[Launch]:
    """The launches of a forward and a backward pass of an attention of a config, on two graphs."""
    attn: Any = build_attention(config, name)
    if "grid_shape" in attn.requires:  # the graphs below are no grids; the masks of other graphs have the same kernels
        return []
    graphs = prepared(attn, [GRAPHS["path"].clone(), GRAPHS["star"].clone()])
    for graph in graphs:
        graph.edge_attr = torch.randn(graph.num_edges, attn.edge_dim or 1)
    with AsIfCuda() as gpu:
        batch = Batch.from_data_list(graphs).to(DEVICE)
        x = torch.randn(batch.num_nodes, config.gt.dim_hidden).to(DEVICE).requires_grad_()
        to_cuda(attn)(x, batch.batch, batch).sum().backward()
    return gpu.kernels


def compiled(launch: Launch, sm: int) -> dict[str, Any]:
    """What the assembler and the machine code of a kernel for a compute capability say, and seconds of compiling."""
    module, name, given, constants, warps = launch
    kernel = getattr(importlib.import_module(module), name)
    names = [key for key in kernel.arg_names if key not in constants]
    types, fixed, attributes = dict.fromkeys(constants, "constexpr"), dict(constants), {}
    for key, x in zip(names, given, strict=True):
        place = kernel.arg_names.index(key)
        special = not kernel.params[place].do_not_specialize
        if x is None or (special and not isinstance(x, Tensor) and x == 1):
            types[key], fixed[key] = "constexpr", x
            continue
        types[key] = TYPES[x.dtype] if isinstance(x, Tensor) else "i64" if abs(x) >= 2**31 else "i32"
        if isinstance(x, Tensor) or (special and x % 16 == 0):
            attributes[(place,)] = [["tt.divisibility", 16]]
    begin = time.perf_counter()
    source = ASTSource(kernel, {key: types[key] for key in kernel.arg_names}, fixed, attributes)
    made = triton.compile(source, GPUTarget("cuda", sm, 32), options={"num_warps": warps})
    row = {"warps": warps, "shared": made.metadata.shared, "seconds": round(time.perf_counter() - begin, 1)}
    code = disassembled(made.asm["cubin"])
    row |= assembled(made.asm["ptx"], sm) | {"issued": len(code.lines) * warps}
    row["barriers"] = sum(line.startswith("BAR") for line in code.lines)
    if "QUERIES" in constants:
        row["per_score"] = round(code.hot() * 32 * warps / constants["QUERIES"] / constants["KEYS"], 1)
    return row | {"overflows": overflows(made.asm["ttir"])}


def assembled(ptx: str, sm: int) -> dict[str, int]:
    """What NVIDIA's assembler says of a kernel."""
    target = re.search(r"\.target (\w+)", ptx)
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        command = [get_ptxas(sm).path, "-v", f"--gpu-name={target and target[1]}", file.name, "-o", "/dev/null"]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return {
        "registers": int(re.findall(r"Used (\d+) registers", text)[0]),
        "spilled": sum(map(int, re.findall(r"(\d+) bytes spill", text))),
    }


def widest(found: list[Launch]) -> list[Launch]:
    """The launch whose programs hold the most numbers: for each kernel and kind of scores, of one head and of more."""
    kept: dict[tuple[Any, ...], Launch] = {}
    for launch in sorted(found, key=lambda launch: prod(launch[3].get(key, 1) for key in SIZES)):
        _, name, given, constants, _ = launch
        kinds = constants.get("KERNEL"), constants.get("OF_EDGE"), constants.get("HEADS", 1) > 1
        kept[name, kinds, given[0].dtype, given[5] is None] = launch
    return list(kept.values())


def table(capabilities: list[int], only_widest: bool) -> Iterator[dict[str, Any]]:
    """A row for each kernel, its constants and a compute capability."""
    found = list(launches().values())
    for launch, sm in product(widest(found) if only_widest else found, capabilities):
        shape = {key: launch[3][key] for key in SHOWN if key in launch[3]} | {"dtype": TYPES[launch[2][0].dtype][1:]}
        yield {"kernel": launch[1], **shape, "sm": sm, **compiled(launch, sm)}


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    options.add_argument("--sm", type=int, nargs="+", default=[80, 90], help="compute capabilities, without the dot")
    options.add_argument("--widest", action="store_true", help="only the widest launch of each kernel and kind")
    options.add_argument("--most", type=int, default=64, help="spilled bytes that are allowed")
    options.add_argument("--json", type=Path, help="file of the table")
    given = options.parse_args()
    warnings.simplefilter("ignore")
    rows = []
    for row in table(given.sm, given.widest):
        rows.append(row)
        print(" ".join(f"{key}={value}" for key, value in row.items()), flush=True)
    if given.json is not None:
        save_json(given.json, {"triton": triton.__version__, "kernels": rows})
    worst, wide = max(row["spilled"] for row in rows), any(row["overflows"] for row in rows)
    print(f"{len(rows)} kernels; at most {worst} bytes are spilled; offsets {'may overflow' if wide else 'fit'}")
    return int(worst > given.most or wide)


if __name__ == "__main__":
    sys.exit(main())
