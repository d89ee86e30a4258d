"""``topomask advise``: what each attention costs on the user's graphs and machine, and what it can see of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from rich.console import Console
from torch import Tensor

from pyg_topomask.run.advise.candidates import Candidate, candidates, config_of
from pyg_topomask.run.advise.graph_statistics import GraphStatistics, graph_statistics
from pyg_topomask.run.advise.prediction import predict
from pyg_topomask.run.advise.process import ProcessFailedError, in_process
from pyg_topomask.run.advise.ranking import FAR, Advice, Clock, add_reasons, mask_name, ranked, slowdown
from pyg_topomask.run.advise.sample import Epoch, Sample, draw_sample
from pyg_topomask.run.advise.told_apart import ToldApart, reach, told_apart
from pyg_topomask.run.advise.trial import Limits, run_trial
from pyg_topomask.run.config import Config
from pyg_topomask.run.data.loaders import read_features
from pyg_topomask.run.errors import RunError, storage_errors
from pyg_topomask.run.output.progress import Display
from pyg_topomask.run.process_memory import available_mib, resident_mib
from pyg_topomask.run.runner import check_config, loaded
from pyg_topomask.run.training.trainer import device_problems, uses_cuda

_PATIENCE = 300.0  # seconds that a trial may take in addition to ten times its time, such as to compile code
_BUSY = 1.3  # wall time of an epoch relative to its processor time, above which other programs slow it down
_SAFETY = 0.8  # share of the available memory that a trial may take


@dataclass
class Report:
    """The answer of :func:`advise`.

    Args:
        source: The config, in words.
        name: Name of the data set.
        config: The config.
        graphs: What was measured on the graphs.
        advice: The attentions, ranked.
        encodings: What features, encodings and masks tell apart; empty for a single graph.
        compared_graphs: Number of graphs in that comparison.
        memory_mib: Memory that was available.
        on_cuda: Whether the trials used a GPU.
        clock: The time that is shown: processor time if other programs slow this machine down.
        slowdown: Wall time relative to processor time.
    """

    source: str
    name: str
    config: Config
    graphs: GraphStatistics
    advice: list[Advice]
    encodings: list[ToldApart]
    compared_graphs: int
    memory_mib: float
    on_cuda: bool
    clock: Clock
    slowdown: float

    @property
    def device(self) -> str:
        """The device of the trials, in words."""
        if self.on_cuda:
            return torch.cuda.get_device_name()
        threads = torch.get_num_threads()
        return f"CPU, {threads} thread" + ("s" if threads > 1 else "")


@storage_errors()
def advise(
    source: str,
    attentions: Sequence[str] = (),
    seconds: float = 3.0,
    overrides: Sequence[str] = (),
    modules: Sequence[str] = (),
    display: Display | None = None,
) -> Report:
    """Measure a data set's graphs and try attentions on it.

    Args:
        source: A config file, or the name of a data set.
        attentions: Names of the attentions to try; all if empty.
        seconds: Time for the trial of each attention, without the start of its process.
        overrides: Settings that override the config's.
        modules: The user's modules, which each trial imports.
        display: Progress display; none if :obj:`None`.

    Raises:
        RunError: If the source, a name or a setting is wrong.
    """
    if not seconds > 0:
        raise RunError(f"--seconds must be positive (got {seconds:g})")
    values, origin = config_of(source)
    parsed, _ = check_config(values, overrides, name=source)
    parsed.refuse(device_problems(parsed.config))
    config = parsed.config
    chosen = candidates(config, attentions)
    shown = display or Display(Console(quiet=True))
    dataset = loaded(config, shown)
    job = shown.job(f"{config.dataset.name}: measuring the graphs", 3)
    graphs, parts, _ = read_features(config, dataset, config.seed)
    held = resident_mib()
    job.update(1)
    statistics = graph_statistics(graphs, dataset.task, config.seed)
    job.update(2)
    masks = list(dict.fromkeys(filter(None, map(mask_name, chosen))))
    encodings, compared = ([], 0) if dataset.is_one_graph else told_apart(config, graphs, masks, 10 * seconds)
    job.remove()
    sample, epoch = draw_sample(config, dataset, graphs, parts)
    plan = _Plan(config, sample, epoch, Limits(seconds, _SAFETY * _memory_mib(config)), held, tuple(modules))
    advice = _tried(plan, chosen, shown)
    reaches = {name: hops for name in masks if name not in FAR and (hops := reach(config, name)) is not None}
    slower = (
        1.0 if uses_cuda(config) or config.num_workers else slowdown(advice)
    )  # a GPU's and workers' time is not processor time of this process
    clock: Clock = "processor" if slower > _BUSY else "wall"
    add_reasons(advice, config.gt.layers, statistics, reaches, {row.name: row.share for row in encodings}, clock)
    return Report(
        origin,
        config.dataset.name,
        config,
        statistics,
        ranked(advice, clock),
        encodings,
        compared,
        plan.limits.memory_mib / _SAFETY,
        uses_cuda(config),
        clock,
        slower,
    )


@dataclass(frozen=True)
class _Plan:
    """What all trials share."""

    config: Config
    sample: Sample
    epoch: Epoch
    limits: Limits
    held_mib: float | None
    modules: tuple[str, ...]


def _tried(plan: _Plan, chosen: Sequence[Candidate], display: Display) -> list[Advice]:
    job = display.job("attentions tried", len(chosen), lines=len(chosen))
    advice = []
    for done, candidate in enumerate(chosen):
        job.update(done, f"now {candidate.name}")
        advice.append(_try(plan, candidate))
    job.remove()
    return advice


def _try(plan: _Plan, candidate: Candidate) -> Advice:
    values = plan.config.model_dump(exclude_unset=True)
    timeout = _PATIENCE + 10 * plan.limits.seconds
    try:
        trial = in_process(
            run_trial, values, candidate.settings, plan.modules, plan.sample, plan.limits, timeout=timeout
        )
    except ProcessFailedError as error:
        return Advice(candidate, problem=f"the trial {error}")
    if not trial.train:
        return Advice(candidate, trial.layer_type, problem=trial.problem)
    graphs = [graph for batch in plan.sample.train for graph in batch]
    size = sum(value.nbytes for graph in graphs for value in graph.to_dict().values() if isinstance(value, Tensor))
    per_node = size / sum(int(graph.num_nodes or 0) for graph in graphs)
    found = predict(trial, plan.epoch, plan.sample.size(-1), per_node, plan.config.train.eval_period)
    total = None
    if uses_cuda(plan.config):
        total = found.step_mib
    elif plan.held_mib is not None and found.step_mib is not None:
        total = plan.held_mib + found.stored_mib + found.step_mib
    notes = [trial.note] if trial.note else []
    return Advice(candidate, trial.layer_type, found, trial.parameters, total, trial.problem, notes)


def _memory_mib(config: Config) -> float:
    """Memory that a trial could take: of the GPU if it is used."""
    return torch.cuda.mem_get_info()[0] / 2**20 if uses_cuda(config) else available_mib()
