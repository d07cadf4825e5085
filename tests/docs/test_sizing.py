"""The table of all pairs in docs/operations.md: from the measured rates, or said to be computed where no card was timed."""

import json

import pytest
import sizing

STAGE = "cosine stage on Ray, 100,000 texts"
CORE = {"benchmark": "stage", "what": f"{STAGE}, 10 nearest", "rate": 1e8, "unit": "pairs/s", "workers": 2}
CARD = {"benchmark": "gpu", "what": "cosines of 65,536 × 65,536 texts, tf32, 10 nearest", "rate": 5e10, "unit": "pairs/s"}


@pytest.fixture
def results(tmp_path):
    def write(name, gpu, rows):
        machine = {"processor": name, "gpu": gpu}
        (tmp_path / f"{name}.json").write_text(json.dumps({"machine": machine, "results": rows}), "utf-8")
        return tmp_path

    write("one", "none", [CORE, CORE | {"what": STAGE}])
    return write


def cells(table, texts):
    (line,) = [line for line in table.splitlines() if line.startswith(f"| {texts:,} ")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_rates_are_those_of_a_core_and_of_a_card_with_ten_nearest(results):
    folder = results("two", "NVIDIA X", [CARD, CARD | {"what": "cosines of 65,536 × 65,536 texts, tf32", "rate": 9e10}])
    core, card = sizing._cosine_rates(folder)
    assert core == ("one", "", 5e7, 384)
    assert card == ("NVIDIA X", "tf32", 5e10, 768)


def test_a_measured_card_has_its_columns_and_nothing_is_computed(results):
    results("two", "NVIDIA X", [CARD])
    faster = CARD | {"rate": 8e10}
    table = sizing._all_pairs(sizing._cosine_rates(results("three", "NVIDIA Y", [faster])))  # The slowest card counts.
    assert "8 GPUs, tf32 | 64 GPUs, tf32" in table
    assert "one GPU (NVIDIA X, " in table
    assert "in thousand millions 50 in tf32, with 768 dimensions" in table
    assert "not timed" not in table
    # 5·10¹³ pairs: 17.4 h of 16 cores of 5·10⁷ pairs a second; 125 s of 8 cards of 5·10¹⁰.
    assert cells(table, 10_000_000)[1:6] == ["5·10¹³", "17.4 h", "17 min", "2 min", "16 s"]


def test_without_a_card_two_ends_are_computed_and_said_to_be(results):
    table = sizing._all_pairs(sizing._cosine_rates(results("two", "none", [])))
    assert "No GPU has been timed" in table
    # 60·10¹² operations of 768 a pair: 5·10¹⁵ pairs are 8,000 s of eight cards, or ten times as much.
    assert cells(table, 100_000_000)[4:6] == ["2.2 h to 22.2 h", "17 min to 2.8 h"]
