"""How often Python looks for unreachable objects, in the driver and in actors."""

import gc


def collect_seldom() -> None:
    """Let Python look for unreachable objects less often: imports make a million objects, and all of them stay."""
    # By default a tenth of an import, and a third of reading docstrings, is spent on looking.
    gc.set_threshold(50_000, 20, 50)
