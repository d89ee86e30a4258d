"""The library compiled here is the search. Where a test can do without a compiler, a script copies a library."""

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import torch

from pyg_topomask.cache import private_folder
from pyg_topomask.ops.native import loader, sources
from pyg_topomask.typing import PerformanceWarning

COMPILER = next(filter(None, map(shutil.which, sources.COMPILERS)), None)
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
posix = pytest.mark.skipif(os.name != "posix", reason="permissions and locks of POSIX")


LANES = """
#include "pairs/vector.h"
template <class T> bool right() {
    constexpr int L = Vec<T>::L;
    typename Vec<T>::type x[L + 1];
    for (int i = 0; i <= L; ++i) for (int lane = 0; lane < L; ++lane) x[i][lane] = i * i + lane + 1;
    const auto sums = sums_of_lanes(x);
    for (int i = 0; i < L; ++i) if (sums[i] != L * i * i + L * (L + 1) / 2) return false;
    return true;
}
int main() { return !right<float>() || !right<double>(); }
"""


@pytest.fixture
def whole():
    """The library that all tests share."""
    library = loader.load("topk")
    if isinstance(library, str):
        pytest.skip(library)
    return Path(library._name)


@pytest.fixture
def other():
    """Another library that all tests share; no name if there is none."""
    return getattr(loader.load("walks"), "_name", "")


@pytest.fixture
def fresh(whole, tmp_path, monkeypatch):
    """A cache without libraries, and a package without them, as from a wheel that is not for one system."""
    use_cache(tmp_path / "cache", monkeypatch)
    monkeypatch.setattr(sources, "SHIPPED", tmp_path / "shipped")
    yield tmp_path
    loader._load.cache_clear()


def use_cxx(command, monkeypatch):
    monkeypatch.setenv("CXX", command)
    loader._load.cache_clear()


def use_cache(folder, monkeypatch):
    loader._load.cache_clear()
    monkeypatch.setattr(loader, "library_folder", lambda: folder / "native")


def use_compiler(folder, monkeypatch, script):
    """Take a shell script, which finds the output's name by ``out``, for the compiler."""
    path = folder / "compiler"
    path.write_text(f'#!/bin/sh\nout() {{ while [ "$1" != -o ]; do shift; done; echo "$2"; }}\n{script}\n')
    path.chmod(0o755)
    use_cxx(str(path), monkeypatch)
    return path


def compile_soon(monkeypatch):
    monkeypatch.setattr(sources, "FLAGS", [flag.replace("-O3", "-O0") for flag in sources.FLAGS])


def copying(library):
    return f'cp "{library}" "$(out "$@")"'


def loads():
    return not isinstance(loader.load("topk"), str)


def refused(reason):
    """The reason is given each time, and told once."""
    with pytest.warns(PerformanceWarning, match=reason) as told:
        assert not loads()
    assert len(told) == 1
    assert "\n" not in str(told[0].message)
    return loader.load("topk")  # the suite makes an error of a second warning


def test_without_a_compiler_nothing_is_said(fresh, monkeypatch):
    use_cxx("no-such-compiler", monkeypatch)
    assert "no C++ compiler: neither no-such-compiler is" in loader.load("topk")
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(fresh))
    loader._load.cache_clear()
    assert "neither c++ nor g++ nor clang++ is on the path" in loader.load("topk")
    monkeypatch.setenv("TOPOMASK_NATIVE", "0")
    assert loader.load("topk") == "TOPOMASK_NATIVE=0 switches compiled code off"


@posix
@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'x.cpp:1: error: no luck' >&2\necho more >&2\nexit 3", "exit code 3: x.cpp:1: error: no luck"),
        ("exit 3", "failed with exit code 3: it says nothing"),
        (r"printf '\377\376 error \303\n' >&2; exit 3", "failed with exit code 3: .* error"),
        ("exit 0", "says that all went well, but wrote no library"),
        ('touch "$(out "$@")"', "says that all went well, but wrote no library"),
        ('echo junk > "$(out "$@")"', "cannot be loaded: "),
        ('head -c $((SIZE * 3 / 10)) "WHOLE" > "$(out "$@")"', "cannot be loaded"),
        ('head -c $((SIZE * 6 / 10)) "WHOLE" > "$(out "$@")"', "cannot be loaded"),
        ('cp "OTHER" "$(out "$@")"', "cannot be loaded: .*topk_search"),
    ],
)
def test_a_compiler_that_makes_no_library(other, fresh, whole, monkeypatch, script, reason):
    """Half a library would kill the process that opens it: another one tries. Nothing is left."""
    for name, text in (("SIZE", whole.stat().st_size), ("WHOLE", whole), ("OTHER", other)):
        script = script.replace(name, str(text))
    use_compiler(fresh, monkeypatch, script)
    assert "the C++ compiler" in refused(reason)
    assert not list((fresh / "cache").rglob("*topk*"))


@posix
def test_a_compiler_that_does_not_end(fresh, monkeypatch):
    monkeypatch.setattr(sources, "PATIENCE", 0.05)
    use_compiler(fresh, monkeypatch, "exec sleep 5")
    refused("did not finish within 0.05 s")


@posix
def test_programs_that_cannot_be_run(fresh, monkeypatch):
    use_cxx("'c++", monkeypatch)
    refused(r"cannot be read as a command \(No closing quotation\): 'c\+\+")
    use_compiler(fresh, monkeypatch, "").write_bytes(b"\x7fno program")
    refused(r"the C\+\+ compiler .*/compiler cannot be run: ")


def test_a_damaged_library_is_compiled_again(whole, tmp_path, monkeypatch):
    use_compiler(tmp_path, monkeypatch, copying(whole))
    sound, name = whole.read_bytes(), None
    for number, damaged in enumerate((sound, b"", sound[: len(sound) // 2], b"x" * len(sound))):
        folder = tmp_path / str(number)  # of its own each: a library that is loaded must not change
        if name:
            private_folder(folder / name.parent).joinpath(name.name).write_bytes(damaged)
        use_cache(folder, monkeypatch)
        assert loads()
        (path,) = folder.rglob("*.so")
        assert path.read_bytes() == sound
        name = path.relative_to(folder)
    loader._load.cache_clear()


@posix
def test_what_two_want_at_once_is_compiled_once(fresh, whole, monkeypatch, capsys):
    use_compiler(fresh, monkeypatch, f'echo one >>"{fresh}/calls"\nsleep 0.3\n{copying(whole)}')
    load = partial(loader._load.__wrapped__, "topk")
    with ThreadPoolExecutor() as pool:
        found = pool.map(lambda _: load(), range(2))
    assert not any(isinstance(library, str) for library in found)
    assert (fresh / "calls").read_text() == "one\n"
    assert capsys.readouterr().err == "topomask: compiling topk for this machine, once\n"


@pytest.mark.slow
@needs_compiler
def test_a_compiler_with_flags_of_its_own(fresh, monkeypatch):
    use_cxx(f"'{COMPILER}' -DTOPK_TEST -w", monkeypatch)
    compile_soon(monkeypatch)
    assert loads()
    assert len(list((fresh / "cache").rglob("*topk*"))) == 1  # compiled once, whole
    use_cxx(f"{COMPILER} --no-such-flag", monkeypatch)
    refused("failed with exit code 1")


@needs_compiler
@pytest.mark.parametrize("version", [[], ["-U__GNUC__", "-D__GNUC__=11"]])
def test_compilers_with_and_without_shuffles_sum_the_lanes_of_vectors(version, tmp_path):
    source, made = tmp_path / "lanes.cpp", tmp_path / "lanes"
    source.write_text(LANES)
    subprocess.run([COMPILER, "-std=c++17", "-w", *version, f"-I{sources.HERE}", source, "-o", made], check=True)
    subprocess.run([made], check=True)


@posix
@needs_compiler
def test_a_library_that_others_can_change_is_not_loaded(fresh, monkeypatch):
    """A shared object runs code when it is loaded: the marker must not appear."""
    marker, source, made = (fresh / name for name in ("marker", "hostile.cpp", "hostile.so"))
    runs = f'struct Runs {{ Runs() {{ fclose(fopen("{marker}", "w")); }} }} runs;'
    source.write_text(f'#include <cstdio>\n{runs}\nextern "C" void topk_search() {{}}\n')
    subprocess.run([COMPILER, "-shared", "-fPIC", str(source), "-o", str(made)], check=True)
    use_compiler(fresh, monkeypatch, copying(made))
    assert loads()
    marker.unlink()  # in a folder of one's own it ran
    (own,) = (fresh / "cache").rglob("*.so")
    for number, (mode, above) in enumerate([(0o777, 0o755), (0o720, 0o755), (0o700, 0o777)]):
        folder = fresh / str(number)
        theirs = folder / "native"
        theirs.mkdir(parents=True)
        shutil.copy(own, theirs)
        theirs.chmod(mode)
        folder.chmod(above)
        use_cache(folder, monkeypatch)
        assert "can change" in refused("set TOPOMASK_CACHE to a folder of your own")
    use_cache(fresh / "cache", monkeypatch)
    own.chmod(0o702)
    refused(rf"can change {own} \(owner \d+, mode 702\), .*; set TOPOMASK_CACHE to a folder of your own")
    if os.geteuid() == 0:  # only root may give a file away
        loader._load.cache_clear()
        own.chmod(0o700)
        os.chown(own, 12345, -1)
        refused(r"\(owner 12345, mode 700\)")
    assert not marker.exists()


@posix
def test_a_cache_that_cannot_be_used(fresh, whole, monkeypatch):
    """It is a file, its file system runs no programs, or it is read-only."""
    (fresh / "file").write_text("")
    use_cache(fresh / "file" / "cache", monkeypatch)
    use_compiler(fresh, monkeypatch, copying(whole))
    refused("cannot be kept in .*file/cache/native: .*; set TOPOMASK_CACHE")
    use_cache(fresh / "cache", monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(os, "statvfs", lambda path: type("Mounted", (), {"f_flag": os.ST_NOEXEC}))
        refused(r"cannot be kept in .*native: .* \(noexec\); set TOPOMASK_CACHE")
    if os.geteuid() != 0:  # root may write anywhere
        loader._load.cache_clear()
        private_folder(fresh / "cache" / "native").chmod(0o500)
        refused("Permission denied.*set TOPOMASK_CACHE")


def test_each_cpu_has_a_library_of_its_own(fresh, whole, monkeypatch):
    use_compiler(fresh, monkeypatch, f'echo "$@" >>"{fresh}/flags"\n{copying(whole)}')
    for capability in ("DEFAULT", "AVX2", "AVX512"):
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda name=capability: name)
        loader._load.cache_clear()
        assert loads()
    assert len(list((fresh / "cache").rglob("*.so"))) == 3
    plain, narrow, wide = (fresh / "flags").read_text().splitlines()
    assert "-mavx" not in plain
    assert "-mavx2 " in narrow
    assert "-mavx512f " in wide


@pytest.mark.slow
@needs_compiler
def test_a_shipped_library_needs_no_compiler(fresh, monkeypatch):
    compile_soon(monkeypatch)
    shipped, capability = fresh / "shipped", torch.backends.cpu.get_cpu_capability()
    monkeypatch.setattr(sources, "SHIPPED", shipped)
    monkeypatch.setattr(sources, "INSTRUCTIONS", {sources.instructions(capability): ()})
    made = sources.ship(shipped, [COMPILER], ["topk"])
    assert {path.parent for path in made} == {shipped}
    monkeypatch.setenv("PATH", "")
    assert Path(loader.load("topk")._name).parent == shipped
    assert not (fresh / "cache").exists()
    loader._load.cache_clear()
    monkeypatch.setattr(sources, "FLAGS", [*sources.FLAGS, "-g"])  # made of something else than these sources
    assert "no C++ compiler" in loader.load("topk")


@pytest.mark.parametrize("tag", sources.PLATFORMS)
def test_libraries_for_another_platform(tmp_path, monkeypatch, tag):
    script = f'echo "$@" >>"{tmp_path}/calls"; echo made >"$(out "$@")"'
    compiler = use_compiler(tmp_path, monkeypatch, script)
    made = sources.ship(tmp_path / "shipped", [str(compiler)], ["topk"], tag)
    *machine, target = sources.PLATFORMS[tag]
    sets = ["avx512", "avx2", "plain"] if tag in ("manylinux_2_17_x86_64", "win_amd64") else ["plain"]
    assert [path.stem for path in made] == [f"{sources.shipped_stem('topk', one, machine)}-5" for one in sets]
    compiled, linked = [(tmp_path / "calls").read_text().splitlines()[part::2] for part in (0, 1)]
    assert all(call.startswith(f"-target {target} ") for call in compiled + linked)
    assert not any("-mavx" in call for call in linked)  # one standard library of the compiler serves all
    names = {sources.shipped_stem("topk", "plain", values[:2]) for values in sources.PLATFORMS.values()}
    assert len(names) == len(sources.PLATFORMS)


def test_a_library_that_cannot_be_shipped(tmp_path, monkeypatch):
    compiler = use_compiler(tmp_path, monkeypatch, "exit 3")
    with pytest.raises(RuntimeError, match=r"'topk' cannot be compiled for '.*': .* failed with exit code 3"):
        sources.ship(tmp_path, [str(compiler)], ["topk"])


def test_every_library_has_the_entries_of_its_source():
    assert {path.parent.name for path in sources.HERE.glob("*/*.cpp")} == set(sources.LIBRARIES)
    for name in sources.LIBRARIES:
        library, names = loader.load(name), sources.entries(name)
        assert len(names) >= 1
        assert isinstance(library, str) or all(hasattr(library, entry) for entry in names)
