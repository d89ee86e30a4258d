"""What the registers of arguments and of keys share: another value, and whether two results differ."""


def another(value):
    """Another value than a truth value or a number; None for others."""
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else value / 2 + 0.1 if isinstance(value, float) else None


def differ(some, others):
    """Whether two texts, or the numbers of two lists of tensors, differ by more than rounding."""
    if isinstance(some, str):
        return some != others
    if [value.shape for value in some] != [value.shape for value in others]:
        return True
    pairs = [(one.double().nan_to_num(), other.double().nan_to_num()) for one, other in zip(some, others)]
    return any((one - other).norm() > 1e-5 * other.norm() for one, other in pairs)
