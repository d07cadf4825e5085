"""The Ray that the runs of a test process share: they join it, as a run joins a cluster, and start actors of their own.

What needs another number of processors, or ends nodes, is tested in files that have a Ray of their own, `no_ray`.
"""

import secrets
from contextlib import ExitStack

from tempscale_jobs.workers import private

_HELD = ExitStack()


def start():
    """Start the Ray of this process if it has none."""
    import ray

    from tempscale_jobs.config.sections import Execution
    from tempscale_jobs.workers import cluster as sessions

    if not ray.is_initialized():
        _HELD.enter_context(sessions.session(Execution.model_validate({"workers": 1})))


def end():
    """End that Ray; what comes next starts its own."""
    _HELD.close()


def guarded():
    """What a cluster needs that a test starts itself: only processes with its token, this one and its children, enter it."""
    return private.environment({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)})
