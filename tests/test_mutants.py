"""The mistakes of `make mutants` can still be made, and the last result left none unnoticed without a reason."""

import ast
import json
import re
import shutil
import subprocess
from collections import Counter

import mutants
import pytest
import shapes
from mutations import SUBJECTS, Mutation

MADE = [own for subject in SUBJECTS for own in subject.mutations]
CODE = '''"""Über: ∞."""
_LIMIT = 2.0


class Gate:
    exit_code = 1
    kinds = [kind for kind in ("a", "b") if kind]

    def judge(self, value, noise=0.5):
        name, excess = "∞ → ü", value - self.limit if value > _LIMIT else -value  # Ü
        if excess > max(noise, self.size):
            self.report(f"{name}: {excess > max(noise, self.size)}", strict=True, wait=False)
            return [text.strip() for text in name.split() if text]
        elif noise:
            excess -= 1
            excess -= 2
        try:
            return {"noise": noise, "excess": excess, "limit": _LIMIT}
        except ValueError as error:
            raise KeyError(error) from None


def judge(values):
    def more(value):
        return value + 1

    return [more(value) for value in values]
'''


def changed(old, new, function="Gate.judge"):
    """The lines of CODE that went, and those that came."""
    before, after = CODE.splitlines(), shapes.replaced(CODE, function, old, new).splitlines()
    ast.parse("\n".join(after))
    start = next(at for at, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1])
    end = next(at for at, pair in enumerate(zip(before[::-1], after[::-1], strict=False)) if pair[0] != pair[1])
    return tuple([line.strip() for line in lines[start : len(lines) - end]] for lines in (before, after))


@pytest.mark.proof
@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_every_mutation_that_is_found_gives_other_code_that_can_be_parsed(subject):
    """`make check` warns of those that are not found."""
    for test in subject.tests:
        assert (mutants.ROOT / test).exists()
    for own in filter(mutants.is_found, subject.mutations):
        before = (mutants.ROOT / own.file).read_text("utf-8")
        assert ast.dump(ast.parse(mutants.mutated(before, own))) != ast.dump(ast.parse(before)), own.old


@pytest.mark.proof
def test_most_mutations_are_found():
    assert sum(map(mutants.is_found, MADE)) >= 0.9 * len(MADE)


def test_no_mutation_is_made_twice_and_there_are_enough():
    assert Counter(own[:4] for own in MADE).most_common(1)[0][1] == 1
    assert len(MADE) >= 60


@pytest.mark.parametrize(
    ("function", "old", "new", "came"),
    [
        ("Gate.judge", "gone > max(least, self.size)", "gone >= max(least, 0)", "if (excess >= max(noise, 0)):"),
        ("Gate.judge", "excess>max( noise,\n\n   self.size)  # why", "False", "if (False):"),
        ("Gate.judge", "a > _LIMIT", "a >= _LIMIT",
         'name, excess = "∞ → ü", value - self.limit if (value >= _LIMIT) else -value  # Ü'),
        ("Gate.judge", "[a.strip() for a in b.split() if a]", "[a for a in b]", "return ([text for text in name])"),
        ("Gate.judge", "raise KeyError(problem) from None", "raise problem", "raise error"),
        ("Gate.judge", "e -= 2", "if e:\n    e = 3", "if excess:\nexcess = 3"),
        ("Gate.judge", "gone -= 1\ngone -= 2", "gone -= 3", "excess -= 3"),
        ("Gate", "[a for a in ('a', 'b') if a]", "[a for a in ('a', 'b')]", "kinds = ([kind for kind in ('a', 'b')])"),
        ("Gate", "exit_code = 1", "exit_code = 2", "exit_code = 2"),
        ("", "_LIMIT = 2.0", "_LIMIT = 3.0", "_LIMIT = 3.0"),
        ("judge", "[own(a) for a in b]", "[own(own(a)) for a in b]", "return ([more(more(value)) for value in values])"),
        ("judge", "def own(a):\n    return a + 1", "own = abs", "more = abs"),
    ],
)  # fmt: skip
def test_code_is_found_whatever_its_local_names_and_lines_and_the_new_code_follows(function, old, new, came):
    assert changed(old, new, function)[1] == came.splitlines()


@pytest.mark.parametrize(
    ("function", "old"),
    [
        ("Gate.judge", "excess > max(noise, self.width)"),
        ("Gate.judge", "excess > min(noise, self.size)"),
        ("Gate.judge", "excess >= max(noise, self.size)"),
        ("Gate.judge", "value > _MARGIN"),
        ("Gate.judge", "excess > max(excess, self.size)"),
        ("Gate.judge", "excess -= 1.0"),
        ("Gate.judge", '{"noise": noise, "excess": noise, "limit": _LIMIT}'),
        ("judge", "excess > max(noise, self.size)"),
        ("", "exit_code = 1"),
        ("Gate.exit", "exit_code = 1"),
    ],
)
def test_other_attributes_functions_constants_and_places_are_not_found(function, old):
    with pytest.raises(shapes.NotFound, match="holds 0 times"):
        shapes.replaced(CODE, function, old, "pass")


def test_code_that_is_there_twice_and_new_code_with_an_unknown_name_are_refused():
    again = CODE.replace("excess -= 2", "name -= 1")
    with pytest.raises(shapes.NotFound, match=r"Gate\.judge holds 2 times"):
        shapes.replaced(again, "Gate.judge", "excess -= 1", "pass")
    with pytest.raises(shapes.NotFound, match="no others"):
        changed("excess -= 1", "excess -= others")


@pytest.mark.parametrize(
    ("old", "new", "went", "came"),
    [
        ("{**..., 'excess': a, **...}", "{**..., **...}", 1, "return ({'noise': noise, 'limit': _LIMIT})"),
        ("try: ...\nexcept ValueError as e: ...", "try: ...\nexcept OSError as e: ...", 2,
         "return {'noise': noise, 'excess': excess, 'limit': _LIMIT}\nexcept OSError as error:"),
        ("self.report(..., **..., wait=False)", "self.report(..., **...)", 1,
         "(self.report(f'{name}: {excess > max(noise, self.size)}', strict=True))"),
        ("if noise: ...", "...", 1, "else:"),
        ("max(...)", "max(..., 0)", 1, "if excess > (max(noise, self.size, 0)):"),
        ("(...).strip()", "(...).upper()", 1, "return [(text.upper()) for text in name.split() if text]"),
    ],
)  # fmt: skip
def test_three_dots_are_any_code_which_stays(old, new, went, came):
    lines, others = changed(old, new)
    assert (len(lines), others) == (went, came.splitlines())


def test_dots_stand_for_what_is_there_and_stay_and_deleted_code_leaves_the_rest():
    with pytest.raises(shapes.NotFound):
        changed("self.report(..., wait=False, **...)", "self.report(..., **...)")
    with pytest.raises(ValueError, match="not every"):
        changed("(...) > max(...)", "max(...)")
    assert shapes.replaced(CODE, "Gate.judge", "excess -= 1", "") == CODE.replace("excess -= 1", "")


def test_of_the_last_results_each_mistake_was_noticed_or_has_a_reason():
    found = json.loads(mutants.RESULT.read_text("utf-8"))
    assert len(found) > 10
    assert [own["old"] for of_subject in found.values() for own in mutants.missed(of_subject)] == []


def test_a_subject_whose_mutations_are_not_those_of_its_record_is_stale():
    found = json.loads(mutants.RESULT.read_text("utf-8"))
    recorded = [mutants.Subject(name, (), tuple(map(mutants.recorded, of["mutations"]))) for name, of in found.items()]
    assert mutants.stale(recorded, found) == []
    longer = recorded[0]._replace(mutations=(*recorded[0].mutations, Mutation("file", "function", "old", "new")))
    unknown = mutants.Subject("a new one", (), ())
    assert mutants.stale([longer, *recorded[1:], unknown], found) == [longer.name, unknown.name]


def test_mutations_that_are_not_found_are_warnings(monkeypatch, capsys):
    gone = Mutation("tests/mutants.py", "main", "gone", "0"), Mutation("tests/gone.py", "", "gone", "0")
    monkeypatch.setattr(mutants, "SUBJECTS", (mutants.Subject("some", (), gone),))
    assert mutants.main(["--stale"]) == 0
    assert "warning: 2 of 2 mutations are not found in the code: some\n" in capsys.readouterr().out


@pytest.mark.skipif(shutil.which("git") is None, reason="the commit is git's")
def test_the_commit_of_a_record_says_whether_a_file_differs_from_it(monkeypatch, tmp_path):
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    monkeypatch.setattr(mutants, "RESULT", tmp_path / "record.json")
    for words in ("init --quiet", "-c user.name=a -c user.email=b commit --quiet --allow-empty -m one"):
        subprocess.run(["git", *words.split()], cwd=tmp_path, check=True)
    (tmp_path / "record.json").write_text("{}")
    assert re.fullmatch("[0-9a-f]{7,}", mutants.commit())
    (tmp_path / "code.py").write_text("")
    assert re.fullmatch(r"[0-9a-f]{7,}\+", mutants.commit())
