"""Profiles: how long steps take and how much KV fits, per machine and model (docs/profiles.md)."""

from servers.profiles.gpus import HARDWARE, Hardware, hardware
from servers.profiles.llms import MODELS, Model, model
from servers.profiles.profile import PS_PER_S, DoesNotFitError, Profile, UnknownProfileError
from servers.profiles.rebuild import costs
from servers.profiles.roofline import analytic_profile, notes

__all__ = [
    "HARDWARE",
    "MODELS",
    "PS_PER_S",
    "DoesNotFitError",
    "Hardware",
    "Model",
    "Profile",
    "UnknownProfileError",
    "analytic_profile",
    "costs",
    "hardware",
    "model",
    "notes",
]
