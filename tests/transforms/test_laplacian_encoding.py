"""Laplacian eigenvectors against the dense eigenproblem."""

import pytest
import torch
from torch_geometric.data import Batch, Data

from pyg_topomask.ops.encodings import spectral
from pyg_topomask.ops.encodings.spectral import laplacian_reference
from pyg_topomask.testing import permute
from pyg_topomask.transforms import AddLaplacianEncoding
from tests.transforms.encoding_cases import each_case, joined, path, random_graph


def failing(*args):
    raise spectral.ArpackError(-9999)


def unconverged(*args, **settings):
    raise spectral.LinAlgError("did not converge")


@each_case
@pytest.mark.parametrize("norm", ["sym", "rw", None])
def test_laplacian_eigenpairs(data, norm):
    size, k = data.num_nodes, 6
    found = AddLaplacianEncoding(k, norm)(data)
    vectors, values = found.laplacian_vectors, found.laplacian_values
    assert vectors.dtype == values.dtype == torch.float32
    assert vectors.shape == values.shape == (size, k)
    count = min(k, size)
    assert vectors[:, count:].isnan().all()
    assert values[:, count:].isnan().all()
    (lap,) = laplacian_reference(joined(data), norm)
    if size == 0:
        return
    vectors, values = vectors[:, :count].double(), values[0, :count].double()
    wanted = torch.linalg.eigvals(lap).real.sort().values[:count]
    torch.testing.assert_close(values, wanted.clamp(min=0), rtol=0, atol=2e-6)
    torch.testing.assert_close(lap @ vectors, vectors * values, rtol=0, atol=1e-5)
    torch.testing.assert_close(vectors.norm(dim=0), torch.ones(count, dtype=torch.float64), rtol=0, atol=1e-5)
    assert torch.linalg.matrix_rank(vectors, rtol=1e-3) == count
    assert (found.laplacian_values[:, :count] == found.laplacian_values[:1, :count]).all()


def test_signs_follow_a_relabelling():
    data, perm = random_graph(40, 8.0), torch.randperm(40)
    found, moved = AddLaplacianEncoding(4)(data), AddLaplacianEncoding(4)(permute(data, perm))
    assert found.laplacian_values[0].diff().min() > 1e-3
    torch.testing.assert_close(moved.laplacian_vectors, found.laplacian_vectors[perm], rtol=0, atol=1e-5)


@pytest.mark.parametrize("norm", spectral.EIGVEC_NORMS)
def test_eigenvector_norms(norm):
    data = random_graph(30, 8.0)
    plain = AddLaplacianEncoding(5)(data)
    vectors, values = plain.laplacian_vectors.double(), plain.laplacian_values[0].double()
    root, size = torch.where(values < 1e-6, 1.0, values).sqrt(), vectors.abs()
    wanted = {
        "L1": vectors / size.sum(0),
        "L2": vectors,
        "abs-max": vectors / size.max(0).values,
        "wavelength": vectors * torch.pi / (2 * size.max(0).values * root),
        "wavelength-asin": torch.asin((vectors / size.max(0).values).clamp(-1, 1)) / root,
        "wavelength-soft": vectors / ((size.softmax(0) * size).sum(0) * root),
    }[norm]
    found = AddLaplacianEncoding(5, eigvec_norm=norm)(data).laplacian_vectors.double()
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-3 if "asin" in norm else 1e-5)


@pytest.mark.parametrize("way", ["both", "inverse", "dense", "all pairs"])
def test_large_graphs_by_every_way(way, monkeypatch):
    data = Batch.from_data_list([random_graph(300, 6.0), path(90), path(1), path(90)])
    data = Data(edge_index=data.edge_index, num_nodes=data.num_nodes)
    for norm in ("sym", None):
        wanted = AddLaplacianEncoding(12, norm)(data)
        monkeypatch.setattr(spectral, "DENSE_NODES", 10)
        if way != "both":
            monkeypatch.setattr(spectral, "_lanczos", failing)
        if way in ("dense", "all pairs"):
            monkeypatch.setattr(spectral, "_inverse_lanczos", failing)
        if way == "all pairs":  # LAPACK fails to find some of them alone
            monkeypatch.setattr(spectral, "eigh", unconverged)
        found = AddLaplacianEncoding(12, norm)(data)
        monkeypatch.undo()
        torch.testing.assert_close(found.laplacian_values, wanted.laplacian_values, rtol=0, atol=1e-6)
        (lap,) = laplacian_reference(joined(data), norm)
        vectors, values = found.laplacian_vectors.double(), found.laplacian_values[0].double()
        torch.testing.assert_close(lap @ vectors, vectors * values, rtol=0, atol=1e-5)
        torch.testing.assert_close(vectors.t() @ vectors, torch.eye(12, dtype=torch.float64), rtol=0, atol=1e-5)


def test_a_graph_beyond_all_ways_says_so(monkeypatch):
    for name, value in (("DENSE_NODES", 10), ("FALLBACK_NODES", 20), ("_lanczos", failing)):
        monkeypatch.setattr(spectral, name, value)
    monkeypatch.setattr(spectral, "_inverse_lanczos", failing)
    with pytest.raises(RuntimeError, match="component of 90 nodes"):
        AddLaplacianEncoding(3)(path(90))
