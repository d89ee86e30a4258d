"""What a hostile file holds, and whether this Python can unpack an archive safely."""

import tarfile

import pytest

unpacks_safely = pytest.mark.skipif(
    not hasattr(tarfile, "data_filter"), reason="needs Python 3.10.12, 3.11.4 or later, which unpack archives safely"
)


class Calls:
    """What is pickled as a call of a function, which is made when the pickle is read."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def touch(path):
    """Leave a file behind, as a sign of having been called."""
    open(path, "w").close()
