"""What every package uses: errors, text, atomic files, redaction, the registry, the clock.

Imports none of our other packages.
"""
