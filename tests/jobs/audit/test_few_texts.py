"""Few texts are compared by one task at a time, unless there may be much else to compare, or several machines."""

from types import SimpleNamespace

import pytest

from tempscale_jobs.audit.run import _is_quickly_compared


@pytest.mark.parametrize(
    ("texts", "queries", "address", "what_if", "expected"),
    [
        (300, None, None, (), True),
        (1024, None, None, (), True),
        (1025, None, None, (), False),
        (300, object(), None, (), False),
        (300, None, "auto", (), False),
        (300, None, None, ("chunk:256",), False),
    ],
)
def test_what_is_compared_by_one_task_at_a_time(texts, queries, address, what_if, expected):
    config = SimpleNamespace(queries=queries, execution=SimpleNamespace(address=address))
    scope = SimpleNamespace(config=config, analysis=SimpleNamespace(what_if=what_if), texts=range(texts))
    assert _is_quickly_compared(scope) == expected
