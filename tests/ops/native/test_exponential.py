"""The exponential of compiled code: its values at the ends of its range, and nothing that C++ leaves undefined."""

import subprocess
import sys

import pytest

from pyg_topomask.ops.native import sources

try:
    COMPILER = sources.find_compiler(None)
except (sources.NoCompilerError, sources.CompilerError):
    COMPILER = []

PROGRAM = r"""
#include <cmath>
#include <limits>
#include "exponential.h"
template <class T>
__attribute__((noinline)) void exponentials(T* x, int count) {
    for (int i = 0; i < count; ++i) x[i] = exponential(x[i]);
}
template <class T>
bool holds(double error) {
    const T most = -Exp<T>::least, all = std::numeric_limits<T>::infinity(), nan = std::numeric_limits<T>::quiet_NaN();
    T many[64];  // in vectors
    for (T& x : many) x = nan;
    exponentials(many, 64);
    bool right = std::isnan(exponential(nan)) && std::isnan(many[0]);
    for (T x : {-all, -most - 1, -most, T(-1e-30), T(0), T(0.3), T(1.5), most, most + 1, all}) {
        const T wanted = std::exp(std::max(std::min(x, most), -most));
        right &= std::abs(exponential(x) / wanted - 1) < error;
    }
    for (T x = -most; x < most; x += T(0.01)) right &= std::abs(exponential(x) / std::exp(x) - 1) < error;
    return right;
}
int main() { return holds<float>(1e-5) && holds<double>(2e-13) ? 0 : 1; }
"""


@pytest.mark.skipif(not COMPILER or sys.platform == "win32", reason="needs a C++ compiler with traps")
def test_values_and_nothing_undefined(tmp_path):
    """A cast of a number that an integer cannot hold, such as NaN, stops the program."""
    (tmp_path / "main.cpp").write_text(PROGRAM)
    stops = "-fsanitize=float-cast-overflow", "-fsanitize-undefined-trap-on-error"
    for flags in (stops, (*sources.LIBRARIES["blocks"], "-O3")):
        command = [*COMPILER, "-std=c++17", f"-I{sources.HERE}", *flags, str(tmp_path / "main.cpp")]
        sources.compile(command, tmp_path / "main")
        assert subprocess.run([tmp_path / "main"], check=False).returncode == 0
