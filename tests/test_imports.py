import ast
import graphlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import pyg_topomask
from tests.test_docs import names_in_the_reference

PACKAGE = Path(pyg_topomask.__file__).parent
# What each part may import, beside itself: imports go down only.
BELOW = {
    "typing": set(),
    "plan": set(),
    "checks": {"plan"},
    "limits": set(),
    "cache": set(),
    "fingerprint": set(),
    "tensor_files": {"cache"},
    "ops": {"cache", "checks", "limits", "plan", "typing"},
    "operators": {"ops", "checks", "limits", "plan", "typing"},
    "transforms": {"ops", "cache", "checks", "fingerprint", "tensor_files", "typing"},
    "datasets": {"transforms", "ops", "cache", "checks", "fingerprint", "tensor_files", "typing"},
    "data": {"transforms", "ops", "cache", "checks", "plan", "tensor_files"},
    "loader": {"data", "checks", "tensor_files"},
    "nn": {"transforms", "operators", "ops", "checks", "plan", "typing"},
}
ABOVE = {"run", "testing", "viz", "expressivity", "__main__"}  # nothing below imports these


MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py")
}


def imports_of(node):
    """Names of all modules that a syntax tree imports, anywhere but for type checkers."""
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return set()
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if isinstance(node, ast.ImportFrom):
        names = {f"{node.module}.{alias.name}" for alias in node.names}
        return {name if name in MODULES else node.module for name in names}
    return set().union(*map(imports_of, ast.iter_child_nodes(node)))


IMPORTS = {name: imports_of(ast.parse(path.read_text(encoding="utf-8"))) for name, path in MODULES.items()}


def of_part(part):
    """The imports of each module of a part of the package."""
    return {name: found for name, found in IMPORTS.items() if f"{name}.".startswith(f"pyg_topomask.{part}.")}


@pytest.mark.parametrize("part", BELOW)
def test_imports_go_down_only(part):
    for name, found in of_part(part).items():
        upward = {other.split(".")[1] for other in found if other.startswith("pyg_topomask.")} - BELOW[part] - {part}
        assert not upward, f"{name} imports {sorted(upward)}"


def test_every_part_has_its_place():
    parts = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert parts - {"__init__"} <= set(BELOW) | ABOVE


def circle(imports):
    """The modules of a circle, if there is one."""
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return None


def test_no_circle_of_imports():
    imports = {name: found & set(MODULES) for name, found in IMPORTS.items()}
    assert circle(imports) is None
    assert circle(imports | {"pyg_topomask.cache": {"pyg_topomask.run.experiment"}}) is not None


def test_engines_of_attention_do_not_import_each_other():
    engines = "ops.attention.engines"
    for name, found in of_part(engines).items():
        if not name.endswith((engines, ".parts")):  # which cuts a problem for the others
            assert not {other for other in found if f"{engines}." in other}, name


CORE = {"torch", "torch_geometric", "numpy", "scipy", "pyg_topomask", *sys.stdlib_module_names}
# Imported by the function that uses it, or where it is installed.
NOT_NEEDED = {"pymetis", "triton", "threadpoolctl", "sklearn", "huggingface_hub", "safetensors", "ray"}
OPTIONAL = {"torch_scatter", "torch_sparse", "torch_cluster", "lightning", "pytorch_lightning", "torchmetrics"}
OPTIONAL |= {"pydantic", "yaml", "rich", "matplotlib", "ogb", "numba", "pandas", "pytest", *NOT_NEEDED}


@pytest.mark.parametrize("part", BELOW)
def test_core_parts_import_core_dependencies_alone(part):
    for name, found in of_part(part).items():
        assert {other.split(".")[0] for other in found} <= CORE | NOT_NEEDED, name


def run(code, **settings):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, **settings)


@pytest.mark.slow
def test_core_dependencies_are_enough(tmp_path):
    loop = (PACKAGE.parent / "examples" / "training_loop.py").read_text("utf-8").replace("range(5)", "range(1)")
    code = f"import sys; sys.modules.update(dict.fromkeys({OPTIONAL})); import pyg_topomask.ops\n{loop}"
    result = run(code, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(PACKAGE.parent)})
    assert result.returncode == 0, result.stderr
    assert "accuracy" in result.stdout


@pytest.mark.slow
def test_importing_the_package_seeds_nothing_and_is_quiet():
    code = "import torch; a = torch.initial_seed(); s = torch.get_rng_state(); import pyg_topomask.nn, "
    code += "pyg_topomask.transforms; assert a == torch.initial_seed() and torch.equal(s, torch.get_rng_state())"
    result = run(code)
    assert result.returncode == 0, result.stderr
    assert result.stdout == ""


def test_the_runner_imports_only_names_of_the_reference():
    known = {*names_in_the_reference(), "pyg_topomask.__version__"}
    modules = {name.rpartition(".")[0] for name in known}  # whose names are listed
    for name in of_part("run"):
        nodes = [*ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8")))]
        read = {f"pyg_topomask.{ast.unparse(node)}" for node in nodes if isinstance(node, ast.Attribute)}
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pyg_topomask"):
                found = {f"{node.module}.{alias.name}" for alias in node.names}
                found |= {one for one in read if one.rpartition(".")[0] in found & modules}
                hidden = {one for one in found if not f"{one}.".startswith(RUN)} - known - modules
                assert node.module.startswith(RUN[:-1]) or not hidden, f"{name} imports {sorted(hidden)}"


RUN = "pyg_topomask.run."


def place(name):
    """The folder or file directly below ``run/`` of a module."""
    return name.removeprefix(RUN).split(".")[0]


def test_folders_of_the_runner_import_down_only():
    inside = {name: {other for other in found if other.startswith(RUN)} for name, found in of_part("run").items()}
    arrows = {}
    for name, found in inside.items():
        if name.startswith(RUN):
            arrows.setdefault(place(name), set()).update({place(other) for other in found} - {place(name)})
    assert circle(arrows) is None
    assert circle(arrows | {"errors": {"graphgps"}}) is not None
    knows = {place(name) for name, found in inside.items() if any(f"{RUN}graphgps" in other for other in found)}
    assert knows - {"run"} <= {"graphgps", "graphgym", "commands", "trained_model"} | {RUN[:-1]}
