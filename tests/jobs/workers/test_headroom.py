"""Where memory stays above the threshold at which Ray ends workers, a run ends; where it does not, nothing happens."""

import signal
import time

import pytest

from tempscale_jobs.errors import IncompleteRun
from tempscale_jobs.workers import headroom

THRESHOLD, REFRESH = "RAY_memory_usage_threshold", "RAY_memory_monitor_refresh_ms"


def wait(seconds=5.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.02)


@pytest.mark.parametrize("threshold", ["0", "0.001"])
def test_full_memory_interrupts_whatever_waits(monkeypatch, threshold):
    monkeypatch.setenv(THRESHOLD, threshold)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # A shell ignores it of what it runs in the background.
    begun = time.monotonic()
    with pytest.raises(IncompleteRun, match="memory") as ended, headroom.kept(patience=0.3):
        wait()
    assert ended.value.exit_code == 3
    assert 0.3 < time.monotonic() - begun < 4


@pytest.mark.parametrize(
    ("environment", "patience"),
    [
        ({THRESHOLD: "0.9999"}, 0.2), ({THRESHOLD: "1"}, 0.2), ({THRESHOLD: "0", REFRESH: "0"}, 0.2),
        ({THRESHOLD: "nan"}, 0.2), ({THRESHOLD: "0"}, 60),
    ],
)  # fmt: skip
def test_a_run_with_memory_is_left_alone_and_an_interrupt_by_the_user_stays_one(monkeypatch, environment, patience):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert 0 < headroom.used_share() < 1
    with headroom.kept(patience):
        wait(0.6)
    with pytest.raises(KeyboardInterrupt), headroom.kept(patience):
        raise KeyboardInterrupt
