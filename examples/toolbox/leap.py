"""Leap years."""


def is_leap(year):
    """In the Gregorian calendar."""
    return year % 4 == 0
