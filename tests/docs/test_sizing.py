"""The table of all pairs in docs/operations.md: from the measured rates, or said to be computed where no card was timed."""

import json

import pytest
import sizing

STAGE = "cosine stage on Ray, 100,000 texts"
CORE = {"benchmark": "stage", "what": f"{STAGE}, 10 nearest", "rate": 1e8, "unit": "pairs/s", "workers": 2}
CARD = {"benchmark": "gpu", "what": "cosines of 65,536 × 65,536 texts, tf32, 10 nearest", "rate": 5e10, "unit": "pairs/s"}


@pytest.fixture
def table(tmp_path):
    """A function that writes the table of a core and of these cards, each with its rows."""

    def table(*cards):
        for gpu, rows in (("none", [CORE, CORE | {"what": STAGE}]), *cards):
            found = {"machine": {"processor": f"with {gpu}", "gpu": gpu}, "results": rows}
            (tmp_path / f"{gpu}.json").write_text(json.dumps(found), "utf-8")
        return sizing._all_pairs(sizing._cosine_rates(tmp_path))

    return table


def cells(table, texts):
    (line,) = [line for line in table.splitlines() if line.startswith(f"| {texts:,} ")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_slowest_measured_card_has_its_columns_and_nothing_is_computed(table):
    own = [CARD, CARD | {"what": "cosines of 65,536 × 65,536 texts, tf32", "rate": 1e10}]  # Without neighbours: not asked.
    found = table(("NVIDIA X", own), ("NVIDIA Y", [CARD | {"rate": 8e10}]))
    assert "8 GPUs, tf32 | 64 GPUs, tf32" in found
    assert "one GPU (NVIDIA X, " in found
    assert "50 in tf32, with 768 dimensions" in found
    assert "not timed" not in found
    # 5·10¹³ pairs: 17.4 h of 16 cores of 5·10⁷ pairs a second. Eight cards of 5·10¹⁰ take 125 s, and 213 s to read the
    # square of 22 panels, each of 7 blocks of 65,536 · 1,536 bytes, at 200 MB a second.
    assert cells(found, 10_000_000)[1:6] == ["5·10¹³", "17.4 h", "17 min", "4 min", "27 s"]
    assert cells(found, 10_000_000)[-1] == "0.34 TB"
    faster = table(("NVIDIA X", [CARD | {"rate": 1e10}]))
    assert cells(faster, 10_000_000)[4:6] == ["10 min", "78 s"]  # It computes longer than it reads.


@pytest.mark.words
def test_without_a_card_two_ends_are_computed_and_said_to_be(table):
    found = table()
    assert "No GPU has been timed" in found
    # 60·10¹² operations of 768 a pair: 5·10¹⁵ pairs are 8,000 s of eight cards, or ten times as much; reading takes 9,276 s.
    assert cells(found, 100_000_000)[4:6] == ["2.6 h to 22.2 h", "19 min to 2.8 h"]
