"""Particles: forces that obey Newton's laws, targets of the first frame, and graphs of the nearest neighbours."""

import numpy as np
import pytest
import torch

from pyg_topomask.datasets import FORCES, AddParticleGraph, ParticleDataset, particles
from pyg_topomask.datasets.synthetic import nearest_neighbors


@pytest.fixture(scope="module")
def systems(tmp_path_factory):
    root = tmp_path_factory.mktemp("particles")
    return {force: list(ParticleDataset(root, force, num_graphs=2, num_nodes=40, num_frames=3)) for force in FORCES}


@pytest.mark.parametrize("force", FORCES)
def test_target_is_the_change_in_the_first_frame_and_the_total_momentum_is_kept(systems, force):
    for data in systems[force]:
        assert data.future.shape == (40, 3, 6)
        torch.testing.assert_close(torch.cat([data.pos, data.vel], dim=1) + data.y, data.future[:, 0])
        assert data.y[:, 3:].abs().max() > 0.1
        torch.testing.assert_close(data.future[..., 3:].sum(0), data.vel.sum(0).expand(3, 3), atol=1e-3, rtol=0)
        if force == "springs":  # they lose energy
            first, last = (velocity - data.vel.mean(0) for velocity in (data.vel, data.future[:, -1, 3:]))
            assert last.square().sum() < first.square().sum()


def test_accelerations_of_three_particles():
    pos = np.array([[0.0, 0, 0], [0.5, 0, 0], [0.5, 1.2, 0]])
    np.testing.assert_allclose(particles._repulsion(pos), [[-5, 0, 0], [5, 0, 0], [0, 0, 0]], atol=1e-12)
    vel, edges = np.array([[0.0, 0, 1], [0, 0, 0], [0, 0, 0]]), np.array([[0, 1, 1, 2], [1, 0, 2, 1]])
    wanted = [[-0.2, 0, -2], [0.2, 1.2, 2], [0, -1.2, 0]]  # 2 · (length - 0.6) along the spring, 2 · relative velocity
    np.testing.assert_allclose(particles._springs(pos, vel, edges), wanted, atol=1e-12)


def test_graph_joins_the_nearest_neighbors_of_moved_particles(systems):
    data = systems["springs"][0]
    moved = data.clone()
    moved.pos = data.future[:, -1, :3]
    moved = AddParticleGraph(k=2)(moved)
    near = torch.cdist(moved.pos, moved.pos).topk(3, largest=False).indices[:, 1:]
    joined = torch.zeros(40, 40, dtype=torch.bool)
    joined[moved.edge_index[0], moved.edge_index[1]] = True
    wanted = torch.zeros(40, 40, dtype=torch.bool).scatter_(1, near, True)
    assert torch.equal(joined, wanted | wanted.T)
    torch.testing.assert_close(moved.x[:, :3].mean(0), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(moved.x[:, 6], joined.sum(1) / 2)
    assert not torch.equal(moved.edge_index, data.edge_index)


def test_too_few_particles_for_their_neighbors_are_refused(systems):
    data = systems["springs"][0].clone()
    data.pos, data.vel = data.pos[:3], data.vel[:3]
    with pytest.raises(ValueError, match=r"3 neighbours need at least 4 particles \(got 3\)"):
        AddParticleGraph()(data)


@pytest.mark.parametrize("points", [[0, 0, 1, 2, 3], [0, 0, 0, 0], [5, 5, 5, 1, 2, 5]])
def test_equal_points_are_no_neighbors_of_themselves(points):
    edges = nearest_neighbors(np.array(points, dtype=float)[:, None], 1)
    assert (edges[0] != edges[1]).all()
    assert np.unique(edges, axis=1).shape == edges.shape
    assert set(edges[0]) == set(range(len(points)))
