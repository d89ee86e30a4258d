"""Files and folders that are whole or absent, whoever writes them and however the writer ends."""

import os
import platform
import subprocess
import sys

import pytest

from pyg_topomask.cache import building, locked, private_folder, replacing

posix = pytest.mark.skipif(os.name != "posix", reason="permissions and signals of POSIX")


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def write(path, text, error=None):
    with replacing(path) as temporary:
        temporary.write_text(text)
        if error is not None:
            raise error


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt(), RuntimeError()])
def test_a_failed_write_leaves_the_old_file(tmp_path, error):
    path = tmp_path / "a [x].txt"
    write(path, "old")
    with pytest.raises(type(error)):
        write(path, "half", error)
    assert (names(tmp_path), path.read_text()) == ([path.name], "old")
    write(path, "new")
    assert (names(tmp_path), path.read_text()) == ([path.name], "new")


@posix
def test_the_temporary_file_is_like_the_final_one(tmp_path):
    umask, path = os.umask(0o027), tmp_path / "a.png"
    with replacing(path) as temporary:
        assert (temporary.parent, temporary.suffix) == (tmp_path, ".png")
    os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o640


@posix
@pytest.mark.slow
def test_only_what_dead_writers_left_is_cleared_away(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    here = f".a.pt.part-{platform.node()}-"
    others = [f".a.pt.part-elsewhere-{ended.pid}-1.pt", "a.pt.part", here.replace("a.pt", "b.pt") + f"{ended.pid}-1"]
    for name in [f"{here}{ended.pid}-1.pt", f"{here}{os.getpid()}-1.pt", *others]:
        (tmp_path / name).write_text("")
    (tmp_path / f"{here}{ended.pid}-2").mkdir()
    write(tmp_path / "a.pt", "whole")
    assert names(tmp_path) == sorted([f"{here}{os.getpid()}-1.pt", *others, "a.pt"])


def test_a_failed_build_leaves_nothing_and_the_first_of_two_wins(tmp_path):
    def build(who, meanwhile=lambda: None, error=None):
        with building(tmp_path / "final") as folder:
            (folder / "who").write_text(who)
            meanwhile()
            if error is not None:
                raise error

    with pytest.raises(KeyboardInterrupt):
        build("half", error=KeyboardInterrupt())
    assert names(tmp_path) == []
    build("second", lambda: build("first"))
    assert (names(tmp_path), (tmp_path / "final" / "who").read_text()) == (["final"], "first")


def test_a_folder_in_place_of_a_file_and_a_file_in_place_of_a_folder(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").write_text("")
    for make in (replacing(tmp_path / "a"), building(tmp_path / "b")):
        with pytest.raises(OSError, match=r"[ab]"), make:
            pass
    assert names(tmp_path) == ["a", "b"]


WRITER = """
import os, random, signal, sys
from pathlib import Path
from pyg_topomask.cache import building, locked, replacing
folder, seed = Path(sys.argv[1]), int(sys.argv[2])
draw, digit = random.Random(seed), str(seed)
for turn in range(60):
    delay, child = draw.uniform(1e-5, 4e-3), os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        signal.setitimer(signal.ITIMER_REAL, delay)
        while True:
            with replacing(folder / "file") as temporary:
                with temporary.open("w") as file:
                    for _ in range(50):
                        file.write(digit * 100)
                        file.flush()
            with locked(folder / "built"), building(folder / f"built{seed}-{turn}") as made:
                for part in range(3):
                    (made / str(part)).write_text(digit)
    os.waitpid(child, 0)
    text = (folder / "file").read_text() if (folder / "file").exists() else "x" * 5000
    assert len(text) == 5000 and len(set(text)) == 1, text[:300]
    for made in folder.glob("built*"):
        assert len(list(made.iterdir())) == 3, made
"""


@posix
@pytest.mark.slow
def test_two_writers_that_are_killed_again_and_again_leave_whole_files(tmp_path):
    run = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), seed]) for seed in "12"]
    assert [process.wait(timeout=120) for process in run] == [0, 0]
    write(tmp_path / "file", "end")
    assert not [name for name in names(tmp_path) if name.startswith(".file.part-")]


HOLDER = """
import sys, time; from pathlib import Path; from pyg_topomask.cache import locked
with locked(Path(sys.argv[1]), wait=False): print("locked", flush=True); time.sleep(100)
"""


@posix
@pytest.mark.slow
def test_a_lock_is_held_by_one_and_released_by_a_dead_process(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path / "x")], stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(BlockingIOError), locked(tmp_path / "x", wait=False):
            pass
        holder.kill()
    with locked(tmp_path / "x", wait=False), locked(tmp_path / "x"), locked(tmp_path / "none" / "x"):
        pass  # all go ahead where no lock file can be made
    assert not (tmp_path / "none").exists()


@posix
def test_a_private_folder_is_writable_by_its_owner_only(tmp_path):
    made = private_folder(tmp_path / "one" / "native")
    assert made.stat().st_mode & 0o777 == 0o700
    assert private_folder(made) == made
    for folder, mode in ((made, 0o720), (made, 0o702), (made.parent, 0o777)):
        folder.chmod(mode)
        with pytest.raises(PermissionError, match=f"others than user .* can change .*{folder.name} .*mode {mode:o}"):
            private_folder(made)
        folder.chmod(0o755)
    made.parent.chmod(0o1777)  # nobody can rename what is another's, as in /tmp
    assert private_folder(made) == made
    if os.geteuid() == 0:  # only root can give a folder away
        os.chown(made, 12345, -1)
        (tmp_path / "link").symlink_to(made)
        for theirs in (made, made / "inside", tmp_path / "link"):
            with pytest.raises(PermissionError, match=r"native \(owner 12345"):
                private_folder(theirs)
