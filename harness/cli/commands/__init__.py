"""The commands of `bench`, one per file. Each module has a Typer application named `app`."""
