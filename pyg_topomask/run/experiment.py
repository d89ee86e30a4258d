"""An experiment: data, a model and its training, which one call runs for one or several seeds."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from lightning.pytorch.loggers import Logger
from torch import Tensor
from torch.nn import Module
from torch_geometric.data import Data

from pyg_topomask.cache import locked
from pyg_topomask.run.data.source import Sizes, Source
from pyg_topomask.run.distributed import is_main
from pyg_topomask.run.errors import RunError, storage_errors
from pyg_topomask.run.files import make_folder, output_path, write_json
from pyg_topomask.run.output.progress import Display, standard_output
from pyg_topomask.run.output.report import layers_text, summarize
from pyg_topomask.run.output.results import EXPERIMENT, differences, has_begun, read_result, read_results
from pyg_topomask.run.seed_run import SeedRun
from pyg_topomask.run.training.settings import Training
from pyg_topomask.run.training.trainer import device_problems

Made = Sequence[Any] | Callable[[int], Any]
"""Loggers or callbacks of one run, or a function of the seed that makes them; an item may be such a function, too."""


def call_with_batch(model: Module, batch: Data) -> Tensor:
    """``model(batch)``."""
    return model(batch)


@dataclass(frozen=True)
class Experiment:
    """Data, a model and its training.

    .. code-block:: python

        data = Source(graphs, Task("graph", "regression", 1), serving=Serving(batch_size=64))
        experiment = Experiment(data, lambda sizes: MyModel(sizes.in_channels, sizes.out_channels), Training(loss="l1"))
        summary = experiment.run("results", repeat=3)

    Args:
        data: The graphs, their split and their batches.
        build: Makes the model for data of some sizes. The random state is that of the seed.
        training: Loss, metric, optimiser and number of epochs.
        name: Name of the folder of its runs.
        seed: Seed of the first run; later runs count up from it.
        call: Calls the model with a batch; by default, ``model(batch)``. The prediction has a row for each graph, node,
            or column of ``edge_label_index``.
        settings: What else defines the experiment, as plain values, such as the width of the model. Runs in one folder
            must agree in it.
        splits: Values of ``data.split.index`` to run one after the other with the same seed.
        out: Folder of the results, unless :meth:`run` is given another.
    """

    data: Source
    build: Callable[[Sizes], Module]
    training: Training = field(default_factory=Training)
    name: str = "experiment"
    seed: int = 0
    call: Callable[[Module, Data], Tensor] = field(default_factory=lambda: call_with_batch)
    settings: Mapping[str, Any] = field(default_factory=dict)
    splits: Sequence[int] = ()
    out: str | Path = "results"

    record: ClassVar[str] = EXPERIMENT
    """The file of a seed that describes the experiment."""
    other_record: ClassVar[str] = "config.yaml"
    """That of an experiment which was read from a config."""

    @storage_errors()
    def run(
        self,
        out: str | Path | None = None,
        repeat: int = 1,
        loggers: Made = (),
        callbacks: Made = (),
        display: Display | None = None,
    ) -> dict[str, Any]:
        """Train and test with the seeds ``seed, …, seed + repeat − 1``; return the summary.

        The results of a seed are in ``out/<name>/<seed>/``, and the summary of all finished seeds is in
        ``out/<name>/summary.json``. Finished seeds are not run again. An interrupted seed resumes from its last
        checkpoint and gives the same numbers. Two runs of one seed are identical.

        Args:
            out: Folder of the results; that of the experiment if :obj:`None`.
            repeat: Number of seeds.
            loggers: Loggers of Lightning, in addition to ``metrics.csv``. If there are several runs, functions of the
                seed that make them, or one that makes all.
            callbacks: Callbacks of Lightning, likewise.
            display: Progress display to draw on; a new one if :obj:`None`.

        Raises:
            RunError: If the experiment cannot be run; the message says what to change.
        """
        if not 1 <= repeat <= 10_000:
            raise RunError(f"--repeat: from 1 to 10,000 runs are possible (got {repeat})")
        if repeat > 1 and self.splits:
            raise RunError("--repeat runs seeds and run_multiple_splits runs splits: use one of them")
        self.refuse(device_problems(self.training))
        folder = (Path(self.out).expanduser() if out is None else output_path(out, "a folder")) / self.name
        title = f"{self.name} ({text})" if (text := layers_text(**self.labels)) else self.name
        runs = {f"{self.seed}-split{i}": (self.at(self.seed, i), f"split {i}") for i in self.splits}
        runs = runs or {str(seed): (self.at(seed), f"seed {seed}") for seed in range(self.seed, self.seed + repeat)}
        notes = dict.fromkeys(note for one, _ in runs.values() for note in one._notes())  # before the data are loaded
        make_folder(folder, "the output folder")
        self._refuse_others(folder)
        with nullcontext(display) if display else Display(standard_output(quiet=not is_main())) as shown:
            for note in notes:
                shown.say(f"note: {note}")
            dataset = None
            for name, (one, which) in runs.items():
                place, called = folder / name, f"{title} {which}"
                with _sole_writer(place) if is_main() and read_result(place) is None else nullcontext():
                    if read_result(place) is not None:  # another process may have finished it just now
                        shown.say(f"{called}: finished before, kept")
                        continue
                    if self.splits and self._data_differ_by_split:
                        dataset = one.loaded(shown)
                    dataset = dataset or self.loaded(shown)
                    made = [_made(given, one.seed, len(runs)) for given in (loggers, callbacks)]
                    SeedRun(one, place, called, *made).run(dataset, shown)
        results = [*read_results(folder).values()]
        summary = summarize(self.name, results, self.training.metric, **self.labels)
        if is_main():
            write_json(folder / "summary.json", summary)
        return summary | {"folder": str(folder)}

    def loaded(self, display: Display) -> Any:
        """The data set."""
        with display.working(f"loading {self.data.name}"):
            return self.data.load()

    # What follows, an experiment that was read from a config does in its own way.

    @property
    def labels(self) -> dict[str, Any]:
        """Names of the layers and of their mask, for messages and summaries."""
        return {"layer_type": "", "mask": None}

    @property
    def _data_differ_by_split(self) -> bool:
        """Whether the data are loaded again for each split, because their features or targets depend on it."""
        return False

    def at(self, seed: int, split: int | None = None) -> "Experiment":
        """The experiment with another seed, and another split if a number is given."""
        data = self.data if split is None else replace(self.data, split=replace(self.data.split, index=split))
        return replace(self, seed=seed, data=data)

    def _notes(self) -> list[str]:
        """What a user should know before this seed runs."""
        return []

    def refuse(self, problems: Iterable[tuple[str, str]]) -> None:
        """Raise a :class:`RunError` for pairs (key, what is wrong), if there are any."""
        for key, problem in problems:
            raise RunError(f"{key}: {problem}")

    def _loggers(self, folder: Path, title: str, note: Callable[[str], None]) -> list[Logger]:
        """Loggers that the experiment itself asks for."""
        return []

    def _fitted(self) -> Sequence[Mapping[str, Any]] | None:
        """Constants of the transforms in ``data.fitted`` if they are those of another run."""
        return None

    def _description(self) -> dict[str, Any]:
        """What runs in one folder must agree in, as plain values."""
        training = {name: x for name, x in vars(self.training).items() if not (callable(x) or name == "accelerator")}
        serving = {f"serving.{name}": x for name, x in vars(self.data.serving).items() if name != "num_workers"}
        split = asdict(self.data.split) | ({"index": None} if self.splits else {})  # more splits may follow
        described = {"data": self.data.name, "split": split, "training": training}
        return json.loads(json.dumps(described | serving | {"settings": dict(self.settings)}, default=str))

    def _record(self, folder: Path, sizes: Sizes) -> None:
        """Write what was run into the folder of a seed."""
        write_json(folder / self.record, self._description())

    def _recorded(self, path: Path) -> dict[str, Any]:
        """The description in a file of a seed. Raises RunError if it is damaged."""
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise RunError(f"{path} is damaged ({error})") from None

    def _refuse_others(self, folder: Path) -> None:
        """Refuse a folder that has runs of another experiment; a seed that failed in its first epoch is none."""
        kept = "nothing was overwritten. Choose another name (in configs, a name_tag) or another folder (--out)"
        for path in folder.glob(f"*/{self.other_record}"):
            kinds = "a config writes config.yaml, and an Experiment in Python experiment.json"
            raise RunError(f"{path} is of a run of the other kind ({kinds}): {kept}")
        new = self._description()
        for path in sorted(folder.glob(f"*/{self.record}")):
            if not (has_begun(path.parent) or (is_main() and _is_being_written(path.parent))):
                continue
            try:
                old = self._recorded(path)
            except RunError as error:
                raise RunError(f"{error}; choose another folder (--out)") from None
            if found := differences(new, old):
                more = f", and {len(found) - 3} more" if len(found) > 3 else ""
                raise RunError(f"{path.parent} is a run of another experiment ({'; '.join(found[:3])}{more}): {kept}")


def _made(given: Made, seed: int, count: int) -> list[Any]:
    """The loggers or callbacks of a run."""
    found = given(seed) if callable(given) else given
    items = found if isinstance(found, (list, tuple)) else [found]
    if count > 1 and not callable(given) and not all(map(callable, items)):
        raise RunError(f"{count} runs cannot share loggers or callbacks: give functions of the seed that make them")
    return [item(seed) if callable(item) else item for item in items]


def _is_being_written(folder: Path) -> bool:
    """Whether another process holds the lock of a seed's folder."""
    try:
        with locked(folder, wait=False):
            return False
    except BlockingIOError:
        return True


@contextmanager
def _sole_writer(folder: Path) -> Iterator[None]:
    try:
        with locked(folder, wait=False):
            yield
    except BlockingIOError:
        raise RunError(
            f"another process is writing {folder}; wait until it has ended, or choose another --out or name_tag"
        ) from None
