"""``topomask precompute``: the random walks of one large graph, in shards that several processes make."""

import os
from argparse import Namespace
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from pyg_topomask.data import prepare_shards, write_shards
from pyg_topomask.run.data.loaders import served_features
from pyg_topomask.run.errors import RunError, need
from pyg_topomask.run.graphgps.check import disk_problems
from pyg_topomask.run.graphgps.reading import read_data
from pyg_topomask.transforms import AddRandomWalks


def main(arguments: Namespace, overrides: Sequence[str]) -> None:
    """Run the command."""
    experiment = read_data(arguments.config, overrides)
    if experiment.config.dataset.is_on_disk:
        experiment.refuse(disk_problems(experiment.config))
    source, shards, folder = experiment.data, arguments.shards, Path(arguments.out).expanduser()
    steps = source.draws(experiment.seed)
    walks = next((step for step in steps if isinstance(step, AddRandomWalks)), None)
    if walks is None or walks.transition is not None:
        why = "draws no random walks" if walks is None else "draws walks that follow the attention of a trained model"
        raise RunError(f"{source.title} {why}; nothing can be computed before")
    dataset = source.load()
    if not dataset.is_one_graph:
        raise RunError(f"dataset: one graph is needed, whose nodes are classified (got {len(dataset)} graphs)")
    (graph,) = served_features(source, dataset, [0], experiment.seed)
    if not 1 <= shards <= int(graph.num_nodes or 0):
        raise RunError(f"--shards must be between 1 and the number of nodes, {graph.num_nodes} (got {shards})")
    settings = {"dataset": experiment.config.dataset.model_dump(mode="json"), "walks": repr(walks), "shards": shards}
    if arguments.engine == "ray":
        need("ray", "--engine ray")
    try:
        prepare_shards(folder, graph.disk if "disk" in graph else graph, walks, settings)
        made = write_shards(folder, shards, arguments.engine, arguments.workers or os.cpu_count() or 1)
    except (ValueError, BrokenProcessPool) as error:
        raise RunError(str(error)) from None
    print(f"{folder}: {shards} shards of walks, of which {made} were made now")
