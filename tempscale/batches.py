"""Micro-batches by token budget, and running them: halved where memory does not hold them, failing texts found.

Which texts run together follows from their lengths alone, never from workers or time, so that a result does too. Only a
batch that had to be halved leaves that rule; whoever runs it is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch

from tempscale.checkpoint import first_line

Result = TypeVar("Result")
"""What a micro-batch leaves."""
_PADDING, _LEAST_SHARE = 0.04, 0.25
"""Padding that ends a micro-batch, and the share of the budget from which it does: too small a batch costs more."""
NO_MEMORY = "it needs more memory than there is"
"""Why a text fails that does not fit alone."""


def micro_batches(lengths: Sequence[int], token_budget: int) -> list[list[int]]:
    """Indices of sequences that run together: longest first, at most `token_budget` padded tokens each (or one sequence).

    A batch of a quarter of the budget or more also ends where the next sequence would make padding 4 % of its tokens.
    Ties keep their order, so the batches follow from the lengths alone.

    Args:
        lengths: of each sequence, in tokens.
        token_budget: in tokens, padding included.

    Returns:
        Each index in one batch.
    """
    batches: list[list[int]] = []
    longest = tokens = 0
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        size = len(batches[-1]) if batches else 0
        padded = longest * (size + 1)
        enough = longest * size >= _LEAST_SHARE * token_budget
        if size and padded <= token_budget and not (enough and padded > (1 + _PADDING) * (tokens + lengths[index])):
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
    """Run every batch, whole or in halves.

    Args:
        batches: indices of sequences.
        run: runs one batch.
        halved: gets every batch that memory did not hold.
        failed: gets the reason of every sequence that fails alone; where None, such an error is raised.
        before: told each batch before it runs.

    Yields:
        The result of each batch, or half of one, that ran.

    Raises:
        Exception: what `run` raised for a sequence alone, or what left the device unusable.
    """
    waiting = list(batches)[::-1]
    while waiting:
        batch = waiting.pop()
        if before is not None:
            before(batch)
        try:
            result = run(batch)
        except Exception as error:
            memory = out_of_memory(error)
            if lost_device(error) or (failed is None and (not memory or len(batch) == 1)):
                raise
            reason = NO_MEMORY if memory else f"the model fails with {type(error).__name__}: {first_line(error)}"
        else:
            yield result
            continue
        # Outside of the handler, whose traceback keeps the tensors of the failed pass alive.
        if memory and torch.cuda.is_available():
            torch.cuda.empty_cache()
        if len(batch) == 1:
            assert failed is not None
            failed[batch[0]] = reason
            continue
        if memory:
            halved.append(batch)
        middle = (len(batch) + 1) // 2
        waiting += [batch[middle:], batch[:middle]]


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that a device, or this machine, has no memory left.

    Args:
        error: any.

    Returns:
        True also where a kernel's library says so in words of its own.
    """
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(
        words in str(error)
        for words in ("can't allocate memory", "not enough memory", "CUDA error: out of memory", "STATUS_ALLOC_FAILED")
    )


def lost_device(error: BaseException) -> bool:
    """Whether nothing more can run in this process: a CUDA context does not outlive a failed kernel.

    Args:
        error: any.

    Returns:
        True for an error of CUDA that is no want of memory.
    """
    return isinstance(error, RuntimeError) and not out_of_memory(error) and "CUDA error" in str(error)
