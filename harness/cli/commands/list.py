"""`bench list`: print what can be chosen by name, and the runs."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from harness.cli import catalogue
from harness.cli.options import CommandApp
from harness.cli.tables import show_rows
from harness.load.option import Option

app = CommandApp()


class Listing(StrEnum):
    POLICIES = "policies"
    ROUTERS = "routers"
    HARDWARE = "hardware"
    MODELS = "models"
    PACKS = "packs"
    EXPERIMENTS = "experiments"
    RUNS = "runs"


@app.command("list")
def list_(
    listing: Annotated[Listing, Option("What to list.", "THING", positional=True)],
) -> None:
    """List policies, routers, hardware, models, packs, experiments, or runs: bench list policies

    Runs are those under runs/, by load and date. The option --hardware of other commands also takes
    a TOML file that describes another GPU: see docs/howto/my-gpu.md.
    """
    show_rows(getattr(catalogue, listing.value)(), heads=catalogue.HEADS[listing.value])
