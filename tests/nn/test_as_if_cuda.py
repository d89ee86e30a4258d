"""Attentions, masks and whole steps as if on CUDA: no tensor is on the wrong device, and the host rarely waits."""

import copy
import importlib.util
import sys
import warnings

import pytest
import torch
from torch_geometric.data import Batch

from pyg_topomask.nn import ATTENTION, MASK, MaskedAttention, auxiliary_loss
from pyg_topomask.nn.attention.base import has_carry
from pyg_topomask.ops import topk_attention
from pyg_topomask.ops.attention import problem
from pyg_topomask.ops.topk import backends
from pyg_topomask.testing.examples import examples, prepared
from pyg_topomask.testing.graphs import GRAPHS
from pyg_topomask.typing import PerformanceWarning
from tests.conftest import SCRIPTS

pytest.importorskip("triton", reason="Triton is only published for Linux")
pytestmark = pytest.mark.filterwarnings("ignore:.*CUDA is not available")

ATTENTIONS = examples(ATTENTION)
MASKS = {f"Masked:{name}": build for name, build in examples(MASK).items()}


FILE = importlib.util.spec_from_file_location("_as_if_cuda", SCRIPTS / "bench" / "_as_if_cuda.py")
mode = importlib.util.module_from_spec(FILE)
FILE.loader.exec_module(mode)


def build(name):
    return ATTENTIONS[name](8) if name in ATTENTIONS else MaskedAttention(8, mask=MASKS[name]())


def gradients(attn, batch, x):
    carry = {"carry": attn.initial_carry(batch.num_graphs).to(x.device)} if has_carry(attn) else {}
    out = attn(x, batch.batch, batch, **carry)
    out = out[0] if carry else out
    (out.square().sum() + auxiliary_loss(attn)).backward()
    return [out.detach(), x.grad, *(p.grad for p in attn.parameters() if p.grad is not None)]


def test_a_plan_counts_no_graphs(monkeypatch):
    """A run with a plan, which may be captured, does not ask for the sizes of graphs: they lie on the device."""
    attn = build(next(name for name in ATTENTIONS if name.startswith("Exphormer")))
    graphs = prepared(attn, [GRAPHS[graph].clone() for graph in ("path", "star", "two_parts")])
    batch = Batch.from_data_list(graphs)
    x, plan = torch.randn(batch.num_nodes, 8), attn.plan(batch)
    wanted = attn(x, batch.batch, batch)
    monkeypatch.setattr(problem, "size_groups", None)
    with mode.AsIfCuda() as gpu:
        found = mode.to_cuda(attn)(x.to(mode.DEVICE), plan=plan.to(mode.DEVICE))
    assert len(gpu.kernels) > 0
    torch.testing.assert_close(found.inner, wanted, rtol=1e-4, atol=1e-4)


def equals_the_cpu(attn, names, dtype=torch.float32, tolerance=1e-4):
    """What a step launches; its values are those of the CPU, although other engines serve there."""
    graphs = prepared(attn, [GRAPHS[graph].clone() for graph in names])
    x = torch.randn(sum(graph.num_nodes for graph in graphs), 8).to(dtype)
    wanted = gradients(copy.deepcopy(attn), Batch.from_data_list(graphs), x.clone().requires_grad_())
    with mode.AsIfCuda() as gpu:
        batch, there = Batch.from_data_list(graphs).to(mode.DEVICE), x.to(mode.DEVICE).requires_grad_()
        found = gradients(mode.to_cuda(attn), batch, there)
    torch.testing.assert_close([x.inner for x in found], wanted, rtol=tolerance, atol=tolerance)
    return gpu


@pytest.mark.parametrize("name", [*ATTENTIONS, *MASKS])
def test_every_attention_and_mask_equals_the_cpu(name):
    attn = build(name)
    names = ["path"] * 3 if "grid_shape" in attn.requires else ["path", "star", "single", "two_parts"]
    assert equals_the_cpu(attn, names).launches.total() > 10


@pytest.mark.parametrize("name", ["GKAT kernel=softmax", "Exphormer"])
def test_kernels_read_half_precision(name):
    """Keys and values stay as they are; the output has the dtype of the input, as on the CPU."""
    half = torch.bfloat16
    gpu = equals_the_cpu(build(name).to(half), ["path", "star"], half, 0.05)
    assert [x.dtype for x in gpu.kernels[0][2][:4]] == [torch.float32, half, half, torch.float32]


@pytest.mark.parametrize(("num_nodes", "widths", "topk"), [(0, (3, 3), 2), (3, (10, 64), 50), (3, (10, 32), 128)])
def test_keys_of_any_number_and_width(num_nodes, widths, topk):
    """Also those of a batch without nodes; three powers of two need no number of warps that Triton refuses."""
    q, v = (torch.randn(num_nodes, 2, width) for width in widths)
    with mode.AsIfCuda():
        given = [x.to(mode.DEVICE) for x in (q, q, v)]
        found = topk_attention(*given, topk)
        with pytest.raises(ValueError, match=r"'dropout' must be a probability in \[0, 1\) \(got 1.0\)"):
            topk_attention(*given, topk, dropout=1.0)
    torch.testing.assert_close(found.inner, topk_attention(q, q, v, topk))


def test_the_mode_finds_what_a_gpu_refuses():
    with mode.AsIfCuda() as gpu:
        x = torch.randn(3, 4).to(mode.DEVICE)
        with pytest.raises(mode.WrongDeviceError, match="mixes CUDA with CPU"):
            x @ torch.randn(4, 2)
        with pytest.raises(mode.WrongDeviceError, match="numpy"):
            x.numpy()
        with pytest.raises(mode.WrongDeviceError, match="powers of two"):
            mode.triton_support.launch("module", "forward", (1,), (x,), {"HEADS": 3})
        with pytest.raises(mode.WrongDeviceError, match="given a CPU tensor"):
            mode.triton_support.launch("module", "forward", (1,), (torch.ones(1),), {})
        gpu.clear()
        assert x.sum().item() == pytest.approx(float(x.cpu().sum()))
        assert x[x > 0].numel() == torch.nonzero(x > 0).size(0)
        assert gpu.waits.total() == 4  # item, cpu, a mask, nonzero
        torch.ones(2).to(mode.DEVICE, non_blocking=True)
        assert gpu.waits.total() == 4


LAUNCHES = {"GRF": 740, "GKAT": 740, "KMIP": 420, "Primphormer": 740, "Exphormer": 630, "Masked:hop": 570, "SAN": 930}
LAUNCHES |= {"Transformer": 420, "Masked:heat": 520, "Masked:power_series": 580, "Masked:low_rank": 650}
LAUNCHES |= {"Masked:forest": 560, "Masked:tree": 560}
"""Most launches of a step. PyG's layers with multi-head attention launch 640 kernels, and the host waits 24 times."""


@pytest.mark.slow
@pytest.mark.parametrize("name", [*ATTENTION, *(f"Masked:{name}" for name in MASK)])
def test_launches_and_waits_of_a_step(scripts, name, monkeypatch):
    monkeypatch.setitem(sys.modules, "_as_if_cuda", mode)  # the tensors that caches hold are those of this class
    launches = scripts("launches")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gpu, _ = launches.step_of(name, launches.graphs_of(name))
    assert gpu.launches.total() <= LAUNCHES.get(name, 740), gpu.launches.most_common(20)
    assert gpu.waits.total() <= 5, gpu.waits.most_common()


@pytest.mark.slow
def test_kmip_without_triton(scripts, monkeypatch):
    """It warns, and searches all small graphs at once: graph by graph, a step took 16,605 launches and 514 waits."""
    monkeypatch.setitem(sys.modules, "_as_if_cuda", mode)
    engine = backends.ENGINES["triton"]._replace(refuses=lambda problem: "Triton is not installed")
    monkeypatch.setitem(backends.ENGINES, "triton", engine)
    launches = scripts("launches")
    with pytest.warns(PerformanceWarning, match="searched in plain torch, which is slower: Triton is not installed"):
        gpu, _ = launches.step_of("KMIP", launches.graphs_of("KMIP"))
    assert gpu.launches.total() <= 750, gpu.launches.most_common(20)
    assert gpu.waits.total() <= 5, gpu.waits.most_common()
