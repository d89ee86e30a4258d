import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

import pyg_topomask

PACKAGE = Path(pyg_topomask.__file__).parent
# What each part may import, beside itself: imports go down only.
BELOW = {
    "typing": set(),
    "checks": set(),
    "limits": set(),
    "cache": set(),
    "fingerprint": set(),
    "tensor_files": {"cache"},
    "ops": {"cache", "checks", "limits", "typing"},
    "operators": {"ops", "checks", "limits", "typing"},
    "transforms": {"ops", "cache", "checks", "fingerprint", "tensor_files", "typing"},
    "datasets": {"transforms", "ops", "cache", "checks", "fingerprint", "tensor_files", "typing"},
    "loader": {"checks"},
    "nn": {"transforms", "operators", "ops", "checks", "typing"},
}
ABOVE = {"run", "testing", "viz", "expressivity", "__main__"}  # nothing below imports these


def imported_parts(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            whole = node.module == "pyg_topomask"
            names = [f"pyg_topomask.{alias.name}" for alias in node.names] if whole else [node.module]
        yield from (name.split(".")[1] for name in names if name.startswith("pyg_topomask."))


@pytest.mark.parametrize("part", BELOW)
def test_imports_go_down_only(part):
    files = [*(PACKAGE / part).rglob("*.py")] or [PACKAGE / f"{part}.py"]
    for path in files:
        upward = set(imported_parts(path)) - BELOW[part] - {part}
        assert not upward, f"{path.relative_to(PACKAGE)} imports {sorted(upward)}"


def test_every_part_has_its_place():
    parts = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert parts - {"__init__"} <= set(BELOW) | ABOVE


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


def circle(imports):
    """The modules of a circle, if there is one."""
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return None


def test_no_circle_of_imports():
    imports = {name: imports_of(ast.parse(path.read_text(encoding="utf-8"))) for name, path in MODULES.items()}
    imports = {name: found & set(MODULES) for name, found in imports.items()}
    assert circle(imports) is None
    assert circle(imports | {"pyg_topomask.cache": {"pyg_topomask.run.runner"}}) is not None


def test_engines_of_attention_do_not_import_each_other():
    engines = "pyg_topomask.ops.attention.engines."
    for name, path in MODULES.items():
        if name.startswith(engines) and name != f"{engines}parts":  # which cuts a problem for the others
            found = imports_of(ast.parse(path.read_text(encoding="utf-8")))
            assert not {other for other in found if other.startswith(engines[:-1])}, name


CORE = r"""
import sys
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from packaging.requirements import Requirement

names, todo = set(), ["torch", "torch_geometric", "numpy", "scipy"]
while todo:  # the core dependencies and theirs
    name = todo.pop().lower().replace("_", "-")
    if name in names:
        continue
    names.add(name)
    try:
        lines = requires(name) or []
    except PackageNotFoundError:
        continue
    wanted = map(Requirement, lines)
    todo += [need.name for need in wanted if need.marker is None or need.marker.evaluate({"extra": ""})]
# A module is core if any distribution that ships it is ("nvidia", say, belongs to many).
core = {m for m, dists in packages_distributions().items() if any(d.lower().replace("_", "-") in names for d in dists)}
OPTIONAL = set(packages_distributions()) - core - {"pyg_topomask", "__editable___pyg_topomask_0_1_0_finder"}
OPTIONAL |= {"torch_scatter", "torch_sparse", "torch_cluster", "lightning", "pytorch_lightning", "torchmetrics",
             "pydantic", "yaml", "rich", "matplotlib", "ogb", "numba", "pandas", "sklearn", "pytest"} - core

class Without:
    # A finder that does not know the optional packages.

    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, fullname, path=None, target=None):
        return None if fullname.split(".")[0] in OPTIONAL else self.finder.find_spec(fullname, path, target)

for module in [m for m in sys.modules if m.split(".")[0] in OPTIONAL]:
    del sys.modules[module]
sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
for module in ("rich", "yaml", "lightning"):
    try:
        __import__(module)
    except ImportError:
        continue
    raise SystemExit(f"{module} is not blocked")
"""

USE = r"""
import torch
from torch_geometric.data import Batch, Data
import pyg_topomask, pyg_topomask.datasets, pyg_topomask.operators, pyg_topomask.ops
from pyg_topomask.nn import GPSModel, GRFAttention
from pyg_topomask.transforms import AddRandomWalks
from torch_geometric.nn import GCNConv

data = AddRandomWalks(seed=0)(Data(x=torch.randn(3, 4), edge_index=torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])))
batch = Batch.from_data_list([data, data])
model = GPSModel(4, 8, 2, 2, lambda _: GCNConv(8, 8), lambda _: GRFAttention(8, heads=2), pool="mean")
out = model(batch.x, batch.edge_index, batch.batch, batch)
out.sum().backward()
assert out.shape == (2, 2) and bool(out.isfinite().all())
print("done")
"""


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_core_dependencies_are_enough():
    result = run(CORE + USE)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "done"


def test_importing_the_package_seeds_nothing_and_is_quiet():
    code = "import torch; a = torch.initial_seed(); s = torch.get_rng_state(); import pyg_topomask.nn, "
    code += "pyg_topomask.transforms; assert a == torch.initial_seed() and torch.equal(s, torch.get_rng_state())"
    result = run(code)
    assert result.returncode == 0, result.stderr
    assert result.stdout == ""
