"""Scalable, topologically masked attention for graph transformers in PyTorch Geometric.

On CPU, results repeat bit for bit for one seed and one number of threads. On CUDA they repeat up to rounding only: sums
over the nodes of a graph (linear attention, pooling, graph norms), over the edges of a node (PyG's convolutions) and
into the blocks of a mask are added atomically, in an order that changes from call to call. So are some gradients of
gathered rows and of sparse products. ``torch.use_deterministic_algorithms(True)`` makes torch add in a fixed order
where it can, and name the operation where it cannot.
"""

__version__ = "0.1.0"
