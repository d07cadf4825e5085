"""A quoted piece of code, found in a function by its shape: local variables may have other names, lines may break elsewhere.

`...` in a quotation is any expression, or any number of statements, arguments or elements; `**...` is any number of keywords
or items of a dictionary. New code has none of them, or all, in the same order: each stays the code that it was.
"""

from __future__ import annotations

import ast
import builtins
import itertools
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DEFINITIONS = (*_FUNCTIONS, ast.ClassDef)
_NAMES: dict[type, str] = {ast.Name: "id", ast.arg: "arg", ast.ExceptHandler: "name", ast.FunctionDef: "name"}
"""The field in which a node has the name of a variable."""
_Names = Mapping[str, str]
_Gaps = tuple[list[Any], ...]
_Match = tuple[_Names, _Gaps]


class NotFound(ValueError):
    """A function does not hold the quoted code, or holds it more than once."""


def replaced(text: str, function: str, old: str, new: str) -> str:
    """A file's text with new code for old code, in the function or class of this qualified name, or outside of all ("").

    Raises:
        NotFound: the old code is not there exactly once, or the new code has a name that is not known there.
        ValueError: the new code has some of the `...`.
    """
    (scopes, known), olds, news = _parsed(text), ast.parse(old).body, ast.parse(new).body
    is_expression = all(len(code) == 1 and isinstance(code[0], ast.Expr) for code in (olds, news))
    quoted = [one.value for one in olds] if is_expression else olds
    found = []
    for scope in [scope for name, scope in scopes if name == function]:
        matcher = _Matcher(_local(scope), {node.id for node in ast.walk(scope) if isinstance(node, ast.Name)})
        for nodes in _expressions(scope) if is_expression else _statements(scope, len(olds)):
            found += [(nodes, match, matcher) for match in itertools.islice(matcher.matches(quoted, nodes, {}, ()), 1)]
    where = function or "the module"
    if len(found) != 1:
        raise NotFound(f"{where} holds {len(found)} times: {old}")
    nodes, (names, gaps), matcher = found[0]
    code = (filler := _Filler(names, gaps)).visit(ast.Module(news, [])).body
    if 0 < len(filler.gaps) < len(gaps):
        raise ValueError(f"the new code has not every ... of the old: {old}, {new}")
    every = [node for one in code for node in ast.walk(one)]
    if unknown := {node.id for node in every if isinstance(node, ast.Name)} - matcher.local - known - _bound(every):
        raise NotFound(f"{where} has no {', '.join(sorted(unknown))}: {new}")
    written = "\n".join(map(ast.unparse, code))
    return _with(text, nodes, f"({written})" if is_expression else written)


@lru_cache(8)
def _parsed(text: str) -> tuple[list[tuple[str, ast.AST]], set[str]]:
    """The scopes of a file by qualified name, and the names that all of them know."""
    scopes = list(_scopes(tree := ast.parse(text)))
    return scopes, {*dir(builtins), *_bound(_own(tree)) - _local(tree), *dict(scopes)}


def _with(text: str, nodes: list[Any], written: str) -> str:
    """The text with other code in the place of some nodes. Python counts columns in bytes."""
    lines = text.encode().splitlines(keepends=True)
    first, last = nodes[0], nodes[-1]
    before, start = b"".join(lines[: first.lineno - 1]), lines[first.lineno - 1]
    end, after = lines[last.end_lineno - 1][last.end_col_offset :], b"".join(lines[last.end_lineno :])
    if start[first.col_offset :].startswith(b"elif"):
        written = "else:\n" + textwrap.indent(written, "    ")
    if isinstance(first, ast.stmt):
        written = textwrap.indent(written, " " * first.col_offset).lstrip()
    return (before + start[: first.col_offset] + written.encode() + end + after).decode()


class _Matcher:
    """Compares quotations with the code of a function, where only local variables may have other names."""

    def __init__(self, local: set[str], used: set[str]) -> None:
        self.local, self._elsewhere = local, used - local

    def matches(self, old: Any, real: Any, names: _Names, gaps: _Gaps) -> Iterator[_Match]:
        """Every way in which a quotation equals real code: the names of its variables, and the code of each `...`."""
        if _is_gap(old) and isinstance(real, ast.expr):
            yield names, (*gaps, [real])
        elif type(old) is not type(real):
            return
        elif isinstance(old, (list, tuple)):
            yield from self._lists(old, real, names, gaps, has_gaps=isinstance(old, list))
        elif isinstance(old, ast.Dict):
            yield from self._lists(_items(old), _items(real), names, gaps)
        elif isinstance(old, ast.AST):
            own = _NAMES.get(type(old), "")
            together = self._named(getattr(old, own), getattr(real, own), names) if own else names
            if together is not None:
                fields = [name for name in old._fields if name not in (own, "kind", "type_comment")]
                each, other = ([getattr(node, name) for name in fields] for node in (old, real))
                yield from self._lists(each, other, together, gaps, has_gaps=False)
        elif old == real:
            yield names, gaps

    def _lists(self, old: Any, real: Any, names: _Names, gaps: _Gaps, *, has_gaps: bool = True) -> Iterator[_Match]:
        if not old:
            yield from [] if real else [(names, gaps)]
        elif has_gaps and _is_gap(old[0]):
            for end in range(len(real) + 1):
                yield from self._lists(old[1:], real[end:], names, (*gaps, real[:end]))
        elif real:
            for match in self.matches(old[0], real[0], names, gaps):
                yield from self._lists(old[1:], real[1:], *match, has_gaps=has_gaps)

    def _named(self, old: str | None, real: str | None, names: _Names) -> _Names | None:
        """The names with one more; None where it would be another variable."""
        if old is None or real is None:
            return names if old is real else None
        if old != real and (real not in self.local or old in self._elsewhere or old.isupper()):
            return None
        if old in names or real in names.values():
            return names if names.get(old) == real else None
        return {**names, old: real}


class _Filler(ast.NodeTransformer):
    """Writes names, and code for each `...`, into new code."""

    def __init__(self, names: _Names, gaps: _Gaps) -> None:
        self._names, self.gaps = names, [*gaps]

    def visit(self, node: ast.AST) -> Any:
        if _is_gap(node) and self.gaps:
            gap = self.gaps.pop(0)
            return gap[0] if len(gap) == 1 else gap
        if (own := _NAMES.get(type(node))) is not None:
            setattr(node, own, self._names.get(getattr(node, own), getattr(node, own)))
        if not isinstance(node, ast.Dict):
            return super().generic_visit(node)
        pairs: list[Any] = []
        for key, value in _items(node):
            pairs += self.gaps.pop(0) if _is_gap((key, value)) else [(key and self.visit(key), self.visit(value))]
        return ast.Dict([key for key, _ in pairs], [value for _, value in pairs])


def _is_gap(one: Any) -> bool:
    """Whether something of a quotation is `...` or `**...`."""
    if isinstance(one, tuple):
        return one[0] is None and _is_gap(one[1])
    if isinstance(one, ast.Expr) or (isinstance(one, ast.keyword) and one.arg is None):
        return _is_gap(one.value)
    return isinstance(one, ast.Constant) and one.value is ...


def _items(dictionary: ast.Dict) -> list[Any]:
    return list(zip(dictionary.keys, dictionary.values, strict=True))


def _scopes(node: ast.AST, name: str = "") -> Iterator[tuple[str, ast.AST]]:
    """The module, and its classes and functions by qualified name; what is defined in a function belongs to it."""
    yield name, node
    for own in () if isinstance(node, _FUNCTIONS) else _own(node):
        for inner in ast.iter_child_nodes(own):
            if isinstance(inner, _DEFINITIONS):
                yield from _scopes(inner, f"{name}.{inner.name}".lstrip("."))


def _own(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a scope, but not those in an f-string, and in a module or class not its functions and classes."""
    waiting = [scope]
    while waiting:
        yield (node := waiting.pop())
        inner = () if isinstance(node, ast.JoinedStr) else ast.iter_child_nodes(node)
        waiting += (one for one in inner if isinstance(scope, _FUNCTIONS) or not isinstance(one, _DEFINITIONS))


def _local(scope: ast.AST) -> set[str]:
    """The names that may be others: a function's variables; in a module or class those of comprehensions and lambdas."""
    if isinstance(scope, _FUNCTIONS):
        return _bound(node for node in ast.walk(scope) if node is not scope)
    return _bound(node for own in _own(scope) if isinstance(own, (ast.comprehension, ast.Lambda)) for node in ast.walk(own))


def _bound(nodes: Iterable[ast.AST]) -> set[str]:
    """The names that some nodes bind."""
    own = [node for node in nodes if not isinstance(getattr(node, "ctx", None), ast.Load)]
    imported = {(node.asname or node.name).split(".")[0] for node in own if isinstance(node, ast.alias)}
    return imported | {getattr(node, _NAMES[type(node)]) for node in own if type(node) in _NAMES}


def _expressions(scope: ast.AST) -> Iterator[list[Any]]:
    yield from ([node] for node in _own(scope) if isinstance(node, ast.expr))


def _statements(scope: ast.AST, number: int) -> Iterator[list[Any]]:
    """So many statements one after the other."""
    for node in _own(scope):
        for _, block in ast.iter_fields(node):
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                yield from (block[at : at + number] for at in range(len(block) - number + 1))
