"""The C++ sources of this folder, and how they are compiled. ``setup.py`` uses this module without torch."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
SHIPPED = HERE / "shipped"
"""Folder of the libraries that a wheel may contain."""

# Sums may be rearranged, so that they fill vectors; unlike -ffast-math, these flags respect NaN and infinity.
_REARRANGED = ("-fno-trapping-math", "-fassociative-math", "-fno-signed-zeros")
LIBRARIES = {
    "blocks": ("-fno-math-errno", *_REARRANGED),
    "dropout": ("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"),  # rounds as plain torch does
    "forest": _REARRANGED,
    "hops": (),
    "linear": ("-fno-math-errno", *_REARRANGED),
    "pairs": ("-fno-math-errno", *_REARRANGED),
    "primal": ("-fno-math-errno", *_REARRANGED),
    "sparse": (),
    "topk": (),
    "walks": (),
}
"""Folders of the libraries' sources, and the compiler flags of each."""

INSTRUCTIONS = {
    "avx512": ("-mavx512f", "-mavx512vl", "-mavx512bw", "-mavx512dq", "-mfma"),
    "avx2": ("-mavx2", "-mfma"),
    # Without vector instructions, GCC splits vectors of 32 bytes. If it also rearranged sums, a sum would depend on its
    # place in the vector.
    "plain": ("-fno-associative-math",),
}
"""Compiler flags of each set of vector instructions."""

FLAGS = ("-std=c++17", "-O3", "-fPIC", "-shared", "-pthread", "-Wno-psabi")
COMPILERS = ("c++", "g++", "clang++")
SHELL = "/bin/sh"
SECONDS = 120
"""Processor time for one compilation, which takes three to ten seconds. A busy machine may take longer."""
PATIENCE = 1800
"""Seconds after which a compiler counts as one that never ends, though it does nothing."""


class CompilerError(RuntimeError):
    """There is a compiler, but it made no library."""


class NoCompilerError(RuntimeError):
    """There is no compiler."""


def instructions(capability: str) -> str:
    """The set of vector instructions of a CPU that torch calls ``capability``."""
    return "avx512" if capability.startswith("AVX512") else "avx2" if capability == "AVX2" else "plain"


def source(name: str) -> Path:
    """The source file of a library, which includes headers beside it and those of this folder."""
    (path,) = (HERE / name).glob("*.cpp")
    return path


def entries(name: str) -> list[str]:
    """The functions that Python calls: those below ``extern "C"``, whose bodies are indented."""
    text = source(name).read_text(encoding="utf-8")
    return re.findall(r"^\w+ (\w+)\(", text[text.index('extern "C"') :], re.MULTILINE)


def flags(name: str, instructions: str) -> tuple[str, ...]:
    """Compiler flags of a library."""
    return (*FLAGS, *LIBRARIES[name], *INSTRUCTIONS[instructions])


def fingerprint(name: str, *made_by: str) -> str:
    """Hash of a library's source, headers and flags, the machine, and what else ``made_by`` names."""
    headers = sorted([*HERE.glob("*.h"), *(HERE / name).glob("*.h")])
    key = hashlib.sha256(b"".join(path.read_bytes() for path in (source(name), *headers)))
    key.update("\0".join([sys.platform, platform.machine(), *made_by]).encode())
    return key.hexdigest()[:24]


def shipped_stem(name: str, instructions: str) -> str:
    """Name of a shipped library without its size: it fits these sources and this kind of machine only."""
    return f"{name}_{instructions}-{fingerprint(name, *flags(name, instructions))}"


def find_compiler(named: str | None) -> list[str]:
    """Path and flags of the compiler that ``$CXX`` names, or else of the first of `COMPILERS` on the path.

    Raises:
        NoCompilerError: If there is none.
        CompilerError: If the name cannot be read.
    """
    try:
        program, *flags = shlex.split(named or "") or [""]
    except ValueError as error:
        raise CompilerError(f"$CXX cannot be read as a command ({error}): {named}") from None
    choices = [program] if program else COMPILERS
    compiler = next(filter(None, map(shutil.which, choices)), None)
    if compiler is None:
        raise NoCompilerError(f"there is no C++ compiler: neither {' nor '.join(choices)} is on the path")
    return [compiler, *flags]


def compile(command: list[str], target: Path) -> None:
    """Run a compiler that writes ``target``.

    Raises:
        CompilerError: If it does not.
    """
    limited = [*command, "-o", str(target)]
    if os.name == "posix":
        limited = [SHELL, "-c", f'ulimit -S -t {SECONDS} 2>/dev/null; exec "$@"', "sh", *limited]
    compiler = f"the C++ compiler {command[0]}"
    try:
        done = subprocess.run(limited, capture_output=True, timeout=PATIENCE, check=False)
    except OSError as error:
        raise CompilerError(f"{compiler} cannot be run: {error}") from None
    except subprocess.TimeoutExpired:
        raise CompilerError(f"{compiler} did not finish within {PATIENCE} s") from None
    said = done.stderr.decode("utf-8", "replace").strip()
    if done.returncode == -getattr(signal, "SIGXCPU", 0) or "CPU time limit exceeded" in said:
        raise CompilerError(f"{compiler} did not finish within {SECONDS} s of processor time")
    if done.returncode != 0:
        first = next((line for line in said.splitlines() if "error" in line), said[:200])
        raise CompilerError(f"{compiler} failed with exit code {done.returncode}: {first or 'it says nothing'}")
    if not target.is_file() or target.stat().st_size == 0:
        raise CompilerError(f"{compiler} says that all went well, but wrote no library")


def ship(folder: Path, compiler: list[str], names: list[str] | None = None) -> list[Path]:
    """Compile libraries for every set of instructions of this kind of machine.

    They contain the C++ standard library, so that another machine needs no matching one.

    Args:
        folder: Where the libraries are written.
        compiler: The compiler, and perhaps flags.
        names: The libraries; all if :obj:`None`.

    Raises:
        CompilerError: If a library cannot be compiled.
    """
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    sets = INSTRUCTIONS if platform.machine() in ("x86_64", "AMD64") else ["plain"]
    for name in names or LIBRARIES:
        for one in sets:
            stem = shipped_stem(name, one)
            path = folder / f"{stem}.so"
            static = ("-static-libstdc++", "-static-libgcc")
            try:
                compile([*compiler, *flags(name, one), *static, str(source(name))], path)
            except CompilerError as error:
                raise CompilerError(f"the library {name!r} cannot be compiled for {one!r}: {error}") from None
            made.append(path.rename(path.with_name(f"{stem}-{path.stat().st_size}.so")))
    return made
