"""Compiled loops: the same where numba can keep nothing, and other sums than those in order only to the last digits."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from numba.core import caching

from tempscale.compiled import compiled, summing

pytestmark = pytest.mark.proof


def total(values):
    found = 0.0
    for k in range(len(values)):
        found += values[k]
    return found


def total_at_once(values):
    """Under a name of its own: what is kept is known by the name."""
    found = 0.0
    for k in range(len(values)):
        found += values[k]
    return found


def kept(loop):
    return not isinstance(loop._cache, caching.NullCache)


@pytest.fixture
def nowhere(monkeypatch):
    """No folder that numba could write to, as in a container with a read-only file system."""
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])


def test_where_nothing_can_be_kept_loops_are_compiled_all_the_same(nowhere):
    values = np.random.default_rng(0).normal(size=1000)
    for way in (compiled, summing):
        loop = way(total)
        assert not kept(loop)
        assert loop(values) == pytest.approx(sum(values.tolist()), abs=1e-11)


def test_else_they_are_kept_and_sums_in_order_stay_in_order():
    values = np.random.default_rng(1).normal(size=1001)
    exact, quick = compiled(total), summing(total_at_once)
    assert kept(exact)
    assert kept(quick)
    assert exact(values) == sum(values.tolist())
    assert 0 < abs(quick(values) - exact(values)) < 1e-11


def test_what_is_kept_names_what_it_was_compiled_with():
    """numba keeps a loop until its own file changes, so that file names the lanes and options that are compiled into it."""
    package = Path(__file__).resolve().parents[2] / "tempscale"
    digest = hashlib.sha256(b"".join((package / name).read_bytes() for name in ("compiled.py", "lanes.py"))).hexdigest()[:12]
    users = [path for path in package.rglob("*.py") if "from tempscale.compiled import" in path.read_text("utf-8")]
    assert len(users) == 3
    for path in users:
        assert f"lanes.py and compiled.py: {digest}\n" in path.read_text("utf-8"), path.name
