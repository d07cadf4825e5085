"""What a plan multiplies, by hand; that `--plan` prints it and writes nothing is in test_cli.py."""

import pytest

from tempscale_jobs.audit import plan
from tempscale_jobs.config.audit import resolve
from tempscale_jobs.corpus.preview import preview
from tempscale_jobs.corpus.shards import TextShards

RATES = plan.Rates(
    width=100, weights_bytes=1 << 20, mean_tokens=50.0, long_share=0.1, prefixes=(32, 64, 128, 256, 512), token_seconds=1e-3,
    socm_seconds=2e-3, cosine_seconds=1e-8,
)  # fmt: skip


def planned(texts, rates=(RATES,), cores=4, **data):
    return plan.estimated(resolve({"corpus": {"source": "x.parquet"}} | data), texts, rates, cores)


def test_a_plan_by_hand():
    found = planned(10_000, analysis={"socm_sample": 100, "probe_sample": 20, "neighbours": 5})
    assert (found.texts, found.corpus_texts, found.workers) == (10_000, 10_000, 4)
    assert (found.pairs, found.socm_pairs) == (49_995_000, 4_950)
    tokens = 50 * (10_000 + 100) + 20 * (32 + 64 + 128 + 256 + 512)
    assert found.tokens == 2 * tokens
    again = 10_000**2 * 1e-8 / 4  # By corrected similarity, under the first temperature.
    assert found.seconds == pytest.approx(2 * (tokens * 1e-3 + 49_995_000 * 1e-8 + 4_950 * 2e-3) / 4 + again + 30)
    assert found.disk_bytes == 2 * (10_000 * (800 + 120 + 5 * (8 * 10 + 20)) + 100 * 50 * 100 * 4)
    assert found.driver_bytes == (460 << 20) + 10_000 * 45
    two_blocks = 2 * 1024 * 100 * 4
    assert found.memory_bytes == (900 << 20) + 4 * ((800 << 20) + (1 << 20) + two_blocks) + 10_000 * 45


def test_lists_of_neighbours_are_kept_by_panel():
    """153 blocks of ten million texts are 39 panels of four; without pairs there are no neighbours."""
    found, nobody = (planned(10_000_000, analysis={"neighbours": k, "socm_sample": 0}).disk_bytes for k in (10, 0))
    assert found - nobody == 2 * 10_000_000 * 10 * (8 * 39 + 20)
    assert planned(10_000_000, analysis={"cosine": "moments", "socm_sample": 0}).disk_bytes == nobody


def test_what_is_left_out_is_not_planned():
    everything, samples = planned(10_000), planned(10_000, analysis={"socm_sample": 0, "probe_sample": 0})
    assert samples.tokens == 2 * 50 * 10_000 < everything.tokens
    assert samples.socm_pairs == 0
    assert planned(10_000, corpus={"source": "x", "sample": 100}).pairs == 4_950
    once = 3 * 62 * 512  # The gap of the first temperature is taken apart.
    assert planned(10_000, embedding={"temperatures": [1.0]}).tokens == once + (everything.tokens - once) / 2
    moments = planned(10_000, analysis={"cosine": "moments", "exposure_sample": 0})
    asking = planned(10_000, analysis={"cosine": "moments", "exposure_sample": 300})
    without = planned(10_000, analysis={"length_correction": False})
    for found, seconds in (
        (asking, 2 * 300 * 10_000), (everything, 2 * 49_995_000 + 10_000**2), (without, 2 * 49_995_000),
    ):  # fmt: skip
        assert found.seconds - moments.seconds == pytest.approx(seconds * 1e-8 / 4)
    assert everything.memory_bytes == moments.memory_bytes
    # Factors of groups are not stored.
    sample = planned(10_000, analysis={"socm_sample": 640})
    assert sample.disk_bytes - everything.disk_bytes == 2 * (640 - 128) * 50 * 100 * 4


def test_a_probe_that_takes_more_apart_costs_more():
    """Of 64 texts of 512 tokens: 62 in three ways more; then all of them with ten copies at each length."""
    prefix, usual, position = (
        planned(10_000, analysis={"probe": one}).tokens for one in ("prefix", "decomposition", "position")
    )
    assert usual - prefix == 3 * 62 * 512
    assert position - usual == 2 * 64 * 11 * (32 + 64 + 128 + 256 + 512)


def test_workers_and_models_take_their_share():
    """More workers than cores cost memory and save no time; a second model takes the memory of the larger."""
    two, four, eight = (planned(10_000, execution={"workers": workers}) for workers in (2, 4, 8))
    assert two.seconds > four.seconds == eight.seconds
    assert four.memory_bytes < eight.memory_bytes
    one, both = planned(10_000), planned(10_000, (RATES, RATES))
    assert (both.tokens, both.disk_bytes, both.seconds) == (2 * one.tokens, 2 * one.disk_bytes, 2 * one.seconds)
    assert both.memory_bytes == one.memory_bytes


def test_embeddings_of_one_s_own_take_pairs_alone():
    given = plan.Rates(100, 0.0, 0.0, 0.0, (), 0.0, 0.0, 1e-8)
    own = {"corpus": {"source": "x", "embedding_column": "v", "length_column": "n"}}
    found = planned(10_000, (given,), **own)
    assert (found.tokens, found.socm_pairs, found.pairs) == (0, 0, 49_995_000)
    assert found.seconds == pytest.approx((49_995_000 + 10_000**2) * 1e-8 / 4 + 30)
    assert found.disk_bytes == 10_000 * (800 + 120 + 10 * (8 * 10 + 20))


def test_vectors_that_are_verified_are_embedded_again():
    given, verified = plan.Rates(100, 0.0, 0.0, 0.0, (), 0.0, 0.0, 1e-8), plan.EmbeddedAgain(3000, 50.0, 1e-3, 5 << 20)
    own = resolve({"corpus": {"source": "x", "embedding_column": "v"}, "execution": {"workers": 2}})
    without, with_them = (plan.estimated(own, 10_000, (given,), 4, each) for each in ((), [verified]))
    assert with_them.tokens == 3000 * 50
    assert with_them.seconds - without.seconds == pytest.approx(3000 * 50 * 1e-3 / 2)
    assert with_them.memory_bytes - without.memory_bytes == 2 * ((5 << 20) - 2 * 4 * 100 * 1024)
    assert with_them.driver_bytes - without.driver_bytes == 180 << 20


def looked_at(**corpus):
    """The numbers of the texts that a plan measures, and how many it takes for usable."""
    settings = resolve({"corpus": corpus})
    contents = TextShards(settings.corpus, settings.embedding, settings.out)
    texts, usable, *_ = preview(contents, 50, settings.seed, settings.out)
    numbers = [int(item.text.split()[1]) for item in texts]
    assert len(set(numbers)) == 50
    return numbers, usable


def test_texts_are_measured_from_all_over_the_corpus(tmp_path):
    (tmp_path / "a.txt").write_text("".join(f"text {k}\n" for k in range(1000)))
    numbers, usable = looked_at(source=str(tmp_path / "a.txt"))
    assert usable == 1000
    assert numbers == sorted(numbers)
    assert numbers[0] < 200
    assert numbers[-1] > 800


def test_a_large_source_is_estimated_from_a_few_of_its_units(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"".join(b"text %d\n" % k if k % 5 else b"\xff\n" for k in range(10_000)))
    for limit, about in ((None, 8000), (500, 400)):
        numbers, usable = looked_at(source=str(tmp_path / "a.txt"), unit_bytes=2000, limit=limit)
        assert usable == pytest.approx(about, rel=0.1)
        assert max(numbers) > 2000  # Not the first rows.
