"""`centre_by(column)`: its equation one text at a time in float64, a case by hand, limits, a planted offset of two
languages, its data, and sentences for what cannot be used.
"""

import json
import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tempscale.correction.errors import CorrectionError
from tempscale.correction.fit import fit
from tempscale.correction.recipes import Recipe, columns_of
from tempscale.correction.values import Correction
from tempscale.correction.variant_names import canonical, group_columns, needs_queries
from tempscale.correction.variants import Variant

DIM, RECIPE = 12, "centre_by(language)"
SIZES = {"de": 170, "en": 120, "fr": 30, "fi": 29, "sv": 20, "is": 1}
"""Documents of each language: of the last three, which are few, there are 50 together."""


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def made(sizes, seed=0):
    """Unit vectors about a place of each language, in a random order, and their languages."""
    random = np.random.default_rng(seed)
    languages = random.permutation([name for name, size in sizes.items() for _ in range(size)]).tolist()
    places = {name: random.normal(size=DIM) for name in sorted(sizes)}
    rows = unit(random.normal(size=(len(languages), DIM)) + np.array([places[name] for name in languages]))
    return torch.tensor(rows, dtype=torch.float32), languages


DOCUMENTS, LANGUAGES = made(SIZES)
QUERIES = torch.tensor(unit(np.random.default_rng(1).normal(size=(130, DIM)) + 0.4), dtype=torch.float32)


def fitted(documents=DOCUMENTS, languages=LANGUAGES, recipe=RECIPE):
    return fit(recipe, documents, None, QUERIES, groups=languages)


def similarities(correction, documents=DOCUMENTS, languages=LANGUAGES):
    held = correction.documents(documents, groups=languages).double()
    return (correction.queries(QUERIES).double() @ held.T).numpy()


# --- the equation -----------------------------------------------------------------------------------------------------


def mean_of(rows):
    return [math.fsum(row[k] for row in rows) / len(rows) for k in range(len(rows[0]))]


def cosine(x, y):
    return math.fsum(a * b for a, b in zip(x, y, strict=True)) / math.sqrt(
        math.fsum(a * a for a in x) * math.fsum(b * b for b in y)
    )


def by_equation(queries, documents, languages, asked):
    """cos(q − m_q, d − m_d(g)) of each query and each document with its language `asked`, from numbers alone."""
    texts = Counter(languages)
    few = [d for d, language in zip(documents, languages, strict=True) if texts[language] < 30]
    m_q, m_all = mean_of(queries), mean_of(documents)
    means = {}
    for language in texts:
        if texts[language] >= 30:
            means[language] = mean_of([d for d, other in zip(documents, languages, strict=True) if other == language])
        elif len(few) >= 30:
            means[language] = mean_of(few)
    moved = [
        [x - m for x, m in zip(d, means.get(language, m_all), strict=True)]
        for d, language in zip(documents, asked, strict=True)
    ]
    return [[cosine([x - m for x, m in zip(q, m_q, strict=True)], d) for d in moved] for q in queries]


@pytest.mark.parametrize("sizes", [SIZES, {"de": 170, "en": 101, "fi": 29}, {"de": 9, "en": 30, "fi": 21, "sv": 70}])
def test_it_is_its_equation(sizes):
    """Also of a language that was not there at the fit; and the few are joined where together they are at least 30."""
    documents, languages = made(sizes, seed=len(sizes))
    asked = ["nl" if k % 7 == 0 else name for k, name in enumerate(languages)]
    found = similarities(fitted(documents, languages), documents, asked)
    expected = by_equation(QUERIES.double().tolist(), documents.double().tolist(), languages, asked)
    np.testing.assert_allclose(found, expected, atol=2e-6)
    assert np.abs(found - similarities(fit("centre(unit)", documents, None, QUERIES), documents, None)).max() > 0.05


def test_by_hand():
    """a: (1, 0) and (.8, .6), 30 of each, so m_d(a) = (.9, .3); b: 40 of (0, 1); the mean of all is (.54, .58)."""
    documents = torch.tensor([[1.0, 0.0]] * 30 + [[0.8, 0.6]] * 30 + [[0.0, 1.0]] * 40)
    queries = torch.tensor([[1.0, 0.0]] * 50 + [[0.0, 1.0]] * 50)
    correction = fit("centre_by(kind)", documents, None, queries, groups=["a"] * 60 + ["b"] * 40)
    asked = correction.queries(queries[:1])
    assert asked[0].tolist() == pytest.approx([math.sqrt(0.5), -math.sqrt(0.5)])
    held = correction.documents(torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), groups=["a", "c", "b"])
    # (.1, −.3) and (.46, −.58), scaled; b's texts are their own mean, and nothing is left of them.
    found = (asked @ held.T)[0].tolist()
    assert found == pytest.approx([0.4 / math.sqrt(0.2), 1.04 / math.sqrt(2 * (0.46**2 + 0.58**2)), 0.0], abs=1e-6)


# --- limits and what changes nothing ----------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [{"en": 400}, {f"few {k}": 10 for k in range(40)}], ids=["one group", "few texts of each"])
def test_one_mean_of_all_documents_is_centring(sizes):
    documents, languages = made(sizes)
    centred = fit("centre(unit)", documents, None, QUERIES)
    np.testing.assert_allclose(
        similarities(fitted(documents, languages), documents, languages), similarities(centred, documents, None), atol=1e-6
    )


def test_fewer_than_thirty_that_are_few_have_the_mean_of_all():
    """A text alone in its group would be its own mean, and nothing would be left of it."""
    documents, languages = made({"de": 200, "en": 99, "is": 1})
    correction = fitted(documents, languages)
    (alone,) = (k for k, name in enumerate(languages) if name == "is")
    expected = fit("centre(unit)", documents, None, QUERIES).documents(documents)[alone]
    found = correction.documents(documents, groups=languages)[alone]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert float(found.norm()) == pytest.approx(1, abs=1e-6)


def test_neither_the_order_of_rows_nor_the_names_of_groups_matter():
    whole = similarities(fitted())
    order = np.random.default_rng(2).permutation(len(LANGUAGES))
    moved = DOCUMENTS[order], [LANGUAGES[k] for k in order]
    np.testing.assert_allclose(similarities(fitted(*moved)), whole, atol=1e-6)
    names = {name: f"{k} {name}" for k, name in enumerate(reversed(SIZES))}
    renamed = [names[name] for name in LANGUAGES]
    np.testing.assert_allclose(similarities(fitted(languages=renamed), languages=renamed), whole, atol=1e-6)
    again = fitted()
    alone = [again.documents(DOCUMENTS[k : k + 1], groups=LANGUAGES[k : k + 1]) for k in range(9)]
    assert torch.equal(torch.cat(alone), again.documents(DOCUMENTS, groups=LANGUAGES)[:9])


def stays(queries, documents, asking, held):
    """Of each query, the share of its ten nearest documents that are of its language."""
    near = np.argsort(-(queries @ documents.T), axis=1)[:, :10]
    return np.array([np.mean([held[j] == language for j in row]) for row, language in zip(near, asking, strict=True)])


def test_a_planted_offset_of_two_languages_no_longer_keeps_results_in_their_language():
    """The offset is at right angles to all that the texts are about, so that vectors of unit norm keep it as it is."""
    random = np.random.default_rng(5)
    held, asking = (random.choice(["de", "en"], size, p=[0.3, 0.7]).tolist() for size in (2000, 600))
    topics = unit(random.normal(size=(60, 24)))
    plain, moved = [], []
    for languages in (held, asking):
        rows = unit(topics[random.integers(0, 60, len(languages))] + 0.15 * random.normal(size=(len(languages), 24)))
        offset = np.array([[1.2] if name == "de" else [-1.2] for name in languages])
        plain.append(rows)
        moved.append(unit(np.hstack([rows, offset])))
    tensors = [torch.tensor(rows, dtype=torch.float32) for rows in moved]
    correction = fit(RECIPE, tensors[0], None, tensors[1], groups=held)
    centred = correction.queries(tensors[1]).numpy(), correction.documents(tensors[0], groups=held).numpy()
    clean, before, after = (stays(*sides, asking, held) for sides in (plain[::-1], moved[::-1], centred))
    difference = after - clean
    error = difference.std(ddof=1) / math.sqrt(len(difference))
    assert before.mean() > clean.mean() + 0.3
    assert 0 < error < 0.01
    assert abs(difference.mean()) < 2 * error


# --- as a variant of vectors ------------------------------------------------------------------------------------------


def test_as_a_variant_it_is_the_same_and_other_steps_follow_it():
    tokens, lengths = torch.ones(len(LANGUAGES), dtype=torch.int64), torch.ones(len(QUERIES), dtype=torch.int64)
    sides = DOCUMENTS, tokens, QUERIES, lengths
    rows, groups = DOCUMENTS.double().numpy(), {"language": LANGUAGES, "other": ["x"] * len(LANGUAGES)}
    held = Variant.fitted(RECIPE, *sides, groups=groups).documents(rows, tokens.numpy(), groups)
    expected = fitted().documents(DOCUMENTS, groups=LANGUAGES).numpy()
    np.testing.assert_allclose(held, expected, atol=1e-6)
    signs = Variant.fitted(f"{RECIPE}+bits", *sides, groups=groups).documents(rows, tokens.numpy(), groups)
    np.testing.assert_array_equal(signs, np.where(expected > 0, 1.0, -1.0))
    with pytest.raises(CorrectionError, match="'language', and none are given"):
        Variant.fitted(RECIPE, *sides, groups={"other": LANGUAGES})
    assert canonical(" centre_by( language ) + bits ") == "centre_by(language)+bits"
    assert group_columns("dims:8+centre_by(a b)+bits") == ("a b",)
    assert group_columns("centre+bits") == ()
    assert needs_queries(RECIPE)


# --- data -------------------------------------------------------------------------------------------------------------


def test_data_go_through_json_to_the_bit():
    correction = fitted()
    again = Correction.of(json.loads(json.dumps(correction.as_data() | {"model": "something else"})))
    assert again == correction
    assert (again.digest, again.canonical) == (correction.digest, RECIPE)
    asked = [*LANGUAGES[1:], "nl"]
    assert torch.equal(again.documents(DOCUMENTS, groups=asked), correction.documents(DOCUMENTS, groups=asked))
    assert torch.equal(again.queries(QUERIES), correction.queries(QUERIES))
    assert correction != fitted(recipe="centre_by(source)")
    # Without a group that is large enough, too.
    few = fitted(languages=[f"{k}" for k in range(len(LANGUAGES))])
    assert Correction.of(json.loads(json.dumps(few.as_data()))) == few


DAMAGED = {
    "no means": lambda data: data | {"groups": ""},
    "a mean too many": lambda data: data | {"mean_of": {"de": 0, "en": 1}},
    "a gap": lambda data: data | {"mean_of": data["mean_of"] | {"de": 9}},
    "below 0": lambda data: data | {"mean_of": data["mean_of"] | {"de": -1}},
    "beyond any number": lambda data: data | {"mean_of": data["mean_of"] | {"de": 10**40}},
    "no number": lambda data: data | {"mean_of": data["mean_of"] | {"de": "0"}},
    "a truth": lambda data: data | {"mean_of": data["mean_of"] | {"en": True}},  # Which equals 1, the number of its mean.
    "a fraction": lambda data: data | {"mean_of": data["mean_of"] | {"de": 0.0}},
    "a list": lambda data: data | {"mean_of": [1, 2]},
    "nothing": lambda data: data | {"mean_of": None},
    "another width": lambda data: data | {"dimensions": 11},
    "not finite": lambda data: data | {"queries": "AAAAAAAA8H8=" * 12},
    "code": lambda data: data | {"groups": "cos\nsystem\n(S'true'\ntR."},
    "without queries": lambda data: {key: value for key, value in data.items() if key != "queries"},
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_data_are_refused(damage):
    with pytest.raises(CorrectionError, match="damaged"):
        Correction.of(DAMAGED[damage](fitted().as_data()))


@pytest.mark.parametrize("column", ["", "a,b", "a/b", "..\\x", "a+b", "a" * 61, "a\nb", "a'b"])
def test_a_column_that_cannot_be_a_part_of_a_file_s_name_is_refused_in_a_file_too(column):
    with pytest.raises(CorrectionError, match=r"column|there is no correction"):
        Correction.of(fitted().as_data() | {"correction": f"centre_by({column})"})


# --- names, and what cannot be used -----------------------------------------------------------------------------------


@given(st.from_regex(r"[\w.-]([\w .-]{0,58}[\w.-])?", fullmatch=True))
@settings(max_examples=60, deadline=None)
def test_the_name_of_a_column_is_read_back(column):
    recipe = Recipe("centre_by", (column,))
    assert Recipe.of(recipe.canonical) == recipe
    assert (recipe.column, recipe.asks, columns_of([recipe.canonical, "length", recipe.canonical])) == (
        column,
        True,
        (column,),
    )


def test_other_corrections_depend_on_no_column():
    assert [Recipe.of(text).column for text in ("length", "centre", "csls")] == [None] * 3


@pytest.mark.parametrize(
    ("text", "named"),
    [("centre_by", r"centre_by needs the column, such as centre_by\(language\)"), ("centre_by()", "needs the column"),
     ("centre_by(a, b)", "the column, not 'a, b'"), ("centre_by(a/b)", "unlike 'a/b'; rename it"),
     ("centre_by_language", r"there are .*centre_by\(language\)")],
)  # fmt: skip
def test_a_recipe_that_there_is_not(text, named):
    with pytest.raises(CorrectionError, match=named):
        Recipe.of(text)


@pytest.mark.parametrize(
    ("how", "named"),
    [({"groups": None}, "'language', and none are given"), ({"groups": LANGUAGES[1:]}, "370 embeddings and 369 values"),
     ({"groups": [1, *LANGUAGES[1:]]}, "named by a text, not by 1"), ({"groups": [None, *LANGUAGES[1:]]}, "not by None"),
     ({"queries": None}, "queries, and none"), ({"queries": QUERIES[:99]}, "100 queries.* 99")],
)  # fmt: skip
def test_what_cannot_be_fitted(how, named):
    with pytest.raises(CorrectionError, match=named):
        fit(RECIPE, DOCUMENTS, **({"queries": QUERIES, "groups": LANGUAGES} | how))


@pytest.mark.parametrize(
    ("rows", "groups", "named"),
    [(DOCUMENTS, None, "'language', and none are given"), (DOCUMENTS, LANGUAGES[:9], "370 embeddings and 9 values"),
     (DOCUMENTS[:, :5], LANGUAGES, "12 dimensions"), (DOCUMENTS * math.inf, LANGUAGES, "not finite")],
)  # fmt: skip
def test_what_cannot_be_applied(rows, groups, named):
    with pytest.raises(CorrectionError, match=named):
        fitted().documents(rows, groups=groups)
