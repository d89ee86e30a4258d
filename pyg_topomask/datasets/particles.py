"""Particles that move under forces between neighbours, and the graphs of their nearest neighbours."""

from collections.abc import Callable

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform

from pyg_topomask.checks import check_choice, check_integer
from pyg_topomask.datasets.synthetic import SyntheticDataset, nearest_neighbors

FORCES = ("springs", "repulsion")
"""Names of the forces between particles."""

NUM_NEIGHBORS, NUM_SUBSTEPS, TIME_STEP = 3, 20, 0.05
STIFFNESS, REST_LENGTH, VISCOSITY = 2.0, 0.6, 2.0
STRENGTH, RADIUS = 10.0, 1.0


class AddParticleGraph(BaseTransform):
    r"""Build the graph of the nearest neighbours from positions, and features that a model can read.

    It is applied again after each predicted step, because neighbours change when particles move.

    Needs ``pos [N, 3]`` and ``vel [N, 3]``. Sets

    - ``edge_index [2, E]``: each particle and its nearest ones, both ways, sorted
    - ``x [N, 7]``: position relative to the mean position, velocity, and the number of neighbours divided by ``k``

    Args:
        k: Neighbours of each particle. The default, 3, is that of Reid et al. 2024, arXiv:2410.03462, Section 4.

    Raises:
        ValueError: If ``k`` is below 1, or a graph has at most ``k`` particles.
        TypeError: If ``k`` is not an integer.
    """

    def __init__(self, k: int = NUM_NEIGHBORS) -> None:
        self.k = check_integer("k", k, 1)

    def forward(self, data: Data) -> Data:
        data = data.clone()
        if data.pos.size(0) <= self.k:
            raise ValueError(f"{self.k} neighbours need at least {self.k + 1} particles (got {data.pos.size(0)})")
        data.edge_index = torch.from_numpy(nearest_neighbors(data.pos.numpy(), self.k))
        degree = torch.bincount(data.edge_index[0], minlength=data.pos.size(0))[:, None].to(data.pos) / self.k
        data.x = torch.cat([data.pos - data.pos.mean(0), data.vel, degree], dim=1)
        return data


class ParticleDataset(SyntheticDataset):
    r"""Systems of particles, and where they are some time later.

    Particles start at random places in a cube with one unit of volume per particle. Velocities are normal. In a
    frame of 20 steps of 0.05 time units, they move under one of two forces:

    - ``"springs"``: damped springs between each particle and its 3 nearest ones at the beginning of the frame
      (stiffness 2, rest length 0.6, viscosity 2)
    - ``"repulsion"``: all pairs that are closer than 1 repel each other with an acceleration of 10 · (1 - distance)

    Masses are 1. The target is the change of position and velocity in one frame.

    Args:
        root: Folder of the processed file.
        force: ``"springs"`` or ``"repulsion"``.
        num_graphs: Number of systems. This default and the next two are those of our experiment in ``docs/results``.
        num_nodes: Particles ``N`` of each system, at least 10.
        num_frames: Frames ``F`` that are simulated from the start, at least 1.
        seed: System ``i`` depends only on ``(force, num_nodes, num_frames, seed, i)``.
        **transforms: ``transform``, applied at each access, and ``pre_transform``, applied once before saving.

    Shapes:
        - ``pos, vel [N, 3]``: state at the start; ``edge_index``, ``x [N, 7]``: those of :class:`AddParticleGraph`
        - ``y [N, 6]``: change of position and of velocity in the first frame, float32
        - ``future [N, F, 6]``: position and velocity after each frame, float32

    Raises:
        ValueError: If ``force`` is unknown, or a number is out of range.
        TypeError: If a number is not an integer.
    """

    def __init__(
        self,
        root: str,
        force: str,
        num_graphs: int = 48,
        num_nodes: int = 300,
        num_frames: int = 8,
        seed: int = 0,
        **transforms: Callable | None,
    ) -> None:
        check_choice("force", force, FORCES)
        self.force = force
        self.size = check_integer("num_nodes", num_nodes, 10, "particles should have more than nearest neighbours")
        self.num_frames = check_integer("num_frames", num_frames, 1)
        settings: dict[str, int | str] = {"force": force, "num_nodes": self.size, "num_frames": self.num_frames}
        super().__init__(root, settings, num_graphs, seed, **transforms)

    def graph(self, number: int, rng: np.random.Generator) -> Data:
        pos = rng.random((self.size, 3)) * self.size ** (1 / 3)
        states = [np.concatenate([pos, rng.normal(size=(self.size, 3))], axis=1)]
        for _ in range(self.num_frames):
            states.append(_after_one_frame(states[-1], self.force))
        state = torch.from_numpy(np.stack(states, axis=1)).float()  # [N, 1 + F, 6]
        data = Data(pos=state[:, 0, :3].clone(), vel=state[:, 0, 3:].clone())
        data.y, data.future = state[:, 1] - state[:, 0], state[:, 1:].clone()
        return AddParticleGraph()(data)


def _after_one_frame(state: np.ndarray, force: str) -> np.ndarray:
    """State ``[N, 6]`` after 20 semi-implicit Euler steps."""
    pos, vel = state[:, :3].copy(), state[:, 3:].copy()
    springs = nearest_neighbors(pos, NUM_NEIGHBORS)
    for _ in range(NUM_SUBSTEPS):
        vel += TIME_STEP * (_springs(pos, vel, springs) if force == "springs" else _repulsion(pos))
        pos += TIME_STEP * vel
    return np.concatenate([pos, vel], axis=1)


def _springs(pos: np.ndarray, vel: np.ndarray, edges: np.ndarray) -> np.ndarray:
    first, second = edges
    way = pos[second] - pos[first]
    length = np.maximum(np.linalg.norm(way, axis=1, keepdims=True), 1e-9)
    pull = STIFFNESS * (length - REST_LENGTH) * way / length + VISCOSITY * (vel[second] - vel[first])
    return _sum_at(first, pull, len(pos))


def _repulsion(pos: np.ndarray) -> np.ndarray:
    first, second = cKDTree(pos).query_pairs(RADIUS, output_type="ndarray").T
    way = pos[first] - pos[second]
    length = np.maximum(np.linalg.norm(way, axis=1, keepdims=True), 1e-9)
    push = STRENGTH * (1 - length / RADIUS) * way / length
    return _sum_at(first, push, len(pos)) - _sum_at(second, push, len(pos))


def _sum_at(index: np.ndarray, values: np.ndarray, size: int) -> np.ndarray:
    return np.stack([np.bincount(index, values[:, axis], size) for axis in range(values.shape[1])], axis=1)
