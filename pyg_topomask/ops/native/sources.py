"""The C++ sources of this folder, and how they are compiled. ``setup.py`` uses this module without torch."""

import hashlib
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
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
    "gated": ("-fno-math-errno", *_REARRANGED),
    "hops": (),
    "linear": ("-fno-math-errno", *_REARRANGED),
    "pairs": ("-fno-math-errno", *_REARRANGED),
    "polynomial": ("-fno-math-errno", *_REARRANGED),
    "primal": ("-fno-math-errno", *_REARRANGED),
    "sparse": (),
    "topk": (),
    "walks": (),
}
"""Folders of the libraries' sources, and the compiler flags of each."""

INSTRUCTIONS = {
    "avx512": ("-mavx512f", "-mavx512vl", "-mavx512bw", "-mavx512dq", "-mfma"),
    "avx2": ("-mavx2", "-mfma"),
    "plain": (),
}
"""Compiler flags of each set of vector instructions."""

FLAGS = ("-std=c++17", "-O3", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden", "-Wno-psabi")
# They contain the C++ standard library, so that another machine needs no matching one, and no names for debuggers.
SHIPPED_FLAGS = ("-shared", "-pthread", "-s", "-static-libstdc++", "-static-libgcc")
COMPILERS = ("c++", "g++", "clang++")
PATIENCE = 1800
"""Seconds after which a compiler counts as one that never ends. A compilation takes three to ten, and longer on a busy
machine.
"""


MACHINE = sys.platform, platform.machine()
"""This system and kind of processor."""
PLATFORMS = {
    "manylinux_2_17_x86_64": ("linux", "x86_64", "x86_64-linux-gnu.2.17"),
    "manylinux_2_17_aarch64": ("linux", "aarch64", "aarch64-linux-gnu.2.17"),
    "macosx_11_0_arm64": ("darwin", "arm64", "aarch64-macos.11.0"),
    "win_amd64": ("win32", "AMD64", "x86_64-windows-gnu"),
}
"""Platforms that wheels are built for: system and processor, as in `MACHINE`, and what the compiler of zig calls it."""


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
    """The functions that Python calls."""
    return re.findall(r"^EXPORTED \w+ (\w+)\(", source(name).read_text(encoding="utf-8"), re.MULTILINE)


def flags(name: str, instructions: str) -> tuple[str, ...]:
    """Compiler flags of a library."""
    return (*FLAGS, *LIBRARIES[name], *INSTRUCTIONS[instructions])


def fingerprint(name: str, *made_by: str, machine: Sequence[str] = MACHINE) -> str:
    """Hash of a library's source and headers, the machine, and what else ``made_by`` names, such as flags."""
    headers = sorted([*HERE.glob("*.h"), *(HERE / name).glob("*.h")])
    key = hashlib.sha256(b"".join(path.read_bytes() for path in (source(name), *headers)))
    key.update("\0".join([*machine, *made_by]).encode())
    return key.hexdigest()[:24]


def shipped_stem(name: str, instructions: str, machine: Sequence[str] = MACHINE) -> str:
    """Name of a shipped library without its size: it fits these sources and this kind of machine only."""
    return f"{name}_{instructions}-{fingerprint(name, *flags(name, instructions), machine=machine)}"


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
    """Run a compiler that writes ``target``, within `PATIENCE`.

    Raises:
        CompilerError: If it does not.
    """
    compiler = f"the C++ compiler {command[0]}"
    try:
        done = subprocess.run([*command, "-o", str(target)], capture_output=True, timeout=PATIENCE, check=False)
    except OSError as error:
        raise CompilerError(f"{compiler} cannot be run: {error}") from None
    except subprocess.TimeoutExpired:
        raise CompilerError(f"{compiler} did not finish within {PATIENCE} s") from None
    said = done.stderr.decode("utf-8", "replace").strip()
    if done.returncode != 0:
        first = next((line for line in said.splitlines() if "error" in line), said[:200])
        raise CompilerError(f"{compiler} failed with exit code {done.returncode}: {first or 'it says nothing'}")
    if not target.is_file() or target.stat().st_size == 0:
        raise CompilerError(f"{compiler} says that all went well, but wrote no library")


def ship(folder: Path, compiler: list[str], names: list[str] | None = None, tag: str | None = None) -> list[Path]:
    """Compile libraries for every set of instructions of a kind of machine.

    A library is compiled, then linked without flags for instructions, because a compiler that builds its standard
    library would build it for each of them.

    Args:
        folder: Where the libraries are written.
        compiler: The compiler, and perhaps flags.
        names: The libraries; all if :obj:`None`.
        tag: One of `PLATFORMS`, which zig compiles for; this kind of machine if :obj:`None`.

    Raises:
        CompilerError: If a library cannot be compiled.
    """
    folder.mkdir(parents=True, exist_ok=True)
    *machine, target = PLATFORMS[tag] if tag else (*MACHINE, "")
    if tag:
        compiler = [*compiler, "-target", target]
    made = []
    sets = INSTRUCTIONS if machine[1] in ("x86_64", "AMD64") else ["plain"]
    for name in names or LIBRARIES:
        for one in sets:
            with tempfile.TemporaryDirectory() as work:
                compiled, library = Path(work, f"{name}.o"), Path(work, f"{name}.so")
                try:
                    compile([*compiler, *flags(name, one), "-c", str(source(name))], compiled)
                    compile([*compiler, *SHIPPED_FLAGS, str(compiled)], library)
                except CompilerError as error:
                    raise CompilerError(f"the library {name!r} cannot be compiled for {one!r}: {error}") from None
                final = folder / f"{shipped_stem(name, one, machine)}-{library.stat().st_size}.so"
                made.append(Path(shutil.copyfile(library, final)))
    return made
