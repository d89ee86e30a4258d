"""Train and test one seed of a config, and write its result."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.loggers import WandbLogger
from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform

from pyg_topomask import __version__
from pyg_topomask.run.data.loaders import Splits, evaluation_loaders, loaders, prepare
from pyg_topomask.run.distributed import is_main, world_size
from pyg_topomask.run.errors import RunError
from pyg_topomask.run.files import make_folder, write_json
from pyg_topomask.run.graphgps.check import task_problems
from pyg_topomask.run.graphgps.config import Config
from pyg_topomask.run.graphgps.formats import LoadedDataset
from pyg_topomask.run.graphgps.model.sampling import build_sampling_transforms
from pyg_topomask.run.graphgps.pretrained import load_pretrained
from pyg_topomask.run.graphgps.saved import write_config
from pyg_topomask.run.output.environment import environment
from pyg_topomask.run.output.progress import Display, Job
from pyg_topomask.run.output.report import PERCENT, format_metric, headline, rounded, write_curves
from pyg_topomask.run.process_memory import peak_resident_mib, reset_peak
from pyg_topomask.run.task import PARTS
from pyg_topomask.run.training.callbacks import EpochSeed, Recorder, RedrawWalks, ReturnFreedMemory, early_stopping
from pyg_topomask.run.training.checkpoint import BEST, LAST, epochs_done, load_weights, read_checkpoint
from pyg_topomask.run.training.lightning_module import GraphModule, build_module
from pyg_topomask.run.training.trainer import build_trainer, loggers_of, quiet
from pyg_topomask.tensor_files import reason_of
from pyg_topomask.transforms import AddRandomWalks

Numbers = dict[str, float]


@dataclass
class SeedRun:
    """One seed, or one split, of a config.

    Args:
        config: The config, with the seed and split of this run.
        folder: Folder of its files.
        title: Title for messages.
    """

    config: Config
    folder: Path
    title: str
    sampling_transforms: list[BaseTransform] = field(default_factory=list, init=False)

    def run(self, dataset: LoadedDataset, display: Display) -> None:
        """Train and test, or only evaluate, and write the result."""
        if is_main():
            make_folder(self.folder, "the output folder")
        seed = self.config.seed
        pl.seed_everything(seed, workers=True, verbose=False)
        for key, problem in task_problems(self.config, dataset.task):
            raise RunError(f"{key}: {problem}")
        self.sampling_transforms = build_sampling_transforms(self.config, seed)
        reset_peak()  # so that the recorded peak does not include earlier seeds
        job = display.job(f"{self.title}: preparing graphs", len(dataset))
        splits = prepare(
            self.config, dataset, seed, self.sampling_transforms, lambda doing, done: job.update(done, doing)
        )
        job.remove()
        torch.manual_seed(seed)
        module = self._build_module(splits)
        if is_main():  # written only now, so that a run that fails before does not claim the folder for its config
            write_config(self.folder / "config.yaml", self.config)
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        with quiet():
            found = (self._infer if self.config.train.is_inference else self._train)(module, splits, display)
        text = self._write_result(*found, module, splits)
        display.say(f"{self.title}: done in {found[1]['wall_time_s']:.1f} s  {text}")

    def _build_module(self, splits: Splits) -> GraphModule:
        """The model at its final width, with pretrained weights if the config names a run."""
        module = build_module(self.config, splits)
        self.config = module.config
        if self.config.pretrained.dir:
            load_pretrained(module.model, self.config)
        return module

    def _infer(self, module: GraphModule, splits: Splits, display: Display) -> tuple[Numbers, Numbers]:
        """Evaluate the pretrained model on all three sets, and predict hidden labels: metrics, and epochs and time."""
        start, parts = time.perf_counter(), evaluation_loaders(self.config, splits)
        with display.working(f"{self.title}: evaluating"):
            trainer, metrics = build_trainer(self.config, callbacks=self._redraw_walks()), dict[str, float]()
            for part, loader in zip(PARTS, parts):
                trainer.test(module, loader, verbose=False)
                metrics |= {name.replace("test", part, 1): float(x) for name, x in trainer.callback_metrics.items()}
            if self.config.train.mode == "PCQM4Mv2-inference":
                for part, loader in zip(("test-dev", "test-challenge"), parts[1:]):
                    write_submission(module, loader, self.folder / f"y_pred_pcqm4m-v2_{part}.npz")
        return metrics, {"best_epoch": 0, "epochs": 0, "wall_time_s": round(time.perf_counter() - start, 3)}

    def _train(self, module: GraphModule, splits: Splits, display: Display) -> tuple[Numbers, Numbers]:
        """Train or resume, test the best epoch, and draw the curves: metrics, and epochs and time."""
        job = display.job(self.title, self.config.optim.max_epoch)
        recorder, test = self._fit_and_test(module, splits, job, display)
        metrics = {name: value for name, value in recorder.best_row().items() if name not in ("epoch", "lr")} | test
        if is_main():
            best = headline(metrics, self.config.metric_best)
            write_curves(self.folder / "curves.png", recorder.rows, recorder.best_epoch, self.title, best)
        job.remove()
        seconds = round(recorder.elapsed(), 3)
        return metrics, {"best_epoch": recorder.best_epoch, "epochs": job.done, "wall_time_s": seconds}

    def _write_result(self, metrics: Numbers, times: Numbers, module: GraphModule, splits: Splits) -> str:
        """Write ``result.json``, wait until it is written, and return the test metric as text."""
        cuda = round(torch.cuda.max_memory_allocated() / 2**20, 1) if torch.cuda.is_available() else None
        result = {
            "seed": self.config.seed,
            "split_index": self.config.dataset.split_index,
            "version": __version__,
            "torch": torch.__version__,
            "metrics": {name: rounded(value) for name, value in metrics.items()},
            **times,
            "graphs_or_nodes": splits.sizes,
            "num_parameters": sum(parameter.numel() for parameter in module.model.parameters()),
            "processes": world_size(),
            "environment": environment(),
            "peak_memory_mib": peak_resident_mib(),
            "peak_cuda_mib": cuda,
        }
        if is_main():
            write_json(self.folder / "result.json", result)
        if world_size() > 1:
            torch.distributed.barrier()  # all processes read the result
        best = headline(metrics, self.config.metric_best)
        unit = " %" if best in PERCENT else ""
        found = f"test {best} {format_metric(best, metrics[f'test_{best}'])}{unit}"
        return f"{found} (best epoch: {times['best_epoch']} of {times['epochs']})" if times["epochs"] else found

    def _redraw_walks(self, train: Any = None) -> list[RedrawWalks]:
        """The callback that redraws walks along the attention, if the config requests it."""
        if self.config.topomask.transition == "uniform":
            return []
        (transform,) = (step for step in self.sampling_transforms if isinstance(step, AddRandomWalks))
        return [RedrawWalks(transform, self.config.train.batch_size, train, self.config.topomask.redraw)]

    def _fit_and_test(
        self, module: GraphModule, splits: Splits, job: Job, display: Display
    ) -> tuple[Recorder, dict[str, float]]:
        config, folder = self.config, self.folder

        def on_epoch(done: int, row: dict[str, float] | None) -> None:
            note = ""
            if row:
                best = headline(row, config.metric_best)
                note = f"loss {row['train_loss']:.3f}  validation {best} {format_metric(best, row[f'val_{best}'])}"
            job.update(done, note)

        start = epochs_done(folder)
        if start:
            display.say(f"{self.title}: resuming after {start} epochs")
        job.update(start)
        recorder = Recorder(folder, config, on_epoch)
        train, val, test = loaders(config, splits, config.seed)
        if hasattr(train.sampler, "set_epoch"):
            train.sampler.set_epoch(start)
        callbacks = [
            EpochSeed(config.seed, start, splits.set_epoch),
            *self._redraw_walks(train.dataset),
            *early_stopping(config),
            recorder,
            ReturnFreedMemory(),
        ]
        loggers = loggers_of(config, folder, self.title, display.say) if is_main() else []
        failed = 1
        try:
            trainer = build_trainer(config, callbacks=callbacks, logger=loggers, default_root_dir=folder)
            trainer.precision_plugin.convert_module(module)  # Lightning converts it only after loading the checkpoint
            self._fit(partial(trainer.fit, module, train, val), recorder, start > 0)
            self._load_best(module, recorder.best_epoch)
            trainer.test(module, test, verbose=False)
            failed = 0
        finally:
            for logger in loggers:
                if isinstance(logger, WandbLogger):  # it would otherwise also get the curves of the next run
                    logger.experiment.finish(exit_code=failed)
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        return recorder, {name: value for name, value in metrics.items() if name.startswith("test_")}

    def _fit(self, fit: Callable[..., None], recorder: Recorder, resumes: bool) -> None:
        """Train, from the last checkpoint if the run resumes."""
        last = self.folder / LAST
        try:
            fit(ckpt_path=last if resumes else None)
        except SystemExit as error:  # Lightning raises it at Ctrl-C, and ignores further signals
            signal.signal(signal.SIGINT, signal.default_int_handler)
            raise KeyboardInterrupt from error
        except Exception as error:
            if isinstance(error, (RunError, OSError, MemoryError)) or not resumes or recorder.started:
                raise
            reason = f"{type(error).__name__}: {reason_of(error)}"
            advice = "delete it to train that seed from the start"
            raise RunError(f"{last} is damaged, or of another version ({reason}); {advice}") from error

    def _load_best(self, module: GraphModule, epoch: int) -> None:
        """Load the weights of the best epoch."""
        path, again = self.folder / BEST, "delete it to train that seed again"
        best = read_checkpoint(path, again)
        if best["epoch"] + 1 != epoch:
            epochs = f"it is of epoch {best['epoch'] + 1}, and the best epoch was {epoch}"
            raise RunError(f"{path} does not belong to the metrics ({epochs}); {again}")
        load_weights(module, best["state_dict"], str(path), again)


@torch.no_grad()
def write_submission(module: GraphModule, loader: Iterable[Data], path: Path) -> None:
    """Write predictions of energy gaps, which are from 0 to 50, as OGB's PCQM4Mv2Evaluator does."""
    module.eval()
    found = [module.task.shaped(module(batch.to(module.device))).view(-1).cpu() for batch in loader]
    np.savez_compressed(path, y_pred=torch.cat(found).clamp(0, 50).float().numpy())
