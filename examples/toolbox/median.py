"""The middle of a list of numbers."""


def median(values):
    """Of an even number of values: the mean of the middle two."""
    values = sorted(values)
    return values[len(values) // 2]
