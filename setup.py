"""The build option ``TOPOMASK_SHIP_NATIVE``: a wheel for one kind of machine that contains compiled C++ code.

Its value is ``1``, or some names of libraries with commas in between. Everything else about the package is in
``pyproject.toml``.
"""

import importlib.util
import os
import shlex
import shutil
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

SHIP = os.environ.get("TOPOMASK_SHIP_NATIVE", "0")
NATIVE = Path("pyg_topomask", "ops", "native")


def load_sources():
    """The module that compiles, without its package, which imports torch."""
    spec = importlib.util.spec_from_file_location("sources", Path(__file__).parent / NATIVE / "sources.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class BuildWithLibraries(build_py):
    def run(self):
        super().run()
        if SHIP != "0" and not self.editable_mode:
            sources = load_sources()
            found = next(filter(shutil.which, sources.COMPILERS), "c++")
            compiler = shlex.split(os.environ.get("CXX", "")) or [found]
            sources.ship(Path(self.build_lib, NATIVE, "shipped"), compiler, None if SHIP == "1" else SHIP.split(","))


class WheelForOneMachine(bdist_wheel):
    def get_tag(self):
        tag = super().get_tag()
        return tag if SHIP == "0" else ("py3", "none", tag[2])  # the libraries use nothing of Python


class PerhapsForOneMachine(Distribution):
    def has_ext_modules(self):
        return SHIP != "0"


setup(cmdclass={"build_py": BuildWithLibraries, "bdist_wheel": WheelForOneMachine}, distclass=PerhapsForOneMachine)
