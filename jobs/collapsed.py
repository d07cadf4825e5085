"""The texts behind the figures: which lie nearest to all others, and which stand in most result lists."""

from __future__ import annotations

from typing import Any

import numpy as np

from jobs.layout import Layout

_LISTED = 20


def ranked(key: dict[str, Any], ranking: str, values: np.ndarray, layout: Layout) -> list[dict[str, Any]]:
    """The rows of the table `collapsed_texts` of one ranking: largest value first, ties by id.

    Args:
        key: the columns that every table begins with.
        ranking: `nearness` or `hub`.
        values: one for each text of the layout; texts without one (NaN) are left out.
        layout: the texts in canonical order.
    """
    known = np.flatnonzero(~np.isnan(values))
    if len(known) > _LISTED:  # Of a million texts only those that can be listed are sorted.
        known = known[values[known] >= np.partition(values[known], -_LISTED)[-_LISTED]]
    order = sorted(known.tolist(), key=lambda place: (-values[place], layout.ids[place]))[:_LISTED]
    return [
        key
        | {"ranking": ranking, "rank": rank, "text_id": layout.ids[place]}
        | {"tokens": int(layout.tokens[place]), "value": float(values[place])}
        for rank, place in enumerate(order, start=1)
    ]
