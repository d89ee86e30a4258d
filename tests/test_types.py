"""Type checkers know what a user's program gets from calls of modules and transforms."""

import subprocess
import sys
from pathlib import Path

import pytest

CHECKERS = {
    "mypy": (["mypy", "--config-file=", "--ignore-missing-imports", "--follow-imports=silent"], "Success: no issues"),
    "pyright": (["pyright", "--pythonpath", sys.executable], "0 errors"),
}


@pytest.mark.slow
@pytest.mark.parametrize("checker", CHECKERS)
def test_types_of_a_users_program_are_known(checker):
    command, found_none = CHECKERS[checker]
    program = Path(__file__).with_name("typed_program.py")
    result = subprocess.run(
        [sys.executable, "-m", *command, program], capture_output=True, text=True, cwd=program.parents[1]
    )
    assert found_none in result.stdout, result.stdout + result.stderr
