"""Where Triton's kernels can run, and whether they compile for a GPU: Triton's compiler needs none."""

import os
import subprocess
import sys

import pytest
import torch

from pyg_topomask.ops import triton_support
from tests.conftest import SCRIPTS


@pytest.mark.slow
def test_the_widest_kernels_of_configs_compile_without_a_gpu(tmp_path):
    """For compute capabilities 8.0 and 9.0, with at most 64 bytes of spilled registers. The script can compile all."""
    pytest.importorskip("triton", reason="Triton is only published for Linux")
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"}
    command = [sys.executable, str(SCRIPTS / "bench" / "kernels.py"), "--widest"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


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
