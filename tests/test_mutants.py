"""The mistakes of `make mutants` can still be made, and the last result left none unnoticed without a reason."""

import ast
import json
from collections import Counter

import mutants
import pytest
from mutations import SUBJECTS, Mutation

MADE = [own for subject in SUBJECTS for own in subject.mutations]


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_every_mutation_changes_one_place_of_code_that_runs(subject):
    for test in subject.tests:
        assert (mutants.ROOT / test).exists()
    for own in subject.mutations:
        before = (mutants.ROOT / own.file).read_text("utf-8")
        assert ast.dump(ast.parse(mutants.mutated(before, own))) != ast.dump(ast.parse(before)), own.old


def test_no_mutation_is_made_twice_and_there_are_enough():
    assert Counter((own.file, own.old, own.new) for own in MADE).most_common(1)[0][1] == 1
    assert len(MADE) >= 60


def test_a_mutation_of_what_is_not_there_is_refused():
    with pytest.raises(ValueError, match="holds 0 times: gone"):
        mutants.mutated("here", Mutation("file", "gone", ""))
    with pytest.raises(ValueError, match="holds 2 times: e"):
        mutants.mutated("here", Mutation("file", "e", ""))


def test_of_the_last_results_each_mistake_was_noticed_or_has_a_reason():
    found = json.loads(mutants.RESULT.read_text("utf-8"))
    assert len(found) > 10
    assert [own["old"] for of_subject in found.values() for own in mutants.missed(of_subject)] == []


def test_a_subject_whose_mutations_are_not_those_of_its_record_is_stale():
    found = json.loads(mutants.RESULT.read_text("utf-8"))
    recorded = [mutants.Subject(name, (), tuple(map(mutants.recorded, of["mutations"]))) for name, of in found.items()]
    assert mutants.stale(recorded, found) == []
    longer = recorded[0]._replace(mutations=(*recorded[0].mutations, Mutation("file", "old", "new")))
    unknown = mutants.Subject("a new one", (), ())
    assert mutants.stale([longer, *recorded[1:], unknown], found) == [longer.name, unknown.name]
