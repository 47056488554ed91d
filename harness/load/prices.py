"""Prices of machines and of APIs: `--price` and `--api-price`, in USD.

In: their texts, and the hardware of a run. Out: the records of sweep.json. Raises InvalidInput.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from harness.load.option import elements
from servers.basics.errors import InvalidInput
from servers.basics.nearest import did_you_mean
from servers.profiles.machines.gpus import HARDWARE, LIST_PRICES
from servers.records.settings import Numbers
from servers.records.sweep import ApiPriceRecord, PriceRecord

GIVEN = "--price"
"""Source of a given price."""
EVERY = ""
"""Stands for all hardware in parsed prices."""


def parse_prices(text: str | None, hardware: Collection[str | None]) -> dict[str, float]:
    """Return USD per GPU and hour by name of the hardware, or for `EVERY` hardware."""
    found: dict[str, float] = {}
    known = list(dict.fromkeys(name for name in hardware if name))
    for part in elements(text):
        name, equals, number = part.rpartition("=")
        usd = _number(number)
        if not 0 < usd < math.inf or (equals and not name) or (found and not (equals and name)):
            raise InvalidInput(
                f"--price {text}: must be USD per GPU and hour, above 0 and without a unit: 2.5 for"
                " all hardware, or h100=2.5,a100-80g=1.5; convert other currencies to USD"
            )
        if name and name not in known:
            hint = did_you_mean(name, known, f"runs are on {', '.join(known) or 'no GPU'}")
            raise InvalidInput(f"--price {part}: no run is on this hardware{hint}")
        if name in found:
            raise InvalidInput(f"--price {text}: {name} is given twice; remove one")
        found[name] = usd
    return found


def parse_api_price(text: str | None) -> ApiPriceRecord | None:
    if text is None:
        return None
    numbers = [_number(part) for part in text.split(",")]
    if len(numbers) != 3 or not all(0 <= usd < math.inf for usd in numbers) or not any(numbers):
        raise InvalidInput(
            f"--api-price {text}: must be three prices in USD per million tokens, of cached input,"
            " other input and output, without units: 0.5,5,25"
        )
    return ApiPriceRecord(*numbers)


def price_of_gpu(
    given: Mapping[str, float], hardware: str | None, gpu: Numbers | None
) -> PriceRecord | None:
    """Return the given price, else the GPU file's, else the list price; None if all lack
    one."""
    usd = given.get(hardware or EVERY, given.get(EVERY))
    if usd is not None:
        return PriceRecord(usd, GIVEN)
    in_file = (gpu or {}).get("price_usd_per_hour")
    if isinstance(in_file, int | float):
        return PriceRecord(in_file, "the GPU file")
    listed = None if hardware is None or gpu else LIST_PRICES.get(hardware)
    return None if listed is None else PriceRecord(*listed)


def priced_hardware(text: str | None) -> list[str]:
    """Return the listed GPUs that have a list price or one of `--price`."""
    prices = parse_prices(text, HARDWARE)
    return [name for name in HARDWARE if price_of_gpu(prices, name, None)]


def own_price(price: PriceRecord | None) -> str | None:
    """Return the `--price` of a single machine; None if it was not given for this machine."""
    if price is None or price.source != GIVEN:
        return None
    return f"{price.usd_per_gpu_hour:.15g}"


def _number(text: str) -> float:
    """Return NaN for a text that is no number."""
    try:
        return float(text)
    except ValueError:
        return math.nan
