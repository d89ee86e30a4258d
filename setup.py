"""What ``pyproject.toml`` cannot say: two options of a build, which are variables of the environment.

``TOPOMASK_HOME_PAGE`` is the address of the repository. It gives the package its links, and makes those of the README
absolute, so that an index of packages can show the README.

``TOPOMASK_SHIP_NATIVE`` makes a wheel for one kind of machine that contains compiled C++ code. Its value is ``1``, or
some names of libraries with commas in between. The compiler of this machine builds for machines like it. If
``TOPOMASK_SHIP_FOR`` names a platform of ``sources.py``, the compiler of zig builds for that one, on any machine.
"""

import importlib.util
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

SHIP, TAG = os.environ.get("TOPOMASK_SHIP_NATIVE", "0"), os.environ.get("TOPOMASK_SHIP_FOR")
NATIVE = Path("pyg_topomask", "ops", "native")
HOME = os.environ.get("TOPOMASK_HOME_PAGE", "").rstrip("/")
PAGES = {"Documentation": "docs/index.md", "Results": "RESULTS.md", "Changelog": "CHANGELOG.md"}


def readme():
    """README.md, with absolute links and pictures if the home page is known."""

    def absolute(link):
        kind = "raw" if link[1].endswith((".png", ".svg")) else "blob"
        return f"]({HOME}/{kind}/HEAD/{link[1]})"

    text = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    return re.sub(r"\]\((?!\w+:|#)([^)]+)\)", absolute, text) if HOME else text


def load_sources():
    """The module that compiles, without its package, which imports torch."""
    spec = importlib.util.spec_from_file_location("sources", Path(__file__).parent / NATIVE / "sources.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class BuildWithLibraries(build_py):
    def run(self):
        if not self.editable_mode:  # a header of an earlier build would change the fingerprint of the libraries
            shutil.rmtree(Path(self.build_lib, NATIVE), ignore_errors=True)
        super().run()
        if SHIP != "0" and not self.editable_mode:
            sources = load_sources()
            found = next(filter(shutil.which, sources.COMPILERS), "c++")
            compiler = shlex.split(os.environ.get("CXX", "")) or [found]
            if TAG:
                compiler = [sys.executable, "-m", "ziglang", "c++"]
            names = None if SHIP == "1" else SHIP.split(",")
            sources.ship(Path(self.build_lib, NATIVE, "shipped"), compiler, names, TAG)


class WheelForOneMachine(bdist_wheel):
    def get_tag(self):
        tag = super().get_tag()
        return tag if SHIP == "0" else ("py3", "none", TAG or tag[2])  # the libraries use nothing of Python


class PerhapsForOneMachine(Distribution):
    def has_ext_modules(self):
        return SHIP != "0"


setup(
    cmdclass={"build_py": BuildWithLibraries, "bdist_wheel": WheelForOneMachine},
    distclass=PerhapsForOneMachine,
    long_description=readme(),
    long_description_content_type="text/markdown",
    project_urls={
        **({"Homepage": HOME, "Issues": f"{HOME}/issues"} if HOME else {}),
        **{name: f"{HOME}/blob/HEAD/{page}" for name, page in PAGES.items() if HOME},
    },
    setup_requires=["ziglang==0.17.*"] if TAG and SHIP != "0" else [],
)
