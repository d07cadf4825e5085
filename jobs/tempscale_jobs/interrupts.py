"""What an interrupt leaves behind in this process."""

import logging


def release_logging() -> None:
    """Release the locks of `logging` that this thread holds; call it where the thread logs nothing.

    An interrupt between the acquisition of such a lock and the `try` that releases it leaves the lock to the main thread,
    and every other thread that logs waits for ever: the one that ends Ray, and the one that renews the folder's lock.
    """
    handlers = [reference() for reference in logging._handlerList]  # type: ignore[attr-defined]
    for lock in (logging._lock, *(getattr(handler, "lock", None) for handler in handlers)):  # type: ignore[attr-defined]
        while lock is not None and lock._is_owned():
            lock.release()
