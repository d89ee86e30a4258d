"""Every public name with its signature is written down in public_api.txt, so that none changes by accident.

After a deliberate change:  python tests/test_public_api.py > tests/public_api.txt
"""

import ast
import importlib
import inspect
import pkgutil
import textwrap
from difflib import ndiff
from pathlib import Path

import pyg_topomask

SNAPSHOT = Path(__file__).with_name("public_api.txt")
COMMAND = "python tests/test_public_api.py > tests/public_api.txt"
OPTIONAL = ("pyg_topomask.run.graphgps", "pyg_topomask.run.graphgym")  # public, although not on the first level


class Written(str):
    """An annotation as the source has it: evaluated, it would depend on the versions of packages."""

    __repr__ = str.__str__


def public_modules():
    names = [info.name for info in pkgutil.iter_modules(pyg_topomask.__path__, "pyg_topomask.")]
    modules = [importlib.import_module(name) for name in (*names, *OPTIONAL) if not name.endswith("__main__")]
    return [pyg_topomask, *(module for module in modules if hasattr(module, "__all__"))]


def signature(value):
    found, written = inspect.signature(value), dict(annotations(value))
    shown = [p.replace(annotation=written.get(name, p.annotation)) for name, p in found.parameters.items()]
    own = [p for p in shown if p.name != "self"]
    return found.replace(parameters=own, return_annotation=written.get("return", found.return_annotation))


def annotations(value):
    """Pairs of a name and its annotation, of a function, or of the fields and ``__init__`` of a class and its bases."""
    bases = reversed(value.__mro__) if inspect.isclass(value) else [value]
    for source in [base for base in bases if base.__module__.startswith("pyg_topomask")]:
        node = ast.parse(textwrap.dedent(inspect.getsource(source))).body[0]
        for part in node.body if inspect.isclass(value) else [node]:
            if isinstance(part, ast.AnnAssign):
                yield part.target.id, text(part.annotation)
            elif isinstance(part, ast.FunctionDef) and (part is node or part.name == "__init__"):
                arguments = [x for x in ast.walk(part.args) if isinstance(x, ast.arg) and x.annotation]
                yield from [(x.arg, text(x.annotation)) for x in arguments]
                yield "return", text(part.returns)


def text(annotation):
    return Written(annotation.value if isinstance(annotation, ast.Constant) else ast.unparse(annotation))


def lines_of(name, value):
    """A line for the name, and one for each public method and property that a class of ours defines."""
    if isinstance(value, dict):
        yield f"{name} = {{{', '.join(map(str, value))}}}"
    elif inspect.isclass(value):
        plain = issubclass(value, Exception) or hasattr(value, "model_fields")  # the schema has tests of its own
        yield f"class {name}{'' if plain else signature(value)}"
        for key, member in sorted(vars(value).items()):
            function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
            if key.startswith(("_", "test_", "extra_repr", "model_post_init")):
                continue
            if inspect.isfunction(function):
                yield f"    {key}{signature(function)}"
            elif isinstance(member, property):
                yield f"    {key}: {signature(member.fget).return_annotation!r}"
    elif callable(value):
        yield f"def {name}{signature(value)}"
    else:
        yield f"{name}: {type(value).__name__}"


def describe():
    lines = []
    for module in public_modules():
        lines += [module.__name__, ""]
        for name in sorted(module.__all__):
            lines += lines_of(name, getattr(module, name))
        lines += [""]
    return "\n".join(lines)


def test_public_names_and_signatures_are_those_written_down():
    found, written = describe(), SNAPSHOT.read_text(encoding="utf-8")
    changes = [line for line in ndiff(written.splitlines(), found.splitlines()) if line[0] in "+-"]
    assert found == written, "\n".join([*changes, f"if that is meant: {COMMAND}"])


def test_public_classes_and_functions_are_documented():
    for module in public_modules():
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isclass(value) or inspect.isfunction(value):
                assert inspect.getdoc(value), f"{module.__name__}.{name}"


if __name__ == "__main__":
    print(describe(), end="")
