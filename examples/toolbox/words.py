"""Words of a text."""


def count_words(text):
    """Whitespace of any kind and length parts words."""
    return len(text.split(" "))
