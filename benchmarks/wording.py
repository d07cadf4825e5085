"""A row of results in words: its rate, ratio, share and further figures, for the terminal and the page."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any


def cells(row: dict[str, Any]) -> tuple[str, str, str]:
    """A row's rate, its ratio (or overhead with its error), and its share of the limit; empty if missing."""
    ratio, limit = row.get("ratio"), row.get("limit_share")
    text = "" if ratio is None else _ratio(ratio)
    if "overhead" in row:
        text = f"{100 * row['overhead']:+.1f} ± {100 * row['overhead_se']:.1f} %" if row["overhead_se"] else "0"
    return (
        f"{rate(row['rate'])} {plain(row['unit'])}",
        text.replace("-", "−"),
        "" if limit is None else f"{100 * limit:.0f} %" if limit >= 0.005 else "<1 %",
    )


def rate(value: float) -> str:
    """A rate with three digits, or all digits before the point; millions as `104 M`."""
    if value >= 1e6:
        return f"{_three(value / 1e6)} M"
    return f"{value:,.0f}" if value >= 100 else _three(value)


def _ratio(value: float) -> str:
    if 0 < value < 0.005:
        return f"{value:.2g}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _three(value: float) -> str:
    """A number with three digits, without an exponent."""
    places = max(0, 2 - math.floor(math.log10(value))) if value > 0 else 0
    return f"{value:,.{places}f}"


def _duration(seconds: float) -> str:
    if seconds >= 120:
        return f"{round(seconds) // 60} min {round(seconds) % 60} s"
    return f"{_three(seconds)} s" if seconds >= 1 else f"{_three(1000 * seconds)} ms"


def _size(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def _below_one(value: float) -> str:
    """A cosine, rounded down."""
    return f"{math.floor(value * 1e7) / 1e7:.7f}"


_FURTHER: dict[str, Callable[[Any], str]] = {
    "estimate": lambda value: f"mean {value:.4f}",
    "error": lambda value: f"± {value:.4f}",
    "seconds": _duration,
    "growth": str,
    "differing": lambda value: f"{value} texts have other ids",
    "share_of_run": lambda value: f"{100 * value:.1f} % of the run",
    "largest_difference": lambda value: f"largest difference of embeddings {value:.1e}",
    "largest_error": lambda value: f"largest error {value:.1e}" if value else "",
    "max_error": lambda value: f"largest error {value:.1e}" if value else "",
    "least_cosine": lambda value: f"least cosine {_below_one(value)}",
    "moments_cost": lambda value: f"moments take {100 * value:.1f} % more time".replace("-", "−"),
    "efficiency": lambda value: f"efficiency {100 * value:.0f} %",
    "ray_start_seconds": lambda value: f"Ray's start {_duration(value)}",
    "memory": lambda value: f"memory grows by {_size(value)}",
    "peak_bytes": lambda value: f"memory grows by {_size(value)}",
    "peak_memory_bytes": lambda value: f"peak memory {_size(value)}",
    "driver_peak_bytes": lambda value: f"the driver's {_size(value)}",
    "driver_bytes_a_vector": lambda value: f"{value:.0f} B more of it a vector",
    "driver_cpu_seconds": lambda value: f"driver's processor {_duration(value)}" if value >= 0.05 else "",
    "driver_step_bytes": lambda value: f"driver's memory {_size(value)}",
    "operations": lambda value: f"{value:,.0f} operations",
    "driver_operations": lambda value: f"{value:,.0f} by driver",
    "blocks_read": lambda value: f"{value:,} blocks read",
    "read_bytes": lambda value: f"{_size(value)} read" if value >= 5e5 else "",
    "written_bytes": lambda value: f"{_size(value)} written" if value >= 5e5 else "",
    "memory_over_fewer": lambda value: f"{value:.2f} times the memory of fewer",
    "embedding_over_first": lambda value: f"embedding in {100 * value:.1f} % of the first night's time",
}


def further(row: dict[str, Any]) -> str:
    """The errors, seconds and memory of a row, if it has them."""
    found = [tell(row[key]) for key, tell in _FURTHER.items() if row.get(key) is not None]
    if row.get("nan"):
        found.append(f"NaN in {row['nan']} of {row['pairs']} pairs" if "pairs" in row else f"NaN in {row['nan']} pairs")
    return "; ".join(filter(None, found))


def plain(text: str) -> str:
    """The text, escaped so that it neither ends a table cell or line nor starts an HTML element."""
    return " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;")
