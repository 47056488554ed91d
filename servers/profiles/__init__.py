"""Profiles: step times and KV capacity of a model on a machine.

In: a machine (a name, or a file that describes its GPU) and a model, or the file of a measured
profile. Out: `Profile`, and `Costs` for policies. docs/reference/profiles.md has the formula and
the sources.
"""

from servers.profiles.machines.gpu_file import hardware
from servers.profiles.machines.gpus import HARDWARE, Hardware
from servers.profiles.models.listed import MODELS, model
from servers.profiles.models.shape import Model
from servers.profiles.profile import Profile, TableProfile, WindowTimes, profile_of
from servers.profiles.rebuild import costs
from servers.profiles.roofline import analytic_profile, notes

__all__ = [
    "HARDWARE",
    "MODELS",
    "Hardware",
    "Model",
    "Profile",
    "TableProfile",
    "WindowTimes",
    "analytic_profile",
    "costs",
    "hardware",
    "model",
    "notes",
    "profile_of",
]
