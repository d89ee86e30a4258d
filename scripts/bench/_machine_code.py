"""What the compiled code of a Triton kernel says: the instructions that it issues, and offsets that may overflow."""

import re
import subprocess
import tempfile
from operator import add, mul
from typing import NamedTuple

from triton import knobs

LARGE, SMALL = 2**31 - 2**16, 2**10
"""Bounds of numbers of nodes, pairs and strides, which are 32 bits or fewer, and of the numbers in `SIZES`."""
SIZES = ("heads", "width", "channels", "size", "dim", "topk")
ARITHMETIC = {"arith.addi": add, "arith.subi": add, "arith.muli": mul}
MOVED = {"arith.extsi", "arith.select", "arith.divsi", "arith.maxsi", "arith.minsi"}
MOVED |= {"tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape"}


class Code(NamedTuple):
    """Machine code of a kernel."""

    lines: list[str]
    """Instructions without their predicates."""
    branches: list[tuple[int, int]]
    """Number of each instruction that branches, and of the one that it branches to."""

    @property
    def loops(self) -> list[tuple[int, int]]:
        """First instruction and last + 1 of each loop, outer ones first."""
        return sorted(((to, at + 1) for at, to in self.branches if to <= at), key=lambda loop: (loop[0], -loop[1]))

    def hot(self) -> int:
        """Instructions of a round of the first loop without an inner loop and what is skipped together with it."""
        first, last = self.loops[0]
        begin, end = next((loop for loop in self.loops[1:] if loop[1] < last), (first, first))
        around = [to - at - 1 for at, to in self.branches if first <= at < begin and end <= to <= last]
        return last - first - max([end - begin, *around])


def disassembled(cubin: bytes) -> Code:
    """The machine code."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [knobs.nvidia.nvdisasm.path, "-c", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines: list[str] = []
    places: dict[str, int] = {}
    for line in text.splitlines():
        if label := re.match(r"\s*(\.L_\w+):", line):
            places[label[1]] = len(lines)
        elif found := re.match(r"\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?(.*?)\s*;", line):
            lines.append(found[1])
    targets = ((at, re.search(r"(\.L_\w+)", line)) for at, line in enumerate(lines) if line.startswith("BRA"))
    return Code(lines, [(at, places[to[1]]) for at, to in targets if to and to[1] in places])


def overflows(ttir: str) -> list[str]:
    """Lines of Triton's intermediate code that compute an offset in memory and may exceed their 32 or 64 bits.

    The largest size of each number follows from the lines before it; one that is read from memory or counts the rounds
    of a loop is at most `LARGE`.
    """
    known: dict[str, tuple[int, str]] = dict.fromkeys(SIZES, (SMALL, ""))  # largest size, line of an overflow
    found = []
    for line in ttir.splitlines():
        text = re.sub(r" loc\(.*", "", line).strip()
        if not (parts := re.match(r"%(\w+) = ([\w.]+) (.*)", text)):
            continue
        name, op, rest = parts.groups()
        given = [known.get(x, (LARGE, "")) for x in re.findall(r"%(\w+)", rest)][op == "arith.select" :]
        most, wrong = LARGE, ""
        if number := re.match(r"(?:dense<)?(-?\d+)>? :", rest) if op == "arith.constant" else None:
            most = abs(int(number[1]))
        elif op == "tt.make_range":
            most = max(map(int, re.findall(r"(\d+) : i32", rest)))
        elif op == "tt.get_program_id" and rest[0] == "y":  # blocks of heads
            most = SMALL
        elif op == "tt.addptr" and given[1][1]:
            found.append(given[1][1])
        elif op in ARITHMETIC or op in MOVED:
            most = ARITHMETIC[op](given[0][0], given[1][0]) if op in ARITHMETIC else max(size for size, _ in given)
            bits = re.findall(r"i(32|64)\b", text)
            too_large = bits and most >= 2 ** (int(bits[-1]) - 1)
            wrong = next((line for _, line in given if line), text if too_large else "")
        known[name] = most, wrong
    return found
