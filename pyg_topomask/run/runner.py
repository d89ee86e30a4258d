"""Run a config for one or several seeds: check, load, train or resume, test, report."""

from __future__ import annotations

import json
import logging
import pickle
import signal
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import yaml
from pydantic import ValidationError
from torch_geometric.data import InMemoryDataset

from pyg_topomask import __version__
from pyg_topomask.run.build import build_model, build_walks, check_loaded
from pyg_topomask.run.config import FREE_KEYS, Config, all_keys
from pyg_topomask.run.data import Splits, dataset_problems, load_dataset, loaders, prepare
from pyg_topomask.run.errors import RunError
from pyg_topomask.run.files import make_folder, write_json, write_text
from pyg_topomask.run.lightning_module import EpochSeed, GraphModule, Recorder, early_stopping
from pyg_topomask.run.progress import Display, Job
from pyg_topomask.run.reading import Loaded, load
from pyg_topomask.run.report import peak_memory_mib, summarize, write_curves

Source = str | Path | Mapping[str, Any] | Config


def check_config(source: Source, overrides: Sequence[str] = (), name: str = "config") -> tuple[Loaded, list[str]]:
    """Validate a config and build its model on a fake graph.

    Returns:
        The config, and the keys that an overridden ``gt.layer_type`` has no use for; these are at their defaults.

    Raises:
        ConfigError: If the config cannot be run.
    """
    loaded = load(source, overrides, name)
    loaded.refuse(dataset_problems(loaded.config.dataset))
    if loaded.config.accelerator == "cuda" and not torch.cuda.is_available():
        loaded.refuse([("accelerator", "there is no CUDA device")])
    idle = check_loaded(loaded)
    return replace(loaded, config=loaded.config.with_defaults(idle)), idle


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
    loaded, idle = check_config(source, overrides, name)
    config = loaded.config
    folder = Path(out if out is not None else config.out_dir).expanduser() / loaded.name
    _refuse_other_runs(folder, config)
    make_folder(folder, "the output folder")
    seeds = range(config.seed, config.seed + repeat)
    with display or Display() as shown:
        if idle:
            shown.print(f"note: {config.gt.layer_type} has no use for {', '.join(idle)}")
        dataset = None
        for seed in seeds:
            if _read_result(folder / str(seed)) is not None:
                shown.print(f"{loaded.name} seed {seed}: finished before, kept")
                continue
            dataset = dataset or _load(config, shown)
            _run_seed(config, dataset, folder / str(seed), seed, f"{loaded.name} seed {seed}", shown)
    results = [result for path in folder.iterdir() if (result := _read_result(path)) is not None]
    summary = summarize(loaded.name, __version__, sorted(results, key=lambda result: result["seed"]))
    write_json(folder / "summary.json", summary)
    return summary | {"folder": str(folder)}


def _load(config: Config, display: Display) -> InMemoryDataset:
    job = display.job(f"loading {config.dataset.name}", 1)
    try:
        return load_dataset(config.dataset)
    finally:
        job.remove()


def _read_result(folder: Path) -> dict[str, Any] | None:
    path = folder / "result.json"
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    except (OSError, ValueError) as error:
        raise RunError(f"{path} is damaged ({error}); delete it to run that seed again") from None


def _last_epoch(folder: Path) -> int | None:
    """Epoch of the last checkpoint to resume from, where there is one."""
    last = folder / "last.ckpt"
    if not (last.exists() and (folder / "best.ckpt").exists()):
        return None
    try:
        return int(torch.load(last, weights_only=True)["epoch"])
    except (OSError, RuntimeError, EOFError, KeyError, pickle.UnpicklingError) as error:
        reason = str(error).partition("\n")[0]
        raise RunError(f"{last} is damaged ({reason}); delete it to train that seed from the start") from None


def _refuse_other_runs(folder: Path, config: Config) -> None:
    """Raise if the folder holds runs that differ in more than seed, place and device."""
    try:
        paths = sorted(folder.glob("*/config.yaml"))
    except OSError as error:
        raise RunError(f"the output folder {folder} cannot be read: {error.strerror}") from None
    mine = _flat(config)
    for path in paths:
        try:
            theirs = _flat(Config.model_validate(yaml.safe_load(path.read_text(encoding="utf-8"))))
        except (OSError, yaml.YAMLError, ValidationError):
            raise RunError(f"{path} is of another version or damaged; choose another --out") from None
        different = [f"{key} is {theirs[key]} there and {mine[key]} here" for key in mine if mine[key] != theirs[key]]
        if different:
            more = f", and {len(different) - 3} more" if len(different) > 3 else ""
            raise RunError(
                f"{folder} holds a run of another config ({'; '.join(different[:3])}{more}): nothing was overwritten. "
                "Choose another --out, or set name_tag."
            )


def _flat(config: Config) -> dict[str, Any]:
    free = (*FREE_KEYS, "dataset.dir")  # a place too
    return {key: config.value(key) for key in all_keys() if key not in free and key.partition(".")[0] not in free}


def _run_seed(config: Config, dataset: InMemoryDataset, folder: Path, seed: int, title: str, display: Display) -> None:
    make_folder(folder, "the output folder")
    resolved = config.model_copy(update={"seed": seed}).model_dump(mode="json")
    write_text(folder / "config.yaml", yaml.safe_dump(resolved, sort_keys=False))
    pl.seed_everything(seed, workers=True, verbose=False)
    splits = _prepare(config, dataset, seed, title, display)
    torch.manual_seed(seed)
    model = build_model(config, splits.in_channels, splits.num_classes, splits.edge_channels)
    module = GraphModule(model, config, splits.num_classes)
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    job = display.job(title, config.optim.max_epoch)
    with _quiet():
        recorder, test = _fit_and_test(config, module, splits, folder, seed, job)
    metrics = {name: value for name, value in recorder.best_row().items() if name not in ("epoch", "lr")} | test
    write_curves(folder / "curves.png", recorder.rows, recorder.best_epoch, title)
    result = {
        "seed": seed,
        "version": __version__,
        "torch": torch.__version__,
        "metrics": metrics,
        "best_epoch": recorder.best_epoch,
        "epochs": job.done,
        "graphs_or_nodes": splits.sizes,
        "num_parameters": sum(parameter.numel() for parameter in model.parameters()),
        "wall_time_s": round(recorder.elapsed(), 3),
        "peak_memory_mib": peak_memory_mib(),
        "peak_cuda_mib": round(torch.cuda.max_memory_allocated() / 2**20, 1) if torch.cuda.is_available() else None,
    }
    write_json(folder / "result.json", result)
    job.finish(f"test accuracy {100 * metrics['test_accuracy']:.2f} % (best epoch {recorder.best_epoch})")


def _prepare(config: Config, dataset: InMemoryDataset, seed: int, title: str, display: Display) -> Splits:
    walks = build_walks(config, seed)
    job = display.job(f"{title}: " + ("drawing walks" if walks else "preparing"), len(dataset))
    splits = prepare(config, dataset, seed, walks, tick=lambda: job.update(job.done + 1))
    job.remove()
    return splits


def _fit_and_test(
    config: Config, module: GraphModule, splits: Splits, folder: Path, seed: int, job: Job
) -> tuple[Recorder, dict[str, float]]:
    def on_epoch(done: int, row: dict[str, float] | None) -> None:
        note = f"loss {row['train_loss']:.3f}  validation {100 * row['val_accuracy']:.1f} %" if row else ""
        job.update(done, note)

    last = _last_epoch(folder)
    start = 0 if last is None else last + 1
    job.update(start, f"going on at epoch {start}" if start else "")
    recorder = Recorder(folder, config, on_epoch)
    train, val, test = loaders(config, splits, seed)
    if hasattr(train.sampler, "set_epoch"):
        train.sampler.set_epoch(start)
    trainer = pl.Trainer(
        max_epochs=config.optim.max_epoch,
        accelerator=config.accelerator,
        devices=1,
        callbacks=[EpochSeed(seed, start, splits.redraw), *early_stopping(config), recorder],
        check_val_every_n_epoch=config.train.eval_period,
        num_sanity_val_steps=0,
        gradient_clip_val=config.optim.clip_grad_norm_value if config.optim.clip_grad_norm else None,
        accumulate_grad_batches=config.optim.batch_accumulation,
        deterministic="warn" if config.accelerator != "cpu" and torch.cuda.is_available() else None,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    try:
        trainer.fit(module, train, val, ckpt_path=None if last is None else folder / "last.ckpt")
    except SystemExit as error:  # Lightning's answer to Ctrl-C, which it ignores from then on
        signal.signal(signal.SIGINT, signal.default_int_handler)
        raise KeyboardInterrupt from error
    best = torch.load(folder / "best.ckpt", map_location="cpu", weights_only=True)
    module.load_state_dict(best["state_dict"])
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
