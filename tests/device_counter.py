"""A GPU that is not there: torch's device «meta» follows shapes without numbers; what a GPU would wait for is counted."""

from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = "meta"


@dataclass
class Counts:
    """What crossed between processor and device, by the shapes of the tensors."""

    uploads: list = field(default_factory=list)
    downloads: list = field(default_factory=list)
    """The processor waits for each;"""
    behind: list = field(default_factory=list)
    """for none of these."""
    asked: list = field(default_factory=list)
    """Values that Python code asked for: each a wait."""

    @property
    def waits(self):
        return len(self.downloads) + len(self.asked)


class _Counter(TorchDispatchMode):
    def __init__(self, counts, answer):
        super().__init__()
        self.counts, self.answer = counts, answer

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        keywords = dict(keywords or {})
        name = function.overloadpacket.__name__
        if function._can_decompose():  # In inference mode such functions arrive whole.
            with self:
                found = function.decompose(*arguments, **keywords)
            if found is not NotImplemented:
                return found
        if name == "_local_scalar_dense" and arguments[0].device.type == DEVICE:
            self.counts.asked.append(tuple(arguments[0].shape))
            return self.answer(arguments[0].dtype)
        if name == "_to_copy":
            source, target = arguments[0].device.type, torch.device(keywords.get("device") or arguments[0].device).type
            if (source, target) == (DEVICE, "cpu"):
                own = self.counts.behind if keywords.get("non_blocking") else self.counts.downloads
                own.append(tuple(arguments[0].shape))
                return torch.ones(arguments[0].shape, dtype=keywords.get("dtype") or arguments[0].dtype)
            if (source, target) == ("cpu", DEVICE):
                self.counts.uploads.append(tuple(arguments[0].shape))
        return function(*arguments, **keywords)


@contextmanager
def faked(answer=lambda dtype: 1.0 if dtype.is_floating_point else 0):
    """A context with a faked GPU; it yields the counts. `answer` is what asked values are, by their type."""
    counts = Counts()
    # torch knows no autocast of such a device; it computes nothing anyway.
    with mock.patch.object(torch, "autocast", return_value=nullcontext()), _Counter(counts, answer):
        yield counts
