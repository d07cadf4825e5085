"""Rows of pairs that nobody thought of: each gives pairs or is rejected with a reason."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from random_inputs import JSON, LEAVES, SECONDS, WORDS, Rejects, drawn, sentence
from whole_run import as_lines

from tempscale_jobs.config.pairs import PairsConfig
from tempscale_jobs.config.strict import checked
from tempscale_jobs.errors import UsageError
from tempscale_jobs.pairs import chunks

pytestmark = [pytest.mark.proof, pytest.mark.timeout(SECONDS)]


def test_any_row_of_pairs_gives_pairs_or_is_rejected_with_a_reason(tmp_path):
    file, answers = tmp_path / "pairs.jsonl", set()
    texts = WORDS | JSON | st.lists(WORDS | LEAVES, max_size=3)
    ids = WORDS | JSON | st.lists(WORDS | st.integers(), max_size=3)
    optional = {"text_a": texts, "text_b": texts, "id": ids, "id_a": ids, "id_b": ids}

    @drawn(300)
    @given(st.lists(st.fixed_dictionaries({}, optional=optional) | JSON, min_size=1, max_size=8))
    @example([{"text_a": "a", "text_b": ["b", 3]}])
    def check(records):
        file.write_text(as_lines(records))
        settled = checked(PairsConfig, {"pairs": {"source": str(file), "max_rejected": 1}})
        counts, rejects = chunks.PairCounts(), Rejects()
        try:
            found = list(chunks.pairs_of_rows(settled.pairs, settled.out, counts, rejects))
        except UsageError as error:
            answers.add(sentence(error).split("'")[2][:20])
            return
        assert counts.rows == len(records)
        assert sum(counts.reasons.values()) == len(rejects.rows)
        for pair in found:
            for side in (pair.a, pair.b):
                assert side.text.strip()
                assert side.text_id.encode()
        rows = {place.split("[")[0] for place in [*(pair.place for pair in found), *(place for place, _ in rejects.rows)]}
        assert rows == {f"pairs.jsonl:{k}" for k in range(len(records))}
        answers.update(["pairs"] * bool(found), ["rejected"] * bool(rejects.rows))

    check()
    assert {"pairs", "rejected", " has no column "} <= answers
