"""Read and write the settings of a sweep as a TOML file (`bench sweep sweep.toml`).

Keys are option names without the leading dashes; dashes and underscores are equivalent. Tables are
not supported. Relative paths refer to the current directory, as on the command line, except that
`hardware` and `model` may name files in the folder of the settings file, so that a run folder can
be moved. Errors are `InvalidInput` with the file, the key and the value.
"""

from __future__ import annotations

import json
import math
import os.path
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import TypeAdapter, ValidationError

from harness.load.option import Setting, elements, settings_of, values_of
from harness.load.settings import Agents, Execution, Server, SweepSettings
from servers.basics.errors import InvalidInput
from servers.basics.json_object import JsonObject
from servers.basics.nearest import did_you_mean
from servers.basics.redact import REDACTED, redact_command_line
from servers.basics.text import brief, requirement
from traces.formats.look_alikes import RECIPE, use_of_recipe

HEAD = """\
# The settings of this run. To run the same cells again, in another folder:
# bench sweep THIS_FILE --out FOLDER
"""


def read_settings(path: Path, overridden: Collection[str] = ()) -> JsonObject:
    """Return the values of settings by name. Redacted values are allowed for settings in
    `overridden`."""
    values = read_toml(path, "give a settings file (.toml)")
    if values.get("format") == RECIPE:
        raise InvalidInput(f"{path}: {use_of_recipe(path.name)}")
    known = {**settings_of(SweepSettings), **settings_of(Execution)}
    settings = parse_values(values, known, f"{path}: ")
    for name, value in settings.items():
        if name not in overridden and any(REDACTED in str(part) for part in _parts(value)):
            raise InvalidInput(f"{path}: {name} is redacted; give it on the command line")
        if known[name].option.is_list:
            settings[name] = _beside(path, value)
    return settings


def _beside(path: Path, names: str) -> str:
    """Return the list, with the folder of the settings file prepended to names of files in it."""
    return ",".join(
        str(file) if name and os.path.isfile(file := path.parent / name) else name
        for name in elements(names)
    )


def read_toml(path: Path, remedy: str) -> JsonObject:
    """Return the contents of a TOML file. `remedy` ends the error for a missing file."""
    if not path.is_file():
        problem = "is not a regular file" if path.exists() else "no such file"
        raise InvalidInput(f"{path}: {problem}; {remedy}")
    try:
        return tomllib.loads(path.read_bytes().decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path}: not TOML: {error}") from None
    except RecursionError:
        raise InvalidInput(f"{path}: nested too deeply") from None


def parse_values(
    values: Mapping[str, object], known: Mapping[str, Setting], prefix: str
) -> JsonObject:
    """Convert TOML values to values of settings. `prefix` precedes the key in errors."""
    parsed: JsonObject = {}
    for key, value in values.items():
        name = key.replace("-", "_")
        setting = known.get(name)
        if isinstance(value, dict):
            raise InvalidInput(f"{prefix}{_key(key)} is a table: not supported; remove it")
        if setting is None:
            hint = did_you_mean(name, known, "bench sweep --help lists the options")
            raise InvalidInput(f"{prefix}{_key(key)} is {brief(value)}: unknown{hint}")
        if not setting.option.in_file:
            raise InvalidInput(
                f"{prefix}{_key(key)} is {brief(value)}: give {setting.flag} on the command line"
            )
        if name in parsed:
            raise InvalidInput(f"{prefix}{_key(key)} is {brief(value)}: given twice; remove one")
        try:
            parsed[name] = _value(setting, value)
        except ValueError as error:
            raise InvalidInput(f"{prefix}{_key(key)} is {brief(value)}: {error}") from None
    return parsed


def _value(setting: Setting, value: object) -> Any:
    option = setting.option
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("must be a finite number")
    if option.is_list and isinstance(value, list):
        value = _joined(value)
    try:
        # As JSON, because strict validation of Python values accepts only instances of enums.
        parsed = TypeAdapter(setting.kind).validate_json(
            json.dumps(value, default=str), strict=True
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        example = f', e.g. "{value}"' if first["type"] == "string_type" and is_number else ""
        raise ValueError(requirement(first["msg"]) + example) from None
    if option.min is not None and parsed is not None and parsed < option.min:
        raise ValueError(f"must be at least {option.min:g}")
    for path in _parts(parsed) if option.exists else ():
        if not path.exists():
            raise ValueError("no such file or folder")
        if path.is_dir() and not option.dir_okay:
            raise ValueError("is a folder; give a file")
    return parsed


def _joined(names: list[Any]) -> str:
    for name in names:
        if not isinstance(name, str) or not name.strip() or elements(name) != [name]:
            raise ValueError("must be a list of names, which have no commas")
    if not names:
        raise ValueError("is an empty list; give a name, or remove the line")
    return ",".join(names)


def _parts(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _key(key: str) -> str:
    return key if key.isascii() and key.replace("-", "_").isidentifier() else brief(key)


def settings_toml(settings: SweepSettings) -> bytes:
    """Return the settings as a file for `read_settings`, with secrets redacted. Settings of the
    live server and the agents are omitted if they have their defaults."""
    values = values_of(settings)
    optional = {*settings_of(Server), *settings_of(Agents)}
    written = {
        name.replace("_", "-"): _plain(_split(values[name], setting))
        for name, setting in settings_of(SweepSettings).items()
        if setting.option.in_file
        and values[name] not in (None, ())
        and (values[name] != setting.default or name not in optional)
    }
    return (HEAD + tomli_w.dumps(written)).encode()


def _split(value: Any, setting: Setting) -> Any:
    names = tuple(elements(value)) if setting.option.is_list else ()
    return names if len(names) > 1 else value


def _plain(value: Any) -> Any:
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, tuple):
        return redact_command_line([str(part) for part in value])
    return redact_command_line([str(value)])[0]
