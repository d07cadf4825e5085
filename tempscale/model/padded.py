"""Micro-batches on the device of the model: assembled without Python lists, uploaded in one piece, downloaded in one piece.

A GPU idles whenever the CPU waits for one of its values. So a micro-batch has one asynchronous upload and one asynchronous
download; only factors are waited for, because they are checked.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from tempscale.model.sequences import Sequences


class Padded:
    """Micro-batches on a device, each assembled and uploaded once for all temperatures; 9 bytes a padded token."""

    def __init__(self, sequences: Sequences, padding: int, device: torch.device) -> None:
        self._sequences, self._padding, self._device = sequences, padding, device
        self._batches: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}

    def __getitem__(self, batch: Sequence[int]) -> tuple[Int[Tensor, "text token"], Bool[Tensor, "text token"]]:
        """The ids of some sequences, filled up on the right, and a mask that is True at tokens."""
        key = tuple(batch)
        if key not in self._batches:
            self._batches[key] = padded(self._sequences, key, self._padding, self._device)
        return self._batches[key]


def padded(
    sequences: Sequences, batch: Sequence[int], padding: int, device: torch.device
) -> tuple[Int[Tensor, "text token"], Bool[Tensor, "text token"]]:
    """The ids of some sequences, filled up on the right, and a mask that is True at tokens; one upload."""
    ids, lengths = sequences.padded(batch, padding)
    together = torch.from_numpy(np.concatenate([ids.ravel(), lengths]))
    if device.type == "cuda":  # Pinned, so that the copy overlaps with the GPU's work.
        together = together.pin_memory()
    together = together.to(device, non_blocking=True)
    rows, width = ids.shape
    mask = torch.arange(width, device=device) < together[-rows:, None]
    return together[:-rows].view(rows, width), mask


def downloaded(values: Sequence[Tensor], wait: bool = True) -> list[Tensor]:
    """Float32 tensors of one device on the CPU, by one download; without `wait` they are valid only after `finished`."""
    if not values or values[0].device.type == "cpu":
        return list(values)
    together = torch.cat([value.reshape(-1) for value in values]).to("cpu", non_blocking=not wait)
    parts = torch.split(together, [value.numel() for value in values])
    return [part.view(value.shape) for part, value in zip(parts, values, strict=True)]


def finished(device: torch.device) -> None:
    """Wait until a device has computed and copied everything."""
    if device.type not in ("cpu", "meta"):
        torch.accelerator.synchronize(device)
