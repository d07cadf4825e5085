"""The Ray that the runs of a test process share, and the model actor that they share with it.

Starting Ray, and the imports of an actor, take most of a small run's time. So the runs join one Ray with one worker, and a
finished run leaves its actor to the next, which makes it anew for its own model. What starts, restarts or ends actors is
tested in files that have a Ray of their own, `no_ray`.
"""

import secrets
from contextlib import ExitStack, contextmanager
from unittest import mock

from tempscale_jobs.workers import private

_HELD = ExitStack()
_IDLE = []
"""The actor that no run has at the moment."""


def start():
    """Start the Ray of this process if it has none."""
    import ray

    from tempscale_jobs.config.sections import Execution
    from tempscale_jobs.workers import engine

    if not ray.is_initialized():
        _HELD.enter_context(engine.session(Execution.model_validate({"workers": 1})))
        _HELD.enter_context(_actors_handed_on())


def end():
    """End that Ray; what comes next starts its own, with actors of its own."""
    _IDLE.clear()
    _HELD.close()


def guarded():
    """What a cluster needs that a test starts itself: only processes with its token, this one and its children, enter it."""
    return private.environment({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)})


@contextmanager
def _actors_handed_on():
    import ray

    from tempscale_jobs.workers import actor, crew, engine

    class HandedOn(actor.ModelActor):
        def renew(self, how):
            self.__dict__.clear()  # Where the next model cannot be loaded, the last one is not used for it.
            self.__init__(**how)

    def begin(self, wanted):
        missing = wanted - len(self._actors) - len(self._beginning)
        how = actor.arguments(self._run, self._cluster, self._model, self._encoding) if missing > 0 else None
        for _ in range(missing):
            if _IDLE:
                worker = _IDLE.pop()
                try:
                    with engine.readable_failures():
                        ray.get(worker.renew.remote(how))
                except BaseException:
                    ray.kill(worker)  # Else it would keep its processor, and the next run's tasks would wait for ever.
                    raise
            else:
                # One that dies is not restarted: it would be the actor of the run that began it.
                worker = ray.remote(num_cpus=1)(HandedOn).remote(**how)
            self._beginning[worker.__ray_ready__.remote()] = worker

    def leave(self, *error):
        if self._stream is not None:
            self._stream.close()
        for worker in [*self._actors, *self._beginning.values()]:
            if error == (None, None, None) and not _IDLE:  # A second one would hold the processor of the tasks.
                _IDLE.append(worker)
            else:
                ray.kill(worker)

    with mock.patch.object(crew.Crew, "_begin", begin), mock.patch.object(crew.Crew, "__exit__", leave):
        yield
