"""``topomask advise``: the time and memory that each attention takes with a config, on the user's data and machine."""

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group

from pyg_topomask.nn import ATTENTION, MASK
from pyg_topomask.run.data.loaders import read_features
from pyg_topomask.run.errors import RunError, did_you_mean, storage_errors
from pyg_topomask.run.graphgps.config import Config
from pyg_topomask.run.graphgps.config.schema import MASK_KEY
from pyg_topomask.run.graphgps.reading import read
from pyg_topomask.run.output.progress import Display, error_output, standard_output
from pyg_topomask.run.output.report import titled_table
from pyg_topomask.run.process_memory import available_mib, resident_mib
from pyg_topomask.run.training.trainer import device_problems, uses_cuda
from pyg_topomask.run.trials import ProcessFailedError, Trial, draw_sample, in_process, run_trial
from pyg_topomask.transforms import far_apart

CONFIGS = (Path("configs"), Path(__file__).parents[3] / "configs")
"""Folders with the config of a data set, ``grf/<name>.yaml``: in the current folder, and in the source tree."""

_CAPTION = """\
Predicted from trials on this machine. Nothing is said about accuracy; for that, see
docs/methods/index.md#where-a-mask-pays.
s/epoch: training and validation. s before: walks, edges, trees and encodings, once.
memory MiB: peak of the process, or of tensors on the GPU.
hops: mean under the mask of the first layer before training; over 16, or no path, count as 17."""

_OWN_MASKS = ("grf", "rwgnk")
"""Masks of GRF and GKAT, which are attentions already; they are not tried a second time as masks."""

_PATIENCE = 120.0  # seconds that a trial may take in addition to ten times its time, such as to compile code
_SAFETY = 0.8  # share of the available memory that a trial may take


def main(arguments: Namespace, overrides: Sequence[str]) -> None:
    """Run the command."""
    given = arguments.source, arguments.attention, arguments.seconds, overrides, arguments.modules
    with Display(error_output()) as display:
        found = advise(*given, display)
    standard_output().print(as_text(found))


@storage_errors()
def advise(
    source: str,
    attentions: Sequence[str] = (),
    seconds: float = 3.0,
    overrides: Sequence[str] = (),
    modules: Sequence[str] = (),
    display: Display | None = None,
) -> dict[str, Trial]:
    """Try attentions on a sample of a data set: what each takes, by its name, the fastest one first.

    Args:
        source: A config file, or the name of a data set with a config, such as ``ENZYMES``.
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
    known = {path.stem: path for folder in reversed(CONFIGS) for path in (folder / "grf").glob("*.yaml")}
    name = source.lower()
    if name not in known and not Path(source).exists():
        hint = did_you_mean(name, known)
        raise RunError(f"{source!r} is neither a config file nor a data set of configs/grf.{hint}")
    experiment = read(known.get(name, source), overrides)
    experiment.refuse(device_problems(experiment.training))
    config, seed = experiment.config, experiment.seed
    chosen = candidates(config, attentions)
    shown = display or Display(Console(quiet=True))
    dataset = experiment.loaded(shown)
    graphs, parts, _ = read_features(experiment.data, dataset, seed)
    if dataset.is_one_graph and (far := far_apart(graphs[0])):
        shown.say(far)
    sample = draw_sample(dataset, graphs, parts, experiment.data.serving.batch_size, seed)
    cuda, found = uses_cuda(experiment.training), dict[str, Trial]()
    values = config.model_dump(exclude_unset=True)
    # CUDA reserves many times the address space that it uses.
    bounds: dict[str, Any] = {"timeout": _PATIENCE + 10 * seconds, "mib": None if cuda else _SAFETY * available_mib()}
    job = shown.job("attentions tried", len(chosen))
    for done, (name, settings) in enumerate(chosen.items()):
        job.update(done, f"now {name}")
        try:
            trial = in_process(run_trial, read(values, settings), sample, seconds, modules=modules, **bounds)
        except ProcessFailedError as error:
            trial = Trial(problem=f"the trial {error}")
        except (RunError, ValueError, TypeError, RuntimeError) as error:
            trial = Trial(problem=str(error))
        if trial.step_mib is not None:
            trial.total_mib = trial.step_mib + (0.0 if cuda else resident_mib() + trial.stored_mib)
        found[name] = trial
    job.remove()
    return dict(sorted(found.items(), key=lambda item: (item[1].problem != "", item[1].epoch_s)))


def as_text(found: Mapping[str, Trial]) -> Group:
    """A table for a terminal, and below it what could not be tried."""
    shown: dict[str, Callable[[Trial], str]] = {
        "s/epoch": lambda trial: _seconds(trial.epoch_s),
        "s before": lambda trial: _seconds(trial.prepare_s),
        "memory MiB": lambda trial: "–" if trial.total_mib is None else f"{trial.total_mib:,.0f}",
        "parameters": lambda trial: f"{trial.parameters:,}",
        "hops": lambda trial: "–" if trial.hops is None else f"{trial.hops:.2f}",
    }
    columns = {name: ["–" if one.problem else cell(one) for one in found.values()] for name, cell in shown.items()}
    problems = [f"{name}: {' '.join(trial.problem.split())}" for name, trial in found.items() if trial.problem]
    caption = "\n".join([_CAPTION, *problems])
    return titled_table("attentions, the fastest first", {"attention": list(found), **columns}, caption)


def _seconds(value: float) -> str:
    return f"{value:,.{3 if value < 1 else 1}f}"


def candidates(config: Config, only: Sequence[str] = ()) -> dict[str, list[str]]:
    """Message passing alone, every attention, and every mask, beside the convolutions of a config.

    Returns:
        By a name such as ``KMIP``, ``Masked:heat`` or ``none``, what to add to the config, as on the command line.

    Args:
        config: The config.
        only: Names to keep; all if empty.

    Raises:
        RunError: If a name is unknown.
    """
    convs = "+".join(config.gt.convs) or "None"
    layers: dict[str, tuple[str, str | None]] = {} if convs == "None" else {"none": ("None", None)}
    layers |= {name: (name, "none" if name == "Linear" else None) for name in ATTENTION if name != "Masked"}
    layers |= {f"Masked:{mask}": ("Masked", mask) for mask in MASK if mask not in _OWN_MASKS}
    unknown = next((name for name in only if name not in layers), None)
    if unknown is not None:
        choices = ", ".join(layers)
        raise RunError(f"--attention: none is called {unknown!r}; there are {choices}." + did_you_mean(unknown, layers))
    found = {}
    for name in only or layers:
        attention, mask = layers[name]
        settings = [f"gt.layer_type={convs}+{attention}"]
        settings += [f"{MASK_KEY}={mask}"] if mask is not None and mask != config.topomask.mask else []
        settings += [] if config.model.type in ("GPSModel", "MultiModel") else ["model.type=GPSModel"]
        found[name] = settings
    return found
