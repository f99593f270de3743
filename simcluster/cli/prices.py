"""Dollars per trillion tokens of the scenarios that simcluster compare puts side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simcluster.base.errors import InputError
from simcluster.base.units import HOUR

if TYPE_CHECKING:
    import pandas as pd

DOLLARS = "dollars_per_1t_tokens"
"""The column of the table."""
ASSUMED = "a price is of healthy steps: no failures, restarts, checkpoints or spares (simcluster train has them)"


def dollars_per_trillion_tokens(gpus: float, price: float, tokens_per_s: float) -> float:
    """Return the dollars of 1e12 tokens on that many GPUs at a price per GPU and hour."""
    return 1e12 * gpus * price / tokens_per_s / HOUR


def reject_price_key(overrides: Sequence[tuple[str, Any]]) -> None:
    """Raise InputError for a price that is set as if a scenario had one at its top."""
    for path, value in overrides:
        if path == "price":
            raise InputError(
                f"--set price: a scenario has no price; compare takes --price {value}, in dollars per GPU and hour "
                f"(simcluster train --run.price {value} costs a whole run)"
            )


def read_prices(text: str, scenario_of: Mapping[str, int]) -> dict[str, float]:
    """Return the price of each variant; ``scenario_of`` has the number of its scenario.

    InputError for text that is not one price above zero, one per scenario or one per variant.
    """
    try:
        prices = [float(each) for each in text.split(",")]
    except ValueError:
        prices = []
    if not prices or not all(0 < price < math.inf for price in prices):
        raise InputError(f"--price {text!r} must be dollars per GPU and hour above 0; write 2.5, or 2.5,4.5 for two")
    scenarios = max(scenario_of.values()) + 1
    if len(prices) == 1:
        return dict.fromkeys(scenario_of, prices[0])
    if len(prices) == scenarios:
        return {name: prices[number] for name, number in scenario_of.items()}
    if len(prices) == len(scenario_of):
        return dict(zip(scenario_of, prices, strict=True))
    counts = sorted({1, scenarios, len(scenario_of)})
    raise InputError(f"--price {text!r} has {len(prices)} prices; write {' or '.join(map(str, counts))}: one for all, "
                     "one per scenario or one per variant")  # fmt: skip


def add_dollars(table: pd.DataFrame, prices: Mapping[str, float]) -> pd.DataFrame:
    """Return the table with the dollars of a trillion tokens, those of padding not counted."""
    rows = zip(table.index, table["gpus"], table["real_tokens_per_s"], strict=True)
    return table.assign(
        **{DOLLARS: [dollars_per_trillion_tokens(g, prices[str(name)], rate) for name, g, rate in rows]}
    )
