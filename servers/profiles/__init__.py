"""Profiles: how long steps take and how much KV fits, per machine and model
(docs/reference/profiles.md)."""

from servers.errors import DoesNotFit, UnknownProfile
from servers.profiles.gpus import HARDWARE, Hardware, hardware
from servers.profiles.llms import MODELS, Model, model
from servers.profiles.profile import Profile
from servers.profiles.rebuild import costs
from servers.profiles.roofline import analytic_profile, notes

__all__ = [
    "HARDWARE",
    "MODELS",
    "DoesNotFit",
    "Hardware",
    "Model",
    "Profile",
    "UnknownProfile",
    "analytic_profile",
    "costs",
    "hardware",
    "model",
    "notes",
]
