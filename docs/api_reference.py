"""docs/api.md from the docstrings of `tempscale`, read from its source by griffe: nothing of it is imported."""

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
        "gathering.Encoded gathering.Factor tokens encoder.Precision encoder.TOKEN_BUDGET temperature.ROLES "
        "taus.LARGEST_TAU checkpoint.ModelError",
    ),
    "socm": (
        "Moments and SOCM",
        "socm pairwise_socm",
        "socm moments truncation nuclear.cross_nuclear_norms nuclear.all_nuclear_norms nuclear.paired_nuclear_norms "
        "nuclear.pair_frobenius bidiagonal.nuclear_norms polar.nuclear_norms survivors.survivors survivors.SLACK",
    ),
    "length": ("Length collapse and statistics", "", "length neighbours sampling correlation cosine aggregates"),
    "layers": ("Layers and theory", "", "layers spectrum contraction"),
    "search": ("Search and fitting", "fit_by_length", "fit search"),
    "export": ("Export", "fold", ""),
}
"""Of each theme its title, the names of `tempscale` itself in it, and its modules, or some names of one."""

INTRO = """# Python API

Generated from the docstrings of `tempscale/` by `python docs/generate.py`. Names without a dot are those of the package
itself: `import tempscale as ts`, then `ts.attach`; these stay. The others are those of its modules, what the job itself
computes with: `from tempscale.spectrum import sigma_a`.

- S1 is *Length-Induced Embedding Collapse in Transformer-based Models*
  ([arXiv 2410.24200](https://arxiv.org/abs/2410.24200)), S2 *Why Mean Pooling Works*
  ([arXiv 2604.27398](https://arxiv.org/abs/2604.27398)). [equations.md](equations.md) names the test of each equation.
- X = [x_1 … x_n] are the last layer's token embeddings of one text, as rows of a tensor (tokens, d): special tokens
  included, padding excluded. Lengths are in tokens; nothing else has a unit but where it is said.
- Shapes stand in the types: `Float[Tensor, "text dim"]` has two dimensions, `Float[Tensor, " text"]` has one, `*batch`
  is any number of them, none too, `""` is a scalar. In words they are (texts, d).
"""
OF_A_PAGE = "One of the pages of [api.md](../api.md), which says what S1, S2, X and the shapes are."


def package(root: Path = ROOT, name: str = "tempscale") -> griffe.Module:
    """A package as its source describes it, docstrings in Google style."""
    # What comes before a colon in Returns is no type here: types stand in the signature.
    options = {"warnings": False, "returns_named_value": False, "returns_multiple_items": False}
    found = griffe.load(
        name, search_paths=[root], docstring_parser=griffe.Parser.google, docstring_options=options, allow_inspection=False
    )
    assert isinstance(found, griffe.Module)
    return found


# --- what a docstring says ----------------------------------------------------------------------------------------------


def public(parent: griffe.Object) -> Iterator[griffe.Object]:
    """The functions, classes, methods and fields that belong to a module or class and are not hidden, classes' too."""
    for name, member in parent.members.items():
        if member.is_alias or (name.startswith("_") and name != "__call__"):
            continue
        yield member
        if member.is_class:
            yield from public(member)


def sections(thing: griffe.Object, kind: str) -> list:
    """The entries of one kind of section of a docstring; none where it is missing."""
    if thing.docstring is None:
        return []
    return [entry for section in thing.docstring.parsed if section.kind.value == kind for entry in section.value]


def outcome(function: griffe.Function) -> str:
    """What a docstring says that comes back."""
    told = []
    for entry in sections(function, "returns"):
        own = str(entry.annotation or "")
        told.append(entry.description if own in ("", str(function.returns)) else f"{own}: {entry.description}")
    return " ".join([*told, *(entry.description for entry in sections(function, "yields"))])


def constructor(thing: griffe.Class) -> griffe.Function | None:
    """The __init__ that somebody wrote; a dataclass's own and an inherited one are none."""
    own = thing.members.get("__init__")
    return own if own is not None and not own.is_alias and "dataclass" not in thing.labels else None


# --- the pages ----------------------------------------------------------------------------------------------------------


def exports(tree: griffe.Module) -> dict[str, griffe.Object]:
    """What `tempscale` itself promises: where it is imported from, for some names are also those of modules."""
    paths = {str(name): tree.imports[str(name)].removeprefix("tempscale.").split(".") for name in tree.exports or []}
    found = {name: tree.members[module].members[own] for name, (module, own) in paths.items()}
    return {name: thing.final_target if thing.is_alias else thing for name, thing in found.items()}


def of_modules(tree: griffe.Module, theme: str) -> dict[str, griffe.Object]:
    """The names of modules that a theme's own page holds, such as «spectrum.sigma_a», without those of the package."""
    exported = {thing.path for thing in exports(tree).values()}
    found = {}
    for entry in THEMES[theme][2].split():
        module, _, name = entry.partition(".")
        home = tree.members[module]
        things = [home.members[name]] if name else [thing for thing in public(home) if thing.parent is home]
        found |= {thing.path.removeprefix("tempscale."): thing for thing in things if thing.path not in exported}
    return found


def pages() -> dict[str, str]:
    """docs/api.md, which lists every name, and the pages that it points to, by path from docs/."""
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
    """Each name with the first line of its docstring."""
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
    """What stands over a name: links know no case, so that a class is told from a function of the same name."""
    return f"class {name}" if thing.is_class else name


def anchor(heading: str) -> str:
    """Where a link to a heading leads on GitHub."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _joined(lines: list[str]) -> str:
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"


def _is_value(thing: griffe.Object) -> bool:
    return thing.is_attribute and "property" not in thing.labels


def _body(thing: griffe.Object, call: str) -> list[str]:
    """What stands under one heading."""
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
    # What is set in __init__ stands in the class's own docstring, a field has one of its own.
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
    """How a function is called, with its types, in lines of at most a hundred characters where that is possible."""
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
    # A space inside of a type is no place to break.
    filled = textwrap.fill(
        ", ".join(part.replace(" ", "\0") for part in parts) + ",", _WIDTH, break_long_words=False, break_on_hyphens=False,
        initial_indent="    ", subsequent_indent="    ",
    )  # fmt: skip
    return f"{name}(\n{filled}\n){result}".replace("\0", " ")


def _type(expression: object) -> str:
    """As the source writes it; griffe puts texts into single quotes."""
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
    told = outcome(function)
    word = "Yields" if sections(function, "yields") else "Returns"
    return ["", f"**{word}** {_line(told)}"] if told else []


def _line(text: str) -> str:
    return prose(" ".join(text.split()))


def prose(text: str) -> str:
    """A docstring's text as Markdown: what is indented is code, and no sign of an equation becomes emphasis."""
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
