"""Lines of a given width."""


def wrap(text, width):
    """Lines of at most `width` characters, broken between words."""
    lines, line = [], ""
    for word in text.split():
        if len(line) + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return lines
