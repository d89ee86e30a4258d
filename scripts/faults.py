"""Plants faults in copies of the code, one at a time, and asks the tests: which of them do they see?

    python scripts/faults.py --count 30 --seed 0 --out faults.json
    python scripts/faults.py --out faults.json --resume      # goes on after the last fault of the file

A fault is one small change in a line that runs: a comparison is turned or moves its boundary, an operator or a
constant changes, two arguments or two parts of a tuple change places, a ``not`` is lost. The places are drawn from four
areas in turn: engines of attention and top-k search, masks, walks, and the runner. The tests of the area run, those of
the file's own folder first, then the slow ones. A test that fails must pass without the fault.

The reader decides about faults that are not seen: each is either an equivalent change, whose results are the same,
or a hole in the tests.
"""

import argparse
import ast
import contextlib
import itertools
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PACKAGE = "pyg_topomask"
NO_TESTS = 5  # pytest's exit code when it collected none
AREAS = {
    "engines": (
        ("ops/attention/**/*.py", "ops/topk/*.py", *(f"ops/native/{name}/*" for name in ("pairs", "blocks", "topk"))),
        ("tests/ops", "tests/nn/attention", "tests/nn/mask"),
    ),
    "masks": (
        ("operators/*.py", "nn/mask/*.py"),
        ("tests/operators", "tests/nn/mask", "tests/ops/attention", "tests/run/graphgps/model"),
    ),
    "walks": (
        ("ops/walks/*.py", "ops/native/walks/*", "transforms/random_walks.py"),
        ("tests/ops/walks", "tests/transforms", "tests/nn/mask", "tests/operators"),
    ),
    "runner": (("run/**/*.py",), ("tests/run",)),
}
"""Files, and the tests that are asked about them."""

SIGNS = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"), ast.And: ("and", "or"), ast.Or: ("or", "and"),
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "+"), ast.FloorDiv: ("//", "*"), ast.Div: ("/", "*"),
}  # fmt: skip
"""Sign of an operation -> another sign."""

IN_CPP = {
    " < ": " <= ", " <= ": " < ", " > ": " >= ", " >= ": " > ", " == ": " != ", " != ": " == ", " + ": " - ",
    " - ": " + ", " * ": " + ", " / ": " * ", " && ": " || ", " || ": " && ", " += ": " = ", " 0;": " 1;",
    " + 1": " + 2",
}  # fmt: skip
UNTOUCHED = (ast.Import, ast.ImportFrom, ast.Raise, ast.JoinedStr, ast.Assert)  # `raise`: its message


class Fault(NamedTuple):
    """One change: characters ``start`` to ``stop`` of a file become ``new``."""

    file: str
    line: int
    start: int
    stop: int
    old: str
    new: str


def python_faults(file: str, text: str) -> Iterator[Fault]:
    """All places of a Python file where a fault fits."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    data = text.encode()

    def at(node: ast.AST, end: bool = False) -> int:
        line, column = (node.end_lineno, node.end_col_offset) if end else (node.lineno, node.col_offset)
        return starts[line - 1] + column

    def fault(node: ast.AST, start: int, stop: int, new: str) -> Fault:
        return Fault(file, node.lineno, start, stop, data[start:stop].decode(), new)

    def between(left: ast.AST, right: ast.AST, operation: ast.AST) -> Iterator[Fault]:
        old, new = SIGNS.get(type(operation), (" ", ""))  # such as a power: nothing is found between two parts
        found = re.search(rf"(?<![\w/*<>=]){re.escape(old)}(?![/*=])".encode(), data[at(left, True) : at(right)])
        if found and new:
            start = at(left, True) + found.start()
            yield fault(left, start, start + len(old), new)

    def swapped(a: ast.AST, b: ast.AST) -> Iterator[Fault]:
        texts = [data[at(node) : at(node, True)].decode() for node in (a, b)]
        if texts[0] != texts[1] and not any(isinstance(x, ast.Starred) for x in (a, b)):
            middle = data[at(a, True) : at(b)].decode()
            yield fault(a, at(a), at(b, True), texts[1] + middle + texts[0])

    def visit(node: ast.AST) -> Iterator[Fault]:
        if isinstance(node, UNTOUCHED) or (isinstance(node, ast.Call) and "warn" in ast.unparse(node.func)):
            return
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            yield from between(node.left, node.comparators[0], node.ops[0])
        elif isinstance(node, ast.BinOp) and not isinstance(node.left, ast.Constant | ast.JoinedStr):
            yield from between(node.left, node.right, node.op)
        elif isinstance(node, ast.BoolOp):
            yield from between(*node.values[:2], node.op)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield fault(node, at(node), at(node.operand), "")
        elif isinstance(node, ast.Call) and len(node.args) > 1:
            yield from swapped(*node.args[:2])
        elif isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Load) and len(node.elts) > 1:
            yield from swapped(*node.elts[:2])
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
            value = node.value
            new = not value if isinstance(value, bool) else value + 1 if isinstance(value, int) else 2 * value or 1.0
            yield fault(node, at(node), at(node, True), repr(new))
        for name, value in ast.iter_fields(node):
            parts = value if isinstance(value, list) else [value]
            if name not in ("annotation", "returns", "decorator_list", "bases"):
                yield from (found for part in parts if isinstance(part, ast.AST) for found in visit(part))

    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):  # module level holds tables and constants
            yield from (x for part in node.body for x in visit(part) if not isinstance(part, ast.FunctionDef))


def cpp_faults(file: str, text: str) -> Iterator[Fault]:
    """All places of a C++ file where a fault fits."""
    start = 0
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        code = line.split("//")[0]
        if not re.match(r"\s*(#|template|using|static_assert|struct|class)", code):
            for old, new in IN_CPP.items():
                for found in re.finditer(re.escape(old), code):
                    place = start + len(code[: found.start()].encode())
                    yield Fault(file, number, place, place + len(old), old, new)
        start += len(line.encode())


def choose(tree: Path, count: int, seed: int) -> list[tuple[str, Fault]]:
    """``count`` faults on different lines, from the areas in turn."""
    queues = {}
    for number, (area, (patterns, _)) in enumerate(AREAS.items()):
        faults: dict[tuple[str, int, int, str], Fault] = {}
        for path in sorted({path for pattern in patterns for path in (tree / PACKAGE).glob(pattern) if path.is_file()}):
            file, text = str(path.relative_to(tree)), path.read_text()
            if path.suffix in (".py", ".cpp", ".h"):
                found = (python_faults if path.suffix == ".py" else cpp_faults)(file, text)
                faults |= {(file, x.start, x.stop, x.new): x for x in found}
        draw = random.Random(seed * len(AREAS) + number)
        mixed = draw.sample(list(faults.values()), len(faults))
        queues[area] = [x for x in mixed if "," not in x.old or draw.random() < 0.3]  # most exchanges raise at once
    chosen: dict[tuple[str, int], tuple[str, Fault]] = {}
    turns = itertools.cycle(AREAS)
    while len(chosen) < count and any(queues.values()):
        area = next(turns)
        found = [x for x in queues[area] if (x.file, x.line) not in chosen]
        if found:
            chosen[found[-1].file, found[-1].line] = area, found[-1]
        queues[area] = found[:-1]
    return list(chosen.values())


def pytest(copy: Path, tests: list[str], seconds: int) -> tuple[int, str]:
    """Exit code of pytest, or −1 where its time ran out, and the first test that failed."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 10))  # processor time: the machine may be busy
        resource.setrlimit(resource.RLIMIT_AS, (24 << 30, 24 << 30))

    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", *tests],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=limit,
        start_new_session=True,
    )
    try:
        output = process.communicate(timeout=6 * seconds)[0]
    except subprocess.TimeoutExpired:
        output = ""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # what the tests started and left
    code = process.wait()
    failed = re.search(r"^(?:FAILED|ERROR) (tests.*)", output, re.MULTILINE)
    return (-1 if code in (-signal.SIGXCPU, -signal.SIGKILL) else code), failed[1] if failed else output.strip()[-300:]


def nearest(copy: Path, file: str) -> str:
    """The folder of tests that is nearest to a file."""
    folder = Path("tests") / Path(file).relative_to(PACKAGE).parent
    while not (copy / folder).exists():
        folder = folder.parent
    return str(folder) if len(folder.parts) > 1 else "tests/ops"


def judge(copy: Path, area: str, fault: Fault, seconds: int) -> dict[str, str]:
    """Plant a fault, run the tests, and take the fault away."""
    path = copy / fault.file
    before = path.read_bytes()
    path.write_bytes(before[: fault.start] + fault.new.encode() + before[fault.stop :])
    try:
        tests = [test for test in (nearest(copy, fault.file), *AREAS[area][1]) if (copy / test).exists()]
        code, failed = pytest(copy, tests, seconds)
        if code == 0:
            code, failed = pytest(copy, ["--run-slow", "-m", "slow", *tests], seconds)
    finally:
        path.write_bytes(before)
    if code == -1:
        return {"verdict": "timeout", "test": ""}
    if code in (0, NO_TESTS):
        return {"verdict": "not seen", "test": ""}
    name = failed.split(" - ")[0]
    clean = pytest(copy, ["--run-slow", name], seconds)[0] if "::" in name else 0
    return {"verdict": "unclear" if clean else "seen", "test": failed[:200]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tree", type=Path, default=Path(__file__).parents[1], help="checkout to copy")
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("faults.json"))
    parser.add_argument("--resume", action="store_true", help="keep the verdicts in --out")
    parser.add_argument("--seconds", type=int, default=1800, help="processor time of one run of tests")
    args = parser.parse_args()
    rows = json.loads(args.out.read_text()) if args.resume and args.out.exists() else []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "tree"
        shutil.copytree(args.tree, copy, ignore=shutil.ignore_patterns(".git", "__pycache__", "*.so", "_build"))
        faults = choose(copy, args.count, args.seed)
        for area, fault in faults[len(rows) :]:
            verdict = judge(copy, area, fault, args.seconds)
            rows.append({"area": area, **fault._asdict(), **verdict})
            shown = " ".join(f"{fault.old!r} -> {fault.new!r}".split())
            print(f"{area:8} {verdict['verdict']:9} {fault.file}:{fault.line}  {shown}  {verdict['test']}", flush=True)
            args.out.write_text(json.dumps(rows, indent=1))
    for area in AREAS:
        verdicts = [row["verdict"] for row in rows if row["area"] == area]
        print(f"{area:8} {sum(x != 'not seen' for x in verdicts)} of {len(verdicts)} seen")


if __name__ == "__main__":
    main()
