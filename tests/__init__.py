import os

# The sources run, not a compiled core, so that tests can replace parts of them.
os.environ.setdefault("TURNSTILE_CORE", "python")
