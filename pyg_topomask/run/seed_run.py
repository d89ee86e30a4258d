"""Train and test one seed of an experiment, and write its result."""

import copy
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.loggers import Logger, WandbLogger
from torch_geometric.data import Data

from pyg_topomask import __version__
from pyg_topomask.loader import Buckets, collate
from pyg_topomask.run.data.loaders import Splits, evaluation_loaders, loaders, prepare
from pyg_topomask.run.data.source import LoadedDataset
from pyg_topomask.run.distributed import is_main, world_size
from pyg_topomask.run.errors import RunError
from pyg_topomask.run.files import make_folder, write_json
from pyg_topomask.run.output.progress import Display, Job
from pyg_topomask.run.output.report import PERCENT, format_metric, headline, rounded, write_curves
from pyg_topomask.run.output.results import environment
from pyg_topomask.run.process_memory import keep_freed, peak_resident_mib, reset_peak
from pyg_topomask.run.task import PARTS
from pyg_topomask.run.training.callbacks import EpochSeed, Recorder, RedrawWalks, batch_counter, early_stopping
from pyg_topomask.run.training.checkpoint import BEST, LAST, epochs_done, load_weights, read_checkpoint
from pyg_topomask.run.training.lightning_module import GraphModule
from pyg_topomask.run.training.losses import task_problems
from pyg_topomask.run.training.trainer import build_trainer, quiet, uses_cuda
from pyg_topomask.tensor_files import reason_of
from pyg_topomask.transforms import AddRandomWalks

if TYPE_CHECKING:
    from pyg_topomask.run.experiment import Experiment

Numbers = dict[str, float]


@dataclass
class SeedRun:
    """One seed, or one split, of an experiment.

    Args:
        experiment: The experiment.
        folder: Folder of its files.
        title: Title for messages.
        loggers: Lightning's loggers of the user.
        callbacks: Lightning's callbacks of the user.
    """

    experiment: "Experiment"
    folder: Path
    title: str
    loggers: Sequence[Logger] = ()
    callbacks: Sequence[pl.Callback] = ()

    def __post_init__(self) -> None:
        self.source, self.training, self.seed = self.experiment.data, self.experiment.training, self.experiment.seed
        self.serving = self.source.serving

    def run(self, dataset: LoadedDataset, display: Display) -> None:
        """Train and test, or only evaluate, and write the result."""
        if is_main():
            make_folder(self.folder, "the output folder")
        pl.seed_everything(self.seed, workers=True, verbose=False)
        for key, problem in task_problems(self.training.loss, self.training.metric, dataset.task):
            raise RunError(f"{key}: {problem}")
        self.drawn = self.source.draws(self.seed)
        keep_freed()
        reset_peak()  # so that the recorded peak does not include earlier seeds
        job = display.job(f"{self.title}: preparing graphs", len(dataset))
        inference, stored = self.training.inference, self.experiment._fitted()
        splits = prepare(self.source, dataset, self.seed, self.drawn, job.update, inference=inference, stored=stored)
        job.remove()
        if not inference:
            splits.check_known()
        torch.manual_seed(self.seed)
        module = GraphModule(self.experiment, splits)
        if is_main():  # written only now, so that a run that fails before does not claim the folder for itself
            self.experiment._record(self.folder, splits.sizes)
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        try:
            with quiet():
                metrics, times = (self._infer if inference else self._train)(module, splits, display)
        except SystemExit as error:  # Lightning raises it at Ctrl-C, and ignores further signals
            signal.signal(signal.SIGINT, signal.default_int_handler)
            done = epochs_done(self.folder)
            again = f"resumes after epoch {done}" if done else "starts this seed again, which has no checkpoint yet"
            raise KeyboardInterrupt(f"the same command {again}") from error
        text = self._write_result(metrics, times, module, splits)
        display.say(f"{self.title}: done in {times['wall_time_s']:.1f} s  {text}")

    def _infer(self, module: GraphModule, splits: Splits, display: Display) -> tuple[Numbers, Numbers]:
        """Evaluate the model on all three sets, and predict hidden labels: metrics, and epochs and time."""
        start, parts = time.perf_counter(), evaluation_loaders(self.serving, splits, self.seed)
        metrics: Numbers = {}
        with display.working(f"{self.title}: evaluating"):
            trainer = build_trainer(self.training, callbacks=[*self._redraw_walks(), *self.callbacks])
            for part, loader in zip(PARTS, parts):
                trainer.test(module, loader, verbose=False)
                metrics |= {name.replace("test", part, 1): float(x) for name, x in trainer.callback_metrics.items()}
            if self.training.submission:
                for part, loader in zip(("test-dev", "test-challenge"), parts[1:]):
                    write_submission(module, loader, self.folder / f"y_pred_pcqm4m-v2_{part}.npz")
        return metrics, {"best_epoch": 0, "epochs": 0, "wall_time_s": round(time.perf_counter() - start, 3)}

    def _train(self, module: GraphModule, splits: Splits, display: Display) -> tuple[Numbers, Numbers]:
        """Train or resume, test the best epoch, and draw the curves: metrics, and epochs and time."""
        training, start, job = self.training, epochs_done(self.folder), display.job(self.title, self.training.epochs)

        def on_epoch(done: int, row: Numbers | None) -> None:
            note = ""
            if row:
                best = headline(row, training.metric)
                note = f"loss {row['train_loss']:.3f}  validation {best} {format_metric(best, row[f'val_{best}'])}"
            job.update(done, note)

        if start:
            display.say(f"{self.title}: resuming after {start} epochs")
        job.update(start)
        recorder = Recorder(self.folder, training, on_epoch)
        tested = self._fit_and_test(module, splits, start, recorder, job)
        metrics = {name: value for name, value in recorder.best_row().items() if name not in ("epoch", "lr")} | tested
        if is_main():
            best = headline(metrics, training.metric)
            write_curves(self.folder / "curves.png", recorder.rows, recorder.best_epoch, self.title, best)
        job.remove()
        seconds = round(recorder.elapsed(), 3)
        return metrics, {"best_epoch": recorder.best_epoch, "epochs": job.done, "wall_time_s": seconds}

    def _fit_and_test(self, module: GraphModule, splits: Splits, start: int, recorder: Recorder, job: Job) -> Numbers:
        """Train from the epoch ``start``, and return the test metrics of the best epoch."""
        train, val, test = loaders(self.serving, splits, self.seed, pin_memory=uses_cuda(self.training))
        if hasattr(train.sampler, "set_epoch"):
            train.sampler.set_epoch(start)
        steps = [EpochSeed(self.seed, start, splits.set_epoch), *self._redraw_walks(train.dataset)]
        callbacks = [*steps, *early_stopping(self.training), batch_counter(job.within), recorder, *self.callbacks]
        own = self.experiment._loggers(self.folder, self.title, job.display.say) if is_main() else []
        loggers, failed = [*own, *self.loggers], 1
        try:
            trainer = build_trainer(self.training, callbacks=callbacks, logger=loggers, default_root_dir=self.folder)
            trainer.precision_plugin.convert_module(module)  # Lightning converts it only after loading the checkpoint
            if module.plans and train.collate_fn is collate:  # the copy stays on the CPU, where workers can read it
                buckets = Buckets() if self.training.cuda_graphs else None
                train.collate_fn = partial(collate, plan=copy.deepcopy(module.model), buckets=buckets)
            self._fit(partial(trainer.fit, module, train, val), recorder, start > 0)
            self._load_best(module, recorder.best_epoch)
            trainer.test(module, test, verbose=False)
            failed = 0
        finally:
            for logger in loggers:
                if isinstance(logger, WandbLogger):  # it would otherwise also get the curves of the next run
                    logger.experiment.finish(exit_code=failed)
        return {name: float(value) for name, value in trainer.callback_metrics.items() if name.startswith("test_")}

    def _write_result(self, metrics: Numbers, times: Numbers, module: GraphModule, splits: Splits) -> str:
        """Write ``result.json``, wait until it is written, and return the test metric as text."""
        cuda = round(torch.cuda.max_memory_allocated() / 2**20, 1) if torch.cuda.is_available() else None
        result = {
            "seed": self.seed,
            "split_index": self.source.split.index,
            "version": __version__,
            "torch": torch.__version__,
            "metrics": {name: rounded(value) for name, value in metrics.items()},
            **times,
            "graphs_or_nodes": splits.counts,
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
        best = headline(metrics, self.training.metric)
        unit = " %" if best in PERCENT else ""
        found = f"test {best} {format_metric(best, metrics[f'test_{best}'])}{unit}"
        return f"{found} (best epoch: {times['best_epoch']} of {times['epochs']})" if times["epochs"] else found

    def _redraw_walks(self, train: Any = None) -> list[RedrawWalks]:
        """The callback that redraws walks along the attention, if the experiment asks for it."""
        if not self.source.follows_attention:
            return []
        (transform,) = (step for step in self.drawn if isinstance(step, AddRandomWalks))
        return [RedrawWalks(transform, self.serving.batch_size, train, self.serving.redraw)]

    def _fit(self, fit: Callable[..., None], recorder: Recorder, resumes: bool) -> None:
        """Train, from the last checkpoint if the run resumes."""
        last = self.folder / LAST
        try:
            fit(ckpt_path=last if resumes else None)
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
