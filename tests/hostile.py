"""What a hostile file holds."""


class Calls:
    """What is pickled as a call of a function, which is made when the pickle is read."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def touch(path):
    """Leave a file behind, as a sign of having been called."""
    open(path, "w").close()
