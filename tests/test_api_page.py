"""The reference of the Python API: every public name is on it, and its docstring says what a caller must know."""

import re
from functools import cache
from pathlib import Path

import api_reference
import docstring_rules
import griffe
import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
MACHINE_CODE = {"lanes"}
"""Functions of it stand for single instructions of the processor and are called by compiled code alone."""


@cache
def package():
    return api_reference.package()


@cache
def pages():
    return api_reference.pages()


MODULES = sorted(path.stem for path in (ROOT / "tempscale").glob("*.py") if path.stem != "__init__")
PUBLIC = {module: list(api_reference.public(package().members[module])) for module in MODULES}


# --- what every docstring holds -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", [module for module in MODULES if module not in MACHINE_CODE])
def test_every_public_docstring_says_what_a_caller_must_know(module):
    assert len(PUBLIC[module]) > 0
    found = [f"{thing.path} {problem}" for thing in PUBLIC[module] for problem in docstring_rules.problems(thing, package())]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("module", sorted(MACHINE_CODE))
def test_functions_of_machine_code_have_a_docstring_at_least(module):
    assert all(thing.docstring for thing in PUBLIC[module] if thing.is_function)


def test_the_rules_look_at_what_there_is():
    things = {thing.path.removeprefix("tempscale.") for module in MODULES for thing in PUBLIC[module]}
    assert {"socm.socm", "encoder.Encoder.encode", "tokens.Tokenizer.__call__", "spectrum.HeadSpectrum.sigma_a"} <= things
    assert len(things) > 300
    assert not {name for name in things if re.search(r"(^|\.)_(?!_call__)", name)}


BAD = '''
class KnownError(ValueError):
    """Said in one sentence."""

def good(x: Float[Tensor, "text dim"], tau: float) -> Float[Tensor, " text"]:
    """Each row's sum by τ.

    Args:
        x: rows.
        tau: in (0, 2].

    Returns:
        One number a row.

    Raises:
        KnownError: τ is 0.
    """
    _check(tau)
    return x.sum(1) / tau

def _check(tau):
    if not tau:
        raise KnownError("τ is 0")
'''


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("", "", None),
        ('"""Each row', '"""Every row', None),
        (": rows.", ": rows (text, dim).", None),
        ('Float[Tensor, "text dim"]', "float", None),
        ("        tau: in (0, 2].\n", "", "does not say what tau is"),
        (
            "        tau: in (0, 2].\n",
            "        tau: in (0, 2].\n        n: how many.\n",
            "describes n, which is no argument",
        ),
        ("    Returns:\n        One number a row.\n\n", "", "does not say what it returns"),
        ('Float[Tensor, "text dim"]', "Tensor", "does not name the shape of x"),
        ('Float[Tensor, " text"]', "Tensor", "does not name the shape of what it returns"),
        ("    Raises:\n        KnownError: τ is 0.\n", "", "does not list KnownError, which it raises"),
        ("    _check(tau)\n", "", "lists KnownError, which nothing that it calls raises"),
        ("    _check(tau)\n", "    raise TypeError\n    _check(tau)\n", "does not list TypeError, which it raises"),
        (
            "    _check(tau)\n",
            "    try:\n        _check(tau)\n    except KnownError:\n        raise IndexError(tau) from None\n",
            "does not list IndexError, which it raises",
        ),
        ("    _check(tau)\n", "    try:\n        raise TypeError\n    except TypeError:\n        _check(tau)\n", None),
        (BAD[BAD.index('    """Each') : BAD.index("    _check(tau)")], "", "has no docstring"),
    ],
)
def test_the_rules_find_what_a_made_up_function_lacks(before, after, problem):
    assert before in BAD
    code = BAD.replace(before, after, 1) if before else BAD
    with griffe.temporary_visited_package("made_up", {"__init__.py": "", "part.py": code}) as made:
        thing = made["part.good"]
        thing.docstring and setattr(thing.docstring, "parser", "google")
        found = docstring_rules.problems(thing, made)
    assert found == ([] if problem is None else [problem])


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ('class A:\n    """One."""\n    def __init__(self, x: int) -> None:\n        self._x = x', "does not say what x is"),
        ('class A:\n    """One.\n\n    Args:\n        x: a number.\n    """\n    def __init__(self, x: int): ...', None),
        ('class A(NamedTuple):\n    """One."""\n    x: int', "has no docstring"),
        ('class A(NamedTuple):\n    """One.\n\n    Attributes:\n        x: a number.\n    """\n    x: int', None),
        ('class A(NamedTuple):\n    """One."""\n    x: int\n    """A number."""', None),
        ('class A:\n    """One."""\n    @property\n    def x(self) -> int:\n        return 1', "has no docstring"),
        ('class A:\n    """One."""\n    def x(self) -> int:\n        """One, always."""\n        return 1', None),
        ('class A:\n    """One."""\n    def x(self, y: int) -> int:\n        """Both."""', "does not say what y is"),
    ],
)
def test_the_rules_look_into_made_up_classes(code, problem):
    with griffe.temporary_visited_package("made_up", {"__init__.py": "", "part.py": code}) as made:
        found = []
        for thing in api_reference.public(made["part"]):
            thing.docstring and setattr(thing.docstring, "parser", "google")
            found += docstring_rules.problems(thing, made)
    assert (problem in found) if problem else not found


def rows_of_equations():
    """(source, names) of each line of the tables of docs/equations.md."""
    text = (DOCS / "equations.md").read_text("utf-8")
    for line in re.findall(r"^\| (?!\| equation|---)(.*) \|$", text, re.M):
        cells = line.split(" | ")
        yield cells[0], re.findall(r"`(\w+(?:\.\w+)+)(?:\([^)`]*\))?`", line)


def test_every_function_of_the_equations_is_on_the_page_and_cites_the_same_paper():
    headings = {name for theme in api_reference.THEMES for name in api_reference.of_modules(package(), theme)}
    exported = api_reference.exports(package())
    looked, silent = 0, []
    for source, names in rows_of_equations():
        for name in names:
            first, *rest = name.split(".")
            if first == "tempscale":
                thing = exported[rest[0]]
            elif first in MODULES:
                thing = package().members[first].members[rest[0]]
                thing = thing.final_target if thing.is_alias else thing
                assert thing.path.removeprefix("tempscale.") in headings or thing in exported.values(), name
            else:
                continue
            paper = re.match(r"S[12]\b", source)
            if paper:
                told = thing if len(rest) < 2 else thing.members[rest[1]]
                if not re.search(rf"\b{paper.group()}\b", told.docstring.value + thing.docstring.value):
                    silent.append(f"{name}: {source}")
                looked += 1
    assert looked > 25
    assert not silent


# --- the pages ----------------------------------------------------------------------------------------------------------


def test_the_pages_are_current():
    for name, text in pages().items():
        assert (DOCS / name).read_text("utf-8") == text, f"{name}: run python docs/generate.py"
    assert {path.relative_to(DOCS).as_posix() for path in (DOCS / "api").iterdir()} == set(pages()) - {"api.md"}


def test_every_name_of_the_package_has_one_heading():
    import tempscale as ts

    page = pages()["api/package.md"]
    assert sorted(re.findall(r"^### (?:class )?(\S+)$", page, re.M)) == sorted(ts.__all__)
    assert {name for name in ts.__all__ if isinstance(getattr(ts, name), type)} == set(
        re.findall(r"^### class (\S+)$", page, re.M)
    )
    methods = set(re.findall(r"^#### (\S+)$", page, re.M))
    for kind in (ts.Encoder, ts.Temperature):
        own = {name for name in vars(kind) if not name.startswith("_") and callable(getattr(kind, name))}
        assert len(own) > 3
        assert {f"{kind.__name__}.{name}" for name in own} <= methods


def test_the_first_page_lists_every_heading_of_the_others():
    listed = re.findall(r"^- \[`([\w.]+)`\]\(api/", pages()["api.md"], re.M)
    headings = [h for name, text in pages().items() for h in re.findall(r"^### (?:class )?(\S+)$", text, re.M)]
    assert sorted(listed) == sorted(headings)
    assert len(set(listed)) == len(listed) > 80


def test_what_public_functions_take_and_return_is_on_a_page():
    headings = {
        name.split(".")[-1] for text in pages().values() for name in re.findall(r"^### (?:class )?(\S+)$", text, re.M)
    }
    classes = {t.name for module in MODULES for t in PUBLIC[module] if t.is_class}
    missing = set()
    for theme in api_reference.THEMES:
        things = [*api_reference.of_modules(package(), theme).values(), *api_reference.exports(package()).values()]
        for thing in things:
            members = [thing, *(m for m in api_reference.public(thing) if m.is_function)] if thing.is_class else [thing]
            for function in members:
                if function.is_function:
                    missing |= set(re.findall(r"\w+", str(function.returns))) & classes - headings
    assert not missing


def anchors_of(text):
    """Where GitHub's links to the headings of a page lead, written down apart from what made the page."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.S), re.M)
    found = ["".join(c for c in heading.lower().replace(" ", "-") if c.isalnum() or c in "-_") for heading in headings]
    assert len(set(found)) == len(found)  # Else GitHub numbers them.
    return set(found)


def test_links_of_the_pages_lead_somewhere():
    known, looked = {name: anchors_of(text) for name, text in pages().items()}, 0
    for name, text in pages().items():
        for target, place in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", text):
            path = ((DOCS / name).parent / target).resolve() if target else DOCS / name
            assert path.exists(), target
            if place:
                assert place in known[path.relative_to(DOCS).as_posix()], f"{name} -> {target}#{place}"
                looked += 1
    assert looked > 80


def test_no_sign_of_an_equation_becomes_emphasis_and_what_is_indented_stays():
    told = api_reference.prose("‖F_1F_2ᵀ‖_* of `a_*`, a*b\n\n    x_* = y_*\n\n- no list <tag> d_μ")
    assert told == "‖F_1F_2ᵀ‖\\_\\* of `a_*`, a\\*b\n\n    x_* = y_*\n\n\\- no list \\<tag> d_μ"


def test_a_reader_of_markdown_sees_neither_emphasis_nor_tags_in_the_equations():
    titles = re.findall(r"(?<!\*)\*([^*\n]+)\*(?!\*)", api_reference.INTRO)
    for name, text in pages().items():
        for token in MarkdownIt("commonmark").parse(text):
            inside = token.children or [token]
            assert not any("html" in child.type for child in inside), token.content
            places = [k for k, child in enumerate(inside) if child.type == "em_open"]
            assert name == "api.md" or not places, token.content
            assert all(inside[k + 1].content in titles for k in places), token.content
    assert len(titles) == 2


def test_the_readme_leads_to_the_page():
    assert "(docs/api.md)" in (ROOT / "README.md").read_text("utf-8")
