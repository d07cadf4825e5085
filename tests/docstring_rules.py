"""What every public docstring must hold, told from the source alone: nothing is imported."""

import ast
import re
from functools import cache

from api_reference import constructor, outcome, sections

_ARRAY = re.compile(r"\b(?:Tensor|ndarray)\b")
_SHAPED = re.compile(r"""\b(?:Tensor|ndarray), *["']""")
_SHAPE = re.compile(r"\([^()]*\)|\bscalars?\b", re.I)


def problems(thing, package=None):
    """What the docstring of one public name lacks, in words."""
    found = []
    if thing.docstring is None or not thing.docstring.value.strip():
        return [] if thing.is_attribute and not thing.is_class and _explained_by_owner(thing) else ["has no docstring"]
    if thing.is_class:
        own = constructor(thing)
        if own is not None:
            found += _arguments(own, thing)
            found += _raises(own, thing, package)
    elif "property" in thing.labels:
        found += _raises(thing, thing, package)
    elif thing.is_function:
        found += _arguments(thing, thing)
        found += _returns(thing)
        found += _raises(thing, thing, package)
    return found


def _explained_by_owner(attribute):
    return attribute.name in described(attribute.parent, "attributes")


def described(thing, kind):
    """Name -> description; «x1, x2: …» describes both."""
    entries = {}
    for entry in sections(thing, kind):
        for name in entry.name.split(","):
            entries[name.strip()] = entry.description
    return entries


def _arguments(function, documented):
    names = [parameter.name for parameter in function.parameters if parameter.name not in ("self", "cls")]
    told = described(documented, "parameters")
    found = [f"does not say what {name} is" for name in names if name not in told]
    found += [f"describes {name}, which is no argument" for name in told if name not in names]
    for name in names:
        annotation = str(function.parameters[name].annotation or "")
        if name in told and _ARRAY.search(annotation) and not _SHAPED.search(annotation) and not _SHAPE.search(told[name]):
            found.append(f"does not name the shape of {name}")
    return found


def _returns(function):
    annotation = str(function.returns or "None")
    if annotation in ("None", "NoReturn"):
        return []
    told = outcome(function)
    if not told and any(p.name not in ("self", "cls") for p in function.parameters):
        return ["does not say what it returns"]
    everything = told or function.docstring.value
    if _ARRAY.search(annotation) and not _SHAPED.search(annotation) and not _SHAPE.search(everything):
        return ["does not name the shape of what it returns"]
    return []


def _raises(function, documented, package):
    told = {name.strip() for entry in sections(documented, "raises") for name in str(entry.annotation).split(",")}
    found = [f"does not list {name}, which it raises" for name in sorted(raised(function) - told)]
    if package is not None:
        reachable = raised_anywhere(package, function)
        # What a callback raises may be anything.
        found += [f"lists {name}, which nothing that it calls raises" for name in sorted(told - reachable - {"Exception"})]
    return found


def raised(function):
    """The classes that a function raises and does not catch, itself or in hidden functions of its module and class."""
    owners = [function.module, *([function.parent] if function.parent.is_class else [])]
    hidden = {
        name: member
        for owner in owners
        for name, member in owner.members.items()
        if name.startswith("_") and not name.startswith("__") and not member.is_alias and member.is_function
    }
    return _own_raises(tree(function), hidden=hidden)


@cache
def _functions(package):
    """Every function of a package by its bare name; a class stands for what runs when one is made."""
    by_name = {}
    for module in package.modules.values():
        for thing in module.members.values():
            if thing.is_alias:
                continue
            if thing.is_function:
                by_name.setdefault(thing.name, []).append(thing)
            elif thing.is_class:
                for method in thing.members.values():
                    if not method.is_alias and (method.is_function or "property" in method.labels):
                        name = thing.name if method.name in ("__init__", "__post_init__") else method.name
                        name = thing.name.lower() if name == "__call__" else name  # As an instance is mostly called.
                        by_name.setdefault(name, []).append(method)
    return by_name


def raised_anywhere(package, function):
    """The classes that a function or anything of the package that it names may raise: never too few."""
    by_name, seen, names, waiting = _functions(package), set(), set(), [function]
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        node = tree(thing)
        names |= _own_raises(node)
        called = _names(node) | ({thing.parent.name} if "cls" in _names(node) and thing.parent.is_class else set())
        waiting += [callee for name in called for callee in by_name.get(name, [])]
    return names


def tree(function):
    """The syntax tree of a function."""
    lines = function.source.splitlines()
    if not lines:  # A dataclass's own __init__ stands nowhere.
        return ast.Module([], [])
    indent = len(lines[0]) - len(lines[0].lstrip())
    return ast.parse("\n".join(line[indent:] for line in lines))


def _own_raises(node, caught=frozenset(), hidden=None):
    """The classes that a piece of code raises and does not catch itself, also in the hidden functions that it names."""
    if isinstance(node, ast.Try):
        here = caught | {name for handler in node.handlers for name in _names(handler.type or ast.Name("BaseException"))}
        inside = set().union(*(_own_raises(part, here, hidden) for part in node.body))
        outside = [*node.handlers, *node.orelse, *node.finalbody]
        return inside.union(*(_own_raises(part, caught, hidden) for part in outside))
    found = set()
    if isinstance(node, ast.Raise) and node.exc is not None:
        kind = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        name = kind.attr if isinstance(kind, ast.Attribute) else getattr(kind, "id", "")
        # A variable is an error that came from elsewhere.
        found |= {name} if name[:1].isupper() and not caught & {name, "Exception", "BaseException"} else set()
    called = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None
    if hidden and called in hidden:
        others = {name: function for name, function in hidden.items() if name != called}  # Not in circles.
        found |= _own_raises(tree(hidden[called]), caught, others)
    return found.union(*(_own_raises(child, caught, hidden) for child in ast.iter_child_nodes(node)))


def _names(node):
    names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return names | {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}
