"""The script that plants faults, on a package of one file."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "faults.py"

SOURCE = '''
"""1 < 2 is no code."""


def scaled(x, factor=3):
    if not x > 0:
        raise ValueError(f"x must be positive (got {x - 1})")
    return x * factor
'''
TEST = """
from pyg_topomask.run.scale import scaled


def test_scaled():
    assert scaled(2) == 6
"""


def test_faults_are_in_code_and_tests_are_asked(scripts, tmp_path):
    tree = tmp_path / "tree"
    conftest = "def pytest_addoption(parser):\n    parser.addoption('--run-slow', action='store_true')\n"
    files = {"pyg_topomask/run/scale.py": SOURCE, "tests/run/test_scale.py": TEST, "conftest.py": conftest}
    for file, text in files.items():
        path = tree / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    faults = scripts("faults").python_faults("pyg_topomask/run/scale.py", SOURCE)
    assert {(fault.old, fault.new) for fault in faults} == {("not ", ""), (">", ">="), ("0", "1"), ("*", "+")}
    out = tmp_path / "faults.json"
    subprocess.run([sys.executable, SCRIPT, "--tree", tree, "--count", "2", "--seed", "1", "--out", out], check=True)
    rows = json.loads(out.read_text())
    assert {row["new"]: row["verdict"] for row in rows} == {">=": "not seen", "+": "seen"}
    assert (tree / "pyg_topomask/run/scale.py").read_text() == SOURCE
