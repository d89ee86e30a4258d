"""The bench of walks: its comparison counts steps rightly and moves along edges."""

import pytest
import torch

from pyg_topomask.ops.csr import to_csr


@pytest.fixture
def bench(scripts, monkeypatch):
    script = scripts("walks")
    monkeypatch.setattr(script, "keep_freed", lambda largest: None)
    return script


def test_steps_are_counted(bench):
    rates = bench.steps(bench.knn_sphere(256), 1, None)
    hops = sum(0.9**k for k in range(1, 11)) * bench.NUM_WALKS * 256
    assert rates["table, halting .1, 10 hops"]["million steps"] == pytest.approx(hops / 1e6, rel=0.05)
    assert rates["plain torch, no halting"]["million steps"] == bench.FIXED * bench.NUM_WALKS * 256 / 1e6
    large = {"seconds": 1.0, "processor seconds": 2.0, "MiB": 3.0, "nodes": 4}
    machine = {"cpu": "some", "threads": 1, "torch": "2"}
    text = bench.lines(
        {
            "machine": machine,
            "steps": {"kNN": rates, "random": rates},
            "small": bench.small(1),
            "large": {"walks": large},
        }
    )
    assert text[-1] == "| walks | 4 | 1.00 | 2.00 | 3 |"


def test_gathered_walks_follow_edges(bench):
    graph = bench.random_graph(50)
    csr = to_csr(graph.edge_index, 50)
    visited = bench.gathered_walks(csr.pattern.rowptr.long(), csr.col, torch.arange(50)[csr.degree > 0], 5)
    dense = torch.zeros(50, 50).index_put(tuple(graph.edge_index), torch.tensor(1.0))
    assert bool((dense[visited[:-1], visited[1:]] == 1).all())


def test_large_graphs_are_measured(bench):
    for by_transform in (False, True):
        assert bench.sampling(128, by_transform)["seconds"] > 0
    assert set(bench.attention(128)) == {"first", "second"}
