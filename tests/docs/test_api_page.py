"""The docstrings on docs/api.md say what a caller must know: arguments, result, errors and the shapes of arrays."""

import ast
import re
import textwrap

import api_reference
import griffe
import pytest
from api_reference import constructor, outcome, public, sections

ARRAY = re.compile(r"\b(?:Tensor|ndarray)\b")
SHAPED = re.compile(r"""\b(?:Tensor|ndarray), *["']""")
SHAPE = re.compile(r"\([^()]*\)|\bscalars?\b", re.I)


def lacking(function, documented):
    """What a docstring leaves out of a function, in words; that of a class says it of its constructor."""
    told = {name.strip(): e.description for e in sections(documented, "parameters") for name in e.name.split(",")}
    given = {p.name: str(p.annotation or "") for p in function.parameters if p.name not in ("self", "cls")}
    found = [f"does not say what {name} is" for name in given.keys() - told.keys()]
    found += [f"describes {name}, which is no argument" for name in told.keys() - given.keys()]
    described = [(kind, told[name], name) for name, kind in given.items() if name in told]
    if function is documented and str(function.returns or "None") not in ("None", "NoReturn"):
        found += ["does not say what it returns"] if given and not outcome(function) else []
        described.append((str(function.returns), outcome(function) or function.docstring.value, "what it returns"))
    found += [f"does not name the shape of {name}" for kind, said, name in described
              if ARRAY.search(kind) and not SHAPED.search(kind) and not SHAPE.search(said)]  # fmt: skip
    listed = {name.strip() for e in sections(documented, "raises") for name in str(e.annotation).split(",")}
    return found + [f"does not list {name}, which it raises" for name in raised(function) - listed]


def raised(function):
    """The classes of errors that a function's own code raises and does not catch."""
    nodes = list(ast.walk(ast.parse(textwrap.dedent(function.source))))
    names = [ast.unparse(node.exc).partition("(")[0] for node in nodes if isinstance(node, ast.Raise) and node.exc]
    caught = " ".join(ast.unparse(node.type) for node in nodes if isinstance(node, ast.ExceptHandler) and node.type)
    return {name.rpartition(".")[2] for name in names if name[0].isupper() and name not in caught}  # No variable.


def problems(thing, with_methods=True):
    """What the docstrings of a name and of its members lack; without `with_methods`, a method needs only one sentence."""
    members = [thing, *(public(thing) if thing.is_class else ())]
    entries = [entry for one in members for kind in ("attributes", "parameters") for entry in sections(one, kind)]
    said = {name.strip() for entry in entries for name in entry.name.split(",")}
    for one in members:
        if one.docstring is None or not one.docstring.value.strip():
            yield from [] if one.is_attribute and one.name in said else [f"{one.path} has no docstring"]
        elif (function := constructor(one) if one.is_class else one) is not None and function.is_function:
            yield from (f"{one.path} {problem}" for problem in lacking(function, one) if with_methods or one is thing)


DOCUMENTED = (
    "model.gathering.Encoded model.gathering.Factor model.tokens.Tokenizer model.encoder.Precision "
    "model.budgets.TOKEN_BUDGET temperature.schedule.ROLES temperature.reading.LARGEST_TAU model.checkpoint.ModelError "
    "second_order.socm second_order.moments.covariance_factor second_order.moments.token_sums "
    "second_order.moments.TokenMoments second_order.moments.TokenSums second_order.moments.Scatter "
    "second_order.nuclear.cross_nuclear_norms second_order.nuclear.all_nuclear_norms "
    "second_order.nuclear.paired_nuclear_norms second_order.nuclear.principal_rows second_order.bidiagonal.nuclear_norms "
    "second_order.polar.nuclear_norms second_order.bounds.survivors second_order.bounds.d_sigma_bound "
    "second_order.bounds.SLACK collapse.length "
    "collapse.neighbours collapse.exposure collapse.cosine collapse.aggregates stats.errors stats.dyads stats.paired "
    "stats.correlation stats.enough layers.observe layers.spectrum layers.contraction choosing.by_length choosing.by_layer"
)
"""Modules, and names of modules, whose functions are documented like those on the page."""


def documented():
    """Everything that is on the page, and everything that is documented like it, each by its path."""
    package = api_reference.package()
    things = []
    for path in DOCUMENTED.split():
        home = api_reference.at(package, path)
        things += [thing for thing in public(home) if thing.parent is home] if home.is_module else [home]
    return [{thing.path: thing for thing in some} for some in (api_reference.exports(package).values(), things)]


def test_every_public_docstring_says_what_a_caller_must_know():
    on_page, others = documented()
    assert len(on_page | others) > 100
    found = [problem for thing in on_page.values() for problem in problems(thing)]
    found += [problem for thing in others.values() for problem in problems(thing, with_methods=False)]
    assert not found, "\n".join(found)


GOOD = '''
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
    if not tau:
        raise KnownError("τ is 0")
    return x.sum(1) / tau
'''


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("", "", None),
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
        (GOOD[GOOD.index('    """Each') : GOOD.index("    if not")], "", "has no docstring"),
    ],
)
def test_each_gap_of_a_docstring_is_found(before, after, problem):
    code = {"__init__.py": "", "part.py": GOOD.replace(before, after, 1)}
    with griffe.temporary_visited_package("made_up", code, docstring_parser="google") as made:
        assert list(problems(made["part.good"])) == ([] if problem is None else [f"made_up.part.good {problem}"])
