"""Writes docs/api.md from the docstrings of `tempscale`, which griffe reads from the source without importing it."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import griffe

ROOT = Path(__file__).resolve().parent.parent
_WIDTH = 100

THEMES: dict[str, tuple[str, str, str]] = {
    "encoder": (
        "Encoder and temperature",
        "Encoder Temperature TemperatureError attach detach attached role verify VerificationError UnsupportedArchitecture",
        "model.gathering.Encoded model.gathering.Factor model.tokens model.encoder.Precision model.budgets.TOKEN_BUDGET "
        "temperature.schedule.ROLES temperature.reading.LARGEST_TAU model.checkpoint.ModelError",
    ),
    "socm": (
        "Moments and SOCM",
        "socm pairwise_socm",
        "second_order.socm second_order.moments second_order.nuclear.cross_nuclear_norms "
        "second_order.nuclear.all_nuclear_norms second_order.nuclear.paired_nuclear_norms "
        "second_order.nuclear.pair_frobenius second_order.bidiagonal.nuclear_norms "
        "second_order.polar.nuclear_norms second_order.bounds.survivors "
        "second_order.bounds.SLACK",
    ),
    "length": (
        "Length collapse and statistics",
        "",
        "collapse.length collapse.neighbours collapse.exposure collapse.cosine collapse.aggregates stats.errors stats.dyads "
        "stats.paired stats.correlation stats.enough",
    ),
    "layers": ("Layers and theory", "", "layers.observe layers.spectrum layers.contraction"),
    "search": ("Search and fitting", "fit_by_length", "choosing.by_length choosing.by_layer"),
    "export": ("Export", "fold save load MtebModel", ""),
}
"""For each theme: its title, its names of `tempscale` itself, and its modules, or some names of a module."""

INTRO = """# Python API

Generated from the docstrings of `tempscale/` by `python docs/generate.py`. Names without a dot are names of the package
itself: `import tempscale as ts`, then `ts.attach`; these are stable. The others are names of its modules, which the job
uses for its own computations: `from tempscale.layers.spectrum import sigma_a`.

- S1 is *Length-Induced Embedding Collapse in Transformer-based Models*
  ([arXiv 2410.24200](https://arxiv.org/abs/2410.24200)), S2 *Why Mean Pooling Works*
  ([arXiv 2604.27398](https://arxiv.org/abs/2604.27398)). [equations.md](equations.md) names the test of each equation.
- X = [x_1 … x_n] are the last layer's token embeddings of one text, as rows of a tensor (tokens, d): special tokens
  included, padding excluded. Lengths are in tokens; everything else has no unit unless one is stated.
- Shapes are in the types: `Float[Tensor, "text dim"]` has two dimensions, `Float[Tensor, " text"]` has one, `*batch`
  is any number of dimensions, also none, `""` is a scalar. In prose they are written (texts, d).
"""
OF_A_PAGE = "One of the pages of [api.md](../api.md), which defines S1, S2, X and the notation of shapes."


def package(root: Path = ROOT, name: str = "tempscale") -> griffe.Module:
    """A package as griffe reads it from the source, with docstrings in Google style."""
    # In our Returns sections the text before a colon is not a type: types are in the signature.
    options = {"warnings": False, "returns_named_value": False, "returns_multiple_items": False}
    found = griffe.load(
        name, search_paths=[root], docstring_parser=griffe.Parser.google, docstring_options=options, allow_inspection=False
    )
    assert isinstance(found, griffe.Module)
    return found


# --- what a docstring says ----------------------------------------------------------------------------------------------


def public(parent: griffe.Object) -> Iterator[griffe.Object]:
    """The public functions, classes, methods and fields of a module or class, also those of its classes."""
    for name, member in parent.members.items():
        if member.is_alias or (name.startswith("_") and name != "__call__"):
            continue
        yield member
        if member.is_class:
            yield from public(member)


def sections(thing: griffe.Object, kind: str) -> list:
    """The entries of one kind of section of a docstring; empty where the section is missing."""
    if thing.docstring is None:
        return []
    return [entry for section in thing.docstring.parsed if section.kind.value == kind for entry in section.value]


def outcome(function: griffe.Function) -> str:
    """The description of the result in a docstring."""
    sentences = []
    for entry in sections(function, "returns"):
        own = str(entry.annotation or "")
        sentences.append(entry.description if own in ("", str(function.returns)) else f"{own}: {entry.description}")
    return " ".join([*sentences, *(entry.description for entry in sections(function, "yields"))])


def constructor(thing: griffe.Class) -> griffe.Function | None:
    """The written __init__ of a class, or None where it is generated by a dataclass or inherited."""
    own = thing.members.get("__init__")
    return own if own is not None and not own.is_alias and "dataclass" not in thing.labels else None


# --- the pages ----------------------------------------------------------------------------------------------------------


def exports(tree: griffe.Module) -> dict[str, griffe.Object]:
    """The exported names of `tempscale`, resolved by their imports, because some are also names of modules."""
    found = {str(name): at(tree, tree.imports[str(name)].removeprefix("tempscale.")) for name in tree.exports or []}
    return {name: thing.final_target if thing.is_alias else thing for name, thing in found.items()}


def at(tree: griffe.Object, path: str) -> griffe.Object:
    """The module, or the name of a module, at a dotted path below the package."""
    for part in path.split("."):
        tree = tree.members[part]
    return tree


def of_modules(tree: griffe.Module, theme: str) -> dict[str, griffe.Object]:
    """The names of modules on a theme's page, such as «spectrum.sigma_a», without the names of the package."""
    exported = {thing.path for thing in exports(tree).values()}
    found = {}
    for entry in THEMES[theme][2].split():
        home = at(tree, entry)
        things = [thing for thing in public(home) if thing.parent is home] if home.is_module else [home]
        found |= {thing.path.removeprefix("tempscale."): thing for thing in things if thing.path not in exported}
    return found


def pages() -> dict[str, str]:
    """docs/api.md, which lists every name, and the pages that it links to, by their path in docs/."""
    tree = package()
    exported, index, package_page = exports(tree), [INTRO], ["# The package itself", "", OF_A_PAGE]
    listed = [name for theme in THEMES for name in THEMES[theme][1].split()]
    assert sorted(listed) == sorted(exported), "each name of the package belongs to one theme"
    found = {}
    for theme, (title, names, _) in THEMES.items():
        own = {name: exported[name] for name in names.split()}
        things = of_modules(tree, theme)
        index += ["", f"## {title}", "", *_links("package", own), *_links(theme, things)]
        package_page += ["", f"## {title}", *_entries(own)] if own else []
        if things:
            found[f"api/{theme}.md"] = _joined([f"# {title}", "", OF_A_PAGE, *_of_modules(things)])
    return {"api.md": _joined(index), "api/package.md": _joined(package_page)} | found


def _links(page: str, things: dict[str, griffe.Object]) -> list[str]:
    """A link for each name, with the first line of its docstring."""
    lines = []
    for name, thing in things.items():
        if not _is_value(thing):
            first = _line(thing.docstring.value.split("\n\n")[0])
            lines.append(f"- [`{name}`](api/{page}.md#{anchor(heading(name, thing))}): {first}")
    return lines


def _entries(things: dict[str, griffe.Object]) -> list[str]:
    lines = []
    for name, thing in things.items():
        if not _is_value(thing):
            lines += ["", f"### {heading(name, thing)}", "", *_body(thing, thing.name)]
    return lines


def _of_modules(things: dict[str, griffe.Object]) -> list[str]:
    lines, modules = [], dict.fromkeys(thing.module for thing in things.values())
    for module in modules:
        path = module.path.replace(".", "/")
        own = {name: thing for name, thing in things.items() if thing.module is module}
        values = [thing for thing in own.values() if _is_value(thing)]
        lines += ["", f"## {module.path}", "", f"[{path}.py](../../{path}.py): {prose(module.docstring.value)}", ""]
        lines += [f"- `{one.name} = {_type(one.value)}`: {_line(one.docstring.value)}" for one in values]
        lines += _entries(own)
    return lines


def heading(name: str, thing: griffe.Object) -> str:
    """The heading of a name; «class» separates a class from a function, because links ignore case."""
    return f"class {name}" if thing.is_class else name


def anchor(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _joined(lines: list[str]) -> str:
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"


def _is_value(thing: griffe.Object) -> bool:
    return thing.is_attribute and "property" not in thing.labels


def _body(thing: griffe.Object, call: str) -> list[str]:
    """The lines below one heading."""
    if thing.is_function:
        return [
            *_code(signature(thing, call)),
            *_text(thing),
            *_list("Arguments", _told(thing, "parameters")),
            *_outcome(thing),
            *_list("Raises", _told(thing, "raises")),
        ]
    made, own = constructor(thing), [one for one in public(thing) if one.parent is thing]
    lines = _code(signature(made, call, of_class=True)) if made is not None else []
    lines += _text(thing)
    bases = [str(base) for base in thing.bases if str(base) != "NamedTuple"]
    lines += ["", f"A `{'`, `'.join(bases)}`."] if bases else []
    lines += _list("Arguments", _told(thing, "parameters"))
    # Attributes that __init__ sets are in the docstring of the class; a field has its own docstring.
    fields = [
        (f"{one.name}: {_type(one.annotation)}", one.docstring.value) for one in own if one.is_attribute and one.docstring
    ]
    lines += _list("Attributes", _told(thing, "attributes") + fields)
    lines += _list("Raises", _told(thing, "raises"))
    for method in own:
        if method.is_function:
            called = call.lower() if method.name == "__call__" else f"{call}.{method.name}"
            over = f"{call}, called" if method.name == "__call__" else called
            lines += ["", f"#### {over}", "", *_body(method, called)]
    return lines


def signature(function: griffe.Function, name: str, *, of_class: bool = False) -> str:
    """The call of a function with its types, in lines of at most a hundred characters where possible."""
    parts, star = [], False
    for parameter in function.parameters:
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is griffe.ParameterKind.keyword_only and not star:
            parts.append("*")
            star = True
        default = "" if parameter.default is None else f" = {_type(parameter.default)}"
        parts.append(f"{parameter.name}: {_type(parameter.annotation)}{default}")
    result = "" if of_class else f" -> {_type(function.returns)}"
    whole = f"{name}({', '.join(parts)}){result}"
    if len(whole) <= _WIDTH:
        return whole
    # Do not break a line inside a type.
    filled = textwrap.fill(
        ", ".join(part.replace(" ", "\0") for part in parts) + ",", _WIDTH, break_long_words=False, break_on_hyphens=False,
        initial_indent="    ", subsequent_indent="    ",
    )  # fmt: skip
    return f"{name}(\n{filled}\n){result}".replace("\0", " ")


def _type(expression: object) -> str:
    """An expression as the source writes it: griffe uses single quotes."""
    return str(expression).replace("'", '"')


def _code(text: str) -> list[str]:
    return ["```python", text, "```", ""]


def _text(thing: griffe.Object) -> list[str]:
    return [prose("\n\n".join(section.value for section in thing.docstring.parsed if section.kind.value == "text"))]


def _told(thing: griffe.Object, kind: str) -> list[tuple[str, str]]:
    return [
        (str(entry.annotation if kind == "raises" else entry.name), entry.description) for entry in sections(thing, kind)
    ]


def _list(title: str, entries: list[tuple[str, str]]) -> list[str]:
    return ["", f"**{title}**", *(f"- `{name}`: {_line(meaning)}" for name, meaning in entries)] if entries else []


def _outcome(function: griffe.Function) -> list[str]:
    sentences = outcome(function)
    word = "Yields" if sections(function, "yields") else "Returns"
    return ["", f"**{word}** {_line(sentences)}"] if sentences else []


def _line(text: str) -> str:
    return prose(" ".join(text.split()))


def prose(text: str) -> str:
    """A docstring's text as Markdown: indented blocks are code, and the signs of equations are escaped."""
    blocks = []
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        if block.startswith("    "):
            blocks.append(block)
            continue
        pieces = re.split(r"(`[^`]*`)", block)
        pieces[::2] = [_escaped(piece) for piece in pieces[::2]]
        blocks.append(re.sub(r"^([-+>#=]|\d+[.)] )", r"\\\1", "".join(pieces), flags=re.M))
    return "\n\n".join(blocks)


def _escaped(text: str) -> str:
    return re.sub(r"([*~]|(?<!\w)_|_(?!\w)|<(?=[a-zA-Z/]))", r"\\\1", text)
