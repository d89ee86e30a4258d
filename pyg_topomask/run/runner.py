"""Run a config for one or several seeds: check, load, train or resume, test, report."""

from __future__ import annotations

import logging
import signal
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import yaml
from rich.console import Console
from torch.nn import Module
from torch_geometric.transforms import BaseTransform

from pyg_topomask import __version__
from pyg_topomask.run.check import check_parsed, task_problems
from pyg_topomask.run.config.load import ParsedConfig, load
from pyg_topomask.run.config.schema import Config
from pyg_topomask.run.config.unused import keys_without_effect
from pyg_topomask.run.data.formats import LoadedDataset, dataset_problems, load_dataset
from pyg_topomask.run.data.loaders import Splits, evaluation_loaders, loaders, prepare
from pyg_topomask.run.data.samplers import sampler_problems
from pyg_topomask.run.distributed import is_main, world_size
from pyg_topomask.run.errors import RunError, storage_errors
from pyg_topomask.run.model.budget import searches_width
from pyg_topomask.run.model.build import build_model, sized
from pyg_topomask.run.model.pretrained import find_checkpoint, has_run, load_pretrained, with_model_of
from pyg_topomask.run.model.sampling import build_sampling_transforms
from pyg_topomask.run.output.files import make_folder, write_json, write_text
from pyg_topomask.run.output.loggers import build_loggers
from pyg_topomask.run.output.progress import Display, Job
from pyg_topomask.run.output.report import (
    PERCENT,
    format_metric,
    headline,
    peak_memory_mib,
    rounded,
    summarize,
    write_curves,
)
from pyg_topomask.run.output.saved import read_result, read_results, refuse_other_runs
from pyg_topomask.run.training.callbacks import EpochSeed, Recorder, RedrawWalks, early_stopping
from pyg_topomask.run.training.checkpoint import BEST, LAST, epochs_done, load_weights, read_checkpoint
from pyg_topomask.run.training.inference import evaluate, write_submission
from pyg_topomask.run.training.lightning_module import GraphModule
from pyg_topomask.run.training.trainer import build_trainer
from pyg_topomask.tensor_files import reason_of
from pyg_topomask.transforms import AddRandomWalks

Source = str | Path | Mapping[str, Any] | Config


@storage_errors()
def check_config(source: Source, overrides: Sequence[str] = (), name: str = "config") -> tuple[ParsedConfig, list[str]]:
    """Validate a config and build its model on a fake graph.

    A config that starts from a run that is not there yet is validated only.

    Returns:
        The config, and the keys that an overridden ``gt.layer_type`` has no use for; these are at their defaults.

    Raises:
        ConfigError: If the config cannot be run.
    """
    parsed = load(source, overrides, name)
    data = parsed.config.dataset
    problems = dataset_problems(data)
    for index in () if problems else parsed.config.run_multiple_splits:
        problems += dataset_problems(data.model_copy(update={"split_index": index}))
    parsed.refuse([*problems, *([] if problems else sampler_problems(parsed.config))])
    if parsed.config.accelerator in ("cuda", "gpu") and not torch.cuda.is_available():
        parsed.refuse([("accelerator", "there is no CUDA device")])
    if parsed.config.pretrained.dir:
        if not has_run(parsed.config):
            return parsed, []
        parsed = replace(parsed, config=with_model_of(parsed.config))
    unused = check_parsed(parsed)
    return replace(parsed, config=parsed.config.with_defaults(unused)), unused


@storage_errors()
def run_config(
    source: Source,
    out: str | Path | None = None,
    repeat: int = 1,
    overrides: Sequence[str] = (),
    name: str = "config",
    display: Display | None = None,
) -> dict[str, Any]:
    """Train and test a config with the seeds ``seed, …, seed + repeat − 1``; return the summary.

    Results lie in ``out/<name>/<seed>/``, the summary of all finished seeds in ``out/<name>/summary.json``. Seeds
    that are finished are not run again; one that was interrupted goes on from its last checkpoint, to the same
    numbers. Two runs of one seed are identical.

    Args:
        source: A YAML file, a nested mapping, or a :class:`~pyg_topomask.run.config.Config`.
        out: Folder of the results; the config's ``out_dir`` if :obj:`None`.
        repeat: Number of seeds.
        overrides: ``"key=value"`` entries, or ``"key", "value"`` pairs.
        name: Name of the config, where it is not that of the file.
        display: Progress display to draw on; one of its own if :obj:`None`.

    Raises:
        RunError: With one message that says what to change.
    """
    if repeat < 1:
        raise RunError(f"--repeat: at least one run is needed (got {repeat})")
    parsed, unused = check_config(source, overrides, name)
    config = parsed.config
    if config.pretrained.dir:
        find_checkpoint(config)  # told before loading the data
    if repeat > 1 and config.run_multiple_splits:
        raise RunError("--repeat runs seeds and run_multiple_splits runs splits: ask for one of them")
    if out is not None and (str(out) == "" or "\0" in str(out)):
        raise RunError(f"--out must name a folder (got {str(out)!r})")
    folder = Path(out if out is not None else config.out_dir).expanduser() / parsed.name
    refuse_other_runs(folder, config)
    make_folder(folder, "the output folder")
    with display or Display(Console(quiet=not is_main())) as shown:
        for reason, keys in keys_without_effect(parsed).items():
            shown.print(f"note: no effect: {', '.join(keys)} ({reason})")
        if unused:
            shown.print(f"note: {config.gt.layer_type} has no use for {', '.join(unused)}")
        dataset = None
        for run in _runs(config, folder, parsed.name, repeat):
            if read_result(run.folder) is not None:
                shown.print(f"{run.title}: finished before, kept")
                continue
            dataset = dataset or _load(config, shown)
            run_seed(run, dataset, shown)
    summary = summarize(parsed.name, __version__, read_results(folder), config.metric_best, config.gt.layer_type)
    if is_main():
        write_json(folder / "summary.json", summary)
    return summary | {"folder": str(folder)}


@dataclass(frozen=True)
class Run:
    """One seed, or one split, of a config."""

    config: Config
    folder: Path
    title: str

    @property
    def seed(self) -> int:
        """Its seed."""
        return self.config.seed


def _runs(config: Config, folder: Path, name: str, repeat: int) -> list[Run]:
    if config.run_multiple_splits:
        runs = []
        for index in config.run_multiple_splits:
            data = config.dataset.model_copy(update={"split_index": index})
            one = config.model_copy(update={"dataset": data})
            runs.append(Run(one, folder / f"{config.seed}-split{index}", f"{name} split {index}"))
        return runs
    seeds = range(config.seed, config.seed + repeat)
    return [Run(config.model_copy(update={"seed": s}), folder / str(s), f"{name} seed {s}") for s in seeds]


def _load(config: Config, display: Display) -> LoadedDataset:
    job = display.job(f"loading {config.dataset.name}", 1)
    try:
        return load_dataset(config.dataset)
    finally:
        job.remove()


def run_seed(run: Run, dataset: LoadedDataset, display: Display) -> None:
    """Train and test, and write the result."""
    config, folder, seed = run.config, run.folder, run.seed
    if is_main():
        make_folder(folder, "the output folder")
    pl.seed_everything(seed, workers=True, verbose=False)
    for key, problem in task_problems(config, dataset.task):
        raise RunError(f"{key}: {problem}")
    sampling_transforms = build_sampling_transforms(config, seed)
    splits = _prepare(config, dataset, seed, sampling_transforms, run.title, display)
    torch.manual_seed(seed)
    task = splits.task
    sizes = (splits.in_channels, task.num_outputs, splits.edge_channels, task.level)
    if searches_width(config):
        run = replace(run, config=sized(config, *sizes))
        config = run.config
    model = build_model(config, *sizes)
    module = GraphModule(model, config, splits.task)
    if config.pretrained.dir:
        load_pretrained(model, config)
    if is_main():  # from here on the folder is this config's: a start that failed before leaves nothing in the way
        values = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
        write_text(folder / "config.yaml", values)
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    if config.train.is_inference:
        _infer(run, module, splits, sampling_transforms, display)
        return
    job = display.job(run.title, config.optim.max_epoch)
    with _quiet():
        recorder, test = _fit_and_test(run, module, splits, sampling_transforms, job, display)
    metrics = {name: value for name, value in recorder.best_row().items() if name not in ("epoch", "lr")} | test
    best = headline(metrics, config.metric_best)
    if is_main():
        write_curves(folder / "curves.png", recorder.rows, recorder.best_epoch, run.title, best)
        times = {"best_epoch": recorder.best_epoch, "epochs": job.done, "wall_time_s": round(recorder.elapsed(), 3)}
        write_json(folder / "result.json", _result(run, metrics, splits, model, times))
    _wait_for_all()
    value = format_metric(best, metrics[f"test_{best}"]) + (" %" if best in PERCENT else "")
    job.finish(f"test {best} {value} (best after {recorder.best_epoch + 1} epochs)")


def _wait_for_all() -> None:
    """Until the result is written, which all processes read."""
    if world_size() > 1:
        torch.distributed.barrier()


def _infer(
    run: Run, module: GraphModule, splits: Splits, sampling_transforms: Sequence[BaseTransform], display: Display
) -> None:
    """Evaluate the pretrained model, and write its predictions where the mode asks for them."""
    config, best = run.config, run.config.metric_best
    since = time.perf_counter()
    with _quiet():
        parts = evaluation_loaders(config, splits)
        metrics = evaluate(build_trainer(config, callbacks=_followers(config, sampling_transforms)), module, parts)
        if config.train.mode == "PCQM4Mv2-inference" and is_main():
            write_submission(module, *parts[1:], run.folder)
    times = {"best_epoch": 0, "epochs": 0, "wall_time_s": round(time.perf_counter() - since, 3)}
    if is_main():
        write_json(run.folder / "result.json", _result(run, metrics, splits, module.model, times))
    _wait_for_all()
    display.print(f"{run.title}: test {best} {format_metric(best, metrics[f'test_{best}'])}")


def _result(
    run: Run, metrics: Mapping[str, float], splits: Splits, model: Module, times: Mapping[str, float]
) -> dict[str, Any]:
    return {
        "seed": run.seed,
        "split_index": run.config.dataset.split_index,
        "version": __version__,
        "torch": torch.__version__,
        "metrics": {name: rounded(value) for name, value in metrics.items()},
        **times,
        "graphs_or_nodes": splits.sizes,
        "num_parameters": sum(parameter.numel() for parameter in model.parameters()),
        "processes": world_size(),
        "peak_memory_mib": peak_memory_mib(),
        "peak_cuda_mib": round(torch.cuda.max_memory_allocated() / 2**20, 1) if torch.cuda.is_available() else None,
    }


def _prepare(
    config: Config,
    dataset: LoadedDataset,
    seed: int,
    sampling_transforms: Sequence[BaseTransform],
    title: str,
    display: Display,
) -> Splits:
    doing = "drawing walks" if sampling_transforms else "preparing"
    job = display.job(f"{title}: {doing}", len(dataset), heartbeat=False)
    splits = prepare(config, dataset, seed, sampling_transforms, tick=lambda: job.update(job.done + 1))
    job.remove()
    return splits


def _followers(config: Config, sampling_transforms: Sequence[BaseTransform], train: Any = None) -> list[RedrawWalks]:
    """What lets walks follow the attention, where they do."""
    if config.topomask.transition == "uniform":
        return []
    (transform,) = (step for step in sampling_transforms if isinstance(step, AddRandomWalks))
    return [RedrawWalks(transform, config.train.batch_size, train, config.topomask.redraw)]


def _fit_and_test(
    run: Run,
    module: GraphModule,
    splits: Splits,
    sampling_transforms: Sequence[BaseTransform],
    job: Job,
    display: Display,
) -> tuple[Recorder, dict[str, float]]:
    config, folder = run.config, run.folder

    def on_epoch(done: int, row: dict[str, float] | None) -> None:
        note = ""
        if row:
            best = headline(row, config.metric_best)
            note = f"loss {row['train_loss']:.3f}  validation {best} {format_metric(best, row[f'val_{best}'])}"
        job.update(done, note)

    start = epochs_done(folder, module.state_dict(), config.optim.max_epoch)
    if start:
        display.print(f"{run.title}: going on after {start} epochs that are done")
    job.update(start)
    recorder = Recorder(folder, config, on_epoch)
    train, val, test = loaders(config, splits, run.seed)
    if hasattr(train.sampler, "set_epoch"):
        train.sampler.set_epoch(start)
    seeds = EpochSeed(run.seed, start, splits.set_epoch)
    followers = _followers(config, sampling_transforms, train.dataset)
    trainer = build_trainer(
        config,
        callbacks=[seeds, *followers, *early_stopping(config), recorder],
        check_val_every_n_epoch=config.train.eval_period,
        gradient_clip_val=config.optim.clip_grad_norm_value if config.optim.clip_grad_norm else None,
        accumulate_grad_batches=config.optim.batch_accumulation,
        logger=build_loggers(config, folder, run.title, display.print) if is_main() else False,
        default_root_dir=folder,
    )
    try:
        trainer.fit(module, train, val, ckpt_path=folder / LAST if start else None)
    except SystemExit as error:  # Lightning's answer to Ctrl-C, which it ignores from then on
        signal.signal(signal.SIGINT, signal.default_int_handler)
        raise KeyboardInterrupt from error
    except (TypeError, ValueError, KeyError, AttributeError, IndexError, RuntimeError, StopIteration) as error:
        if start and not recorder.started:
            raise RunError(
                f"{folder / LAST} is damaged, or of another version ({type(error).__name__}: {reason_of(error)}); "
                "delete it to train that seed from the start"
            ) from error
        raise
    again = "delete it to train that seed again"
    load_weights(module, read_checkpoint(folder / BEST, again)["state_dict"], str(folder / BEST), again)
    trainer.test(module, test, verbose=False)
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    return recorder, {name: value for name, value in metrics.items() if name.startswith("test_")}


@contextmanager
def _quiet() -> Iterator[None]:
    """Lightning's hints on devices, loader workers and logging are none of the user's business here."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"lightning\..*")
        warnings.filterwarnings("ignore", message=".*num_workers.*|.*infer the `batch_size`.*|.*LeafSpec.*")
        try:
            yield
        finally:
            logger.setLevel(level)
