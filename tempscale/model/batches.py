"""Group sequences into micro-batches by a token budget and run them.

Only the lengths of the sequences decide which ones run together, so results do not depend on workers or timing. The one
exception is a batch that does not fit in memory: it runs in halves and is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch

from tempscale.model.checkpoint import first_line

Result = TypeVar("Result")
"""The result of one micro-batch."""
_PADDING, _LEAST_SHARE = 0.04, 0.25
"""A batch of at least `_LEAST_SHARE` of the budget ends before its padding exceeds `_PADDING`; smaller ones are slower."""
NO_MEMORY = "it needs more memory than there is"
"""The reason reported for a text that does not fit in memory alone."""


def micro_batches(lengths: Sequence[int], token_budget: int, packed: bool = False) -> list[list[int]]:
    """Batches of indices, longest first, of at most `token_budget` padded tokens or one; padding is free if packed."""
    batches: list[list[int]] = []
    longest = tokens = 0
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        size = len(batches[-1]) if batches else 0
        padded = longest * (size + 1)
        enough = longest * size >= _LEAST_SHARE * token_budget
        wasteful = not packed and enough and padded > (1 + _PADDING) * (tokens + lengths[index])
        if size and padded <= token_budget and not wasteful:
            batches[-1].append(index)
            tokens += lengths[index]
        else:
            batches.append([index])
            longest = tokens = lengths[index]
    return batches


def run_batches(
    batches: Sequence[list[int]],
    run: Callable[[list[int]], Result],
    *,
    halved: list[list[int]],
    failed: dict[int, str] | None = None,
    before: Callable[[list[int]], None] | None = None,
) -> Iterator[Result]:
    """Yield each batch's result; halve a batch that does not fit in memory and, with `failed`, any failing one."""
    waiting, tried = list(batches)[::-1], set[int]()
    while waiting:
        batch = waiting.pop()
        if before is not None:
            before(batch)
        try:
            result = run(batch)
        except Exception as error:
            memory, alone = out_of_memory(error), len(batch) == 1
            retry = alone and no_workspace(error) and batch[0] not in tried
            # If even one text fails after the cache was emptied, neither memory nor the text is the reason.
            device_lost = lost_device(error) and (not no_workspace(error) or (alone and not retry))
            if device_lost or (failed is None and not retry and (not memory or alone)):
                raise
            reason = NO_MEMORY if memory else f"the model fails with {type(error).__name__}: {first_line(error)}"
        else:
            yield result
            continue
        # After the except block, because its traceback keeps the tensors of the failed pass alive.
        if memory and torch.cuda.is_available():
            torch.cuda.empty_cache()
        if retry:
            tried.add(batch[0])
            waiting.append(batch)
            continue
        if len(batch) == 1:
            assert failed is not None
            failed[batch[0]] = reason
            continue
        if memory:
            halved.append(batch)
        middle = (len(batch) + 1) // 2
        waiting += [batch[middle:], batch[:middle]]


def out_of_memory(error: BaseException) -> bool:
    """Whether an error means that no memory is left; of some libraries only the message shows it."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)) or no_workspace(error):
        return True
    return isinstance(error, RuntimeError) and any(
        words in str(error)
        for words in ("can't allocate memory", "not enough memory", "CUDA error: out of memory", "STATUS_ALLOC_FAILED")
    )


def no_workspace(error: BaseException) -> bool:
    """Whether cuBLAS could not start, nearly always because torch's cache occupies the memory that it needs."""
    return isinstance(error, RuntimeError) and "CUBLAS_STATUS_NOT_INITIALIZED" in str(error)


_LOST = ("CUDA error", "CUDA unknown error", "No CUDA GPUs are available", "Found no NVIDIA driver")
"""Parts of torch's messages for a failed device, and for one that has disappeared."""


def lost_device(error: BaseException) -> bool:
    """Whether an error means that this process can no longer use CUDA: a context does not survive a failed kernel."""
    if not isinstance(error, RuntimeError) or not any(words in str(error) for words in _LOST):
        return False
    return no_workspace(error) or not out_of_memory(error)
