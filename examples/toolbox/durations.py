"""Durations as people write them."""

SECONDS = {"s": 1, "m": 60, "h": 60}


def parse_duration(text):
    """'1h30m' is 5400 seconds."""
    total, number = 0, ""
    for letter in text:
        if letter.isdigit():
            number += letter
        else:
            total += int(number) * SECONDS[letter]
            number = ""
    return total
