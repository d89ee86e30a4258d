"""Checks an installed package from outside of the repository, for release.sh. Arguments: libraries that are shipped."""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import torch
from torch_geometric.data import Data

import pyg_topomask
from pyg_topomask import nn, transforms
from pyg_topomask.ops.native import loader, sources

package = Path(pyg_topomask.__file__).parent
assert package.is_relative_to(sys.prefix), f"another package was imported: {package}"
assert importlib.metadata.version("pyg_topomask") == pyg_topomask.__version__
assert (package / "py.typed").exists()
assert all(sources.source(name).exists() for name in sources.LIBRARIES)

for name in sys.argv[1:]:  # the compiler must not be needed
    path, os.environ["PATH"] = os.environ["PATH"], ""
    library = loader.load(name)
    assert not isinstance(library, str), library
    assert Path(library._name).parent == sources.SHIPPED, library
    os.environ["PATH"] = path

graph = Data(x=torch.randn(3, 8), edge_index=torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]))
os.environ["TOPOMASK_NATIVE"] = "0"  # nothing is compiled here
graph = transforms.AddRandomWalks(seed=0)(graph)
assert nn.GRFAttention(8, heads=2)(graph.x, graph=graph).isfinite().all()
listed = subprocess.run([Path(sys.prefix, "bin", "topomask"), "list"], capture_output=True, text=True, check=True)
assert "GRF" in listed.stdout
