"""One file per command of `bench`; each defines a Typer application called `app`."""
