"""Run a config for one or several seeds: check it, load the data, train and test each seed, summarise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from pyg_topomask import __version__
from pyg_topomask.cache import locked
from pyg_topomask.run.distributed import is_main
from pyg_topomask.run.errors import RunError, storage_errors
from pyg_topomask.run.files import make_folder, output_path, write_json
from pyg_topomask.run.graphgps.check import check_config, notes_of
from pyg_topomask.run.graphgps.config.load import Source
from pyg_topomask.run.graphgps.config.schema import Config
from pyg_topomask.run.graphgps.formats import LoadedDataset, load_dataset
from pyg_topomask.run.graphgps.model.attentions import layers_text, mask_of
from pyg_topomask.run.graphgps.pretrained import find_checkpoint, refuse_other_split
from pyg_topomask.run.graphgps.saved import read_result, read_results, refuse_other_runs, unfinished_note
from pyg_topomask.run.output.progress import Display, standard_output
from pyg_topomask.run.output.report import summarize
from pyg_topomask.run.seed_run import SeedRun
from pyg_topomask.run.training.trainer import device_problems


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

    The results of a seed are in ``out/<name>/<seed>/``, and the summary of all finished seeds is in
    ``out/<name>/summary.json``. Finished seeds are not run again. An interrupted seed resumes from its last checkpoint
    and gives the same numbers. Two runs of one seed are identical.

    Args:
        source: A YAML file, a nested mapping, or a :class:`~pyg_topomask.run.graphgps.config.Config`.
        out: Folder of the results; the config's ``out_dir`` if :obj:`None`.
        repeat: Number of seeds.
        overrides: ``"key=value"`` entries, or ``"key", "value"`` pairs.
        name: Name of the config if ``source`` is not a file.
        display: Progress display to draw on; a new one if :obj:`None`.

    Raises:
        RunError: If the config cannot be run; the message says what to change.
    """
    if not 1 <= repeat <= 10_000:
        raise RunError(f"--repeat: from 1 to 10,000 runs are possible (got {repeat})")
    parsed, unused = check_config(source, overrides, name)
    parsed.refuse(device_problems(parsed.config))
    config = parsed.config
    if repeat > 1 and config.run_multiple_splits:
        raise RunError("--repeat runs seeds and run_multiple_splits runs splits: use one of them")
    folder = (Path(config.out_dir).expanduser() if out is None else output_path(out, "a folder")) / parsed.name
    layers = layers_text(config.gt.layer_type, mask_of(config))
    runs = _seed_runs(config, folder, f"{parsed.name} ({layers})", repeat)
    for run in runs if config.pretrained.dir else []:
        refuse_other_split(run.config)  # before the data are loaded
    make_folder(folder, "the output folder")
    refuse_other_runs(folder, config)
    with nullcontext(display) if display else Display(standard_output(quiet=not is_main())) as shown:
        for note in notes_of(parsed):
            shown.say(f"note: {note}")
        given = [key for key in unused if key in parsed.overridden]  # others may be meant for the file's own attention
        if given:
            shown.say(f"note: {config.gt.layer_type} does not use {', '.join(given)}")
        notes = {unfinished_note(find_checkpoint(run.config).parent) for run in runs if config.pretrained.dir}
        for note in sorted(filter(None, notes)):
            shown.say(note)
        dataset = None
        for run in runs:
            with _sole_writer(run.folder) if is_main() and read_result(run.folder) is None else nullcontext():
                if read_result(run.folder) is not None:  # another process may have finished it just now
                    shown.say(f"{run.title}: finished before, kept")
                    continue
                dataset = dataset or loaded(config, shown)
                run.run(dataset, shown)
    results = list(read_results(folder).values())
    summary = summarize(parsed.name, __version__, results, config.metric_best, config.gt.layer_type, mask_of(config))
    if is_main():
        write_json(folder / "summary.json", summary)
    return summary | {"folder": str(folder)}


@contextmanager
def _sole_writer(folder: Path) -> Iterator[None]:
    try:
        with locked(folder, wait=False):
            yield
    except BlockingIOError:
        raise RunError(
            f"another process is writing {folder}; wait until it has ended, or choose another --out or name_tag"
        ) from None


def _seed_runs(config: Config, folder: Path, name: str, repeat: int) -> list[SeedRun]:
    seed, seeds = config.seed, range(config.seed, config.seed + repeat)
    if config.run_multiple_splits:
        data = {i: config.dataset.model_copy(update={"split_index": i}) for i in config.run_multiple_splits}
        splits = {i: config.model_copy(update={"dataset": chosen}) for i, chosen in data.items()}
        return [SeedRun(split, folder / f"{seed}-split{i}", f"{name} split {i}") for i, split in splits.items()]
    return [SeedRun(config.model_copy(update={"seed": s}), folder / str(s), f"{name} seed {s}") for s in seeds]


def loaded(config: Config, display: Display) -> LoadedDataset:
    """The data set of a config."""
    with display.working(f"loading {config.dataset.name}"):
        return load_dataset(config.dataset)
