"""Hide the secrets in paths and URLs before they are written.

`masked` takes one address, in which any character may belong to the password; `hidden` takes sentences with addresses. If
it is ambiguous which @ ends a password, more is hidden. Both take time proportional to the length of the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple
from urllib.parse import unquote

_SEPARATOR = re.compile(r":(?:\\?/){2}|(?<=[a-z][a-z0-9+.-]):\\?/", re.IGNORECASE)
"""The :// of an address, also with JSON's escapes, or :/ where an address was normalised as a path."""
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*\Z", re.IGNORECASE)
_LONGEST_SCHEME = 32
_NEXT_LINK = re.compile(r"::(?=[a-z][a-z0-9+.-]{0,31}://)", re.IGNORECASE)
"""Between the addresses of a chain, such as zip://*.csv::https://host/x.zip."""
_END_IN_PROSE = re.compile(r"[\s'\"`<>]")
_AUTHORITY_END = re.compile(r"[/?#]")
_WEB_QUERY = re.compile(r"\?|#(?!/)|;(?=[^;=/?#\s]{1,64}=)")
"""The # of #/ is no fragment but begins a path in a page, such as a dashboard."""
_QUERY = re.compile(r"[?#](?=[a-z0-9_%][^?#=/]*=)", re.IGNORECASE)
"""A query in paths, where `?` may also be part of a glob and `#` of a name."""
_AFTER_PORT = "\\.,;:!)]}"
"""Characters after a port in a sentence."""
_INSIDE = frozenset({"zip", "tar", "libarchive", "rar", "file", "local", "lance", "delta"})
"""Schemes of paths in archives or on this machine, which have no user."""
_CONTAINER = frozenset({"abfs", "abfss", "wasb", "wasbs", "az", "adl"})
"""Schemes with a container's name before the @."""
_DATABASE = frozenset({"postgres", "postgresql"})
_OF_A_TABLE = re.compile(r"(?:(?:table|key)=[\w.$-]*(?:&|$|\Z))+")
"""A query that names a table of a database, which is no secret."""
_NAMES = _CONTAINER | {"hf", "github"}
_SLASHED_USER = re.compile(r"[^:?#]+:(?![/:])")
_REPOSITORY_KINDS = frozenset({"datasets", "models", "spaces", "buckets"})
_TOKENS = ("hf_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_")
"""The beginnings of tokens; no name begins so."""
_MASK = "***"
_MOST_CHARACTERS = 100_000
"""The most characters of an error's text that are searched."""
_SHOWN_CHARACTERS = 2_000
_BETWEEN_PIECES = re.compile(r"[:/?#@&\s'\"]+")
_SHORTEST_PIECE = 4
_MOST_PIECES = 256


def masked(source: str) -> str:
    """An address without its user, password, query and fragment; any other path unchanged."""
    return _Scan(source, whole=True).shown()


def hidden(text: str) -> str:
    """A text with all addresses `masked`."""
    return _Scan(text, whole=False).shown()


def without_secrets(value: Any) -> Any:
    """JSON data with all addresses `masked`."""
    if isinstance(value, dict):
        return {masked(key) if isinstance(key, str) else key: without_secrets(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_secrets(inner) for inner in value]
    return masked(value) if isinstance(value, str) else value


def addresses_in(value: Any) -> list[str]:
    """The strings with a secret in JSON data."""
    if isinstance(value, dict):
        return [text for inner in value.values() for text in addresses_in(inner)]
    if isinstance(value, list | tuple):
        return [text for inner in value for text in addresses_in(inner)]
    return [value] if isinstance(value, str) and masked(value) != value else []


def reason(error: BaseException, *sources: str) -> str:
    """The first line of an error without secrets of addresses, those of `sources` in any form."""
    lines = str(error)[:_MOST_CHARACTERS].strip()
    line = next(iter(_known_hidden(lines, sources).splitlines()), "")
    return shortened(hidden(line)) or type(error).__name__


def lines_hidden(text: str, sources: Iterable[str]) -> str:
    """A text of many lines, such as a traceback, without secrets of addresses, those of `sources` in any form."""
    return "\n".join(hidden(line) for line in _known_hidden(text, sources).split("\n"))


def shortened(text: str, characters: int = _SHOWN_CHARACTERS) -> str:
    """A text, without its middle if it is longer than `characters`."""
    if len(text) <= characters:
        return text
    tail = characters // 4
    return f"{text[: characters - tail - 3]} … {text[-tail:]}"


def _known_hidden(text: str, sources: Iterable[str]) -> str:
    """A text without known addresses, whole or in pieces, as libraries quote them."""
    for source in sources:
        scan = _Scan(source, whole=True)
        shown = scan.shown()
        if shown == source:
            continue
        for form in _forms(source):
            text = text.replace(form, shown)
        pieces = {piece for secret in scan.secrets for piece in _pieces(secret)}
        for piece in sorted(pieces, key=lambda piece: (-len(piece), piece))[:_MOST_PIECES]:
            text = text.replace(piece, _MASK)
    return text


def _forms(text: str) -> set[str]:
    """The forms in which a text may be quoted: with and without percent-escapes, and in Python's and JSON's quotes."""
    return {form for variant in (text, unquote(text)) for form in (variant, repr(variant)[1:-1], json.dumps(variant)[1:-1])}


def _pieces(secret: str) -> Iterable[str]:
    """A user with a password, or a query, and its parts that libraries may print."""
    for form in _forms(secret):
        values = [part.partition("=")[2] or part for part in form.split("&")]
        for candidate in (form, *values, *form.split(":", 1)):
            for piece in (candidate, *_BETWEEN_PIECES.split(candidate)):
                if len(piece) >= _SHORTEST_PIECE:
                    yield piece


class _Region(NamedTuple):
    """The longest part of a text that one address, with nested ones, may take."""

    end: int
    last_at: int
    """The last @ in the part; -1 if there is none."""
    last_end_at: int
    """The last @ that does not follow a slash, as in https://host/@name."""


class _Scan:
    """One pass over a text from left to right."""

    def __init__(self, text: str, whole: bool) -> None:
        self._text, self._whole = text, whole
        self._last_at = text.rfind("@")
        self.secrets: list[str] = []
        """The secrets that `shown` has left out."""

    def shown(self) -> str:
        """The text without secrets."""
        text, parts, at = self._text, list[str](), 0
        region, web = _Region(-1, -1, -1), False
        while (separator := _SEPARATOR.search(text, at)) is not None:
            scheme = self._scheme(separator.start())
            if separator.end() > region.end:
                region, web = self._region(separator.end()), False
            web = web or scheme.rpartition("+")[2] in ("http", "https")
            start = separator.end()
            user_end = self._user_end(scheme, start, region)
            if user_end > region.end:  # The password contains characters that would end an address in a sentence.
                region = self._region(user_end)
            parts.append(text[at:start])
            at = start
            if user_end > start:
                self._leave_out(start, user_end)
                parts.append(_MASK)
                at = user_end
            query, end = self._query(web, at, region), len(text) if self._whole else region.end
            if query >= 0 and not (scheme in _DATABASE and _OF_A_TABLE.fullmatch(text[query + 1 : end])):
                self._leave_out(query + 1, end)
                parts.append(text[at : query + 1] + (_MASK if end > query + 1 else ""))
                at = end
        return "".join([*parts, text[at:]])

    def _leave_out(self, start: int, end: int) -> None:
        if self._text[start:end] not in ("", _MASK):
            self.secrets.append(self._text[start:end])

    def _scheme(self, end: int) -> str:
        match = _SCHEME.search(self._text[max(end - _LONGEST_SCHEME, 0) : end])
        return "" if match is None else match[0].lower()

    def _region(self, start: int) -> _Region:
        text = self._text
        match = (_NEXT_LINK if self._whole else _END_IN_PROSE).search(text, start)
        end = len(text) if match is None else match.start()
        last = last_end = text.rfind("@", start, end)
        while last_end > start and text[last_end - 1] == "/":
            last_end = text.rfind("@", start, last_end)
        return _Region(end, last, last_end)

    def _user_end(self, scheme: str, start: int, region: _Region) -> int:
        """The place of the @ after a user and password; `start` if there are none."""
        text = self._text
        match = _AUTHORITY_END.search(text, start, region.end)
        authority = text[start : region.end if match is None else match.start()]
        user, at, host = authority.rpartition("@")
        if scheme in _INSIDE or (at and _is_name(scheme, user, host)):
            return start
        if scheme == "hf" and ":" in user:
            ends = (text.rfind(f"@{kind}/", start, region.end) for kind in _REPOSITORY_KINDS)
            if (end := max(ends)) > start:
                return end
        if at:
            first = start + len(user)
            return max(first, region.last_end_at) if ":" in user and scheme != "hf" else first
        host = authority.rpartition("]")[2] if authority.startswith("[") else authority
        _, colon, port = host.partition(":")
        if authority.startswith("arn:"):
            return start
        if not colon:  # The user may contain a slash before the colon.
            match = _SLASHED_USER.match(text, start, region.last_end_at) if scheme not in _NAMES else None
            return start if match is None else region.last_end_at
        if region.last_at > start:  # The password contains a slash, a question mark or a hash.
            return region.last_at
        if not port or port.rstrip(_AFTER_PORT).isdigit():
            return start
        return self._password_end(start, len(authority), port)

    def _password_end(self, start: int, length: int, port: str) -> int:
        """The end of what seems a password, without an @ in its region."""
        if self._whole:
            last = self._last_at
        else:
            separator = _SEPARATOR.search(self._text, start)
            last = self._text.rfind("@", start, len(self._text) if separator is None else separator.start())
        if last > start:
            return last
        # Names of ports in sentences, such as http://HOST:PORT, are written in capitals or braces.
        return start if port.isupper() or port.startswith(("{", "<", "*", "$")) else start + length

    def _query(self, web: bool, start: int, region: _Region) -> int:
        """The place of the ? or # before a query or fragment, up to the next address; -1 if there is none."""
        separator = _SEPARATOR.search(self._text, start)
        pattern = _WEB_QUERY if web else _QUERY
        query = pattern.search(self._text, start, region.end if separator is None else min(region.end, separator.start()))
        return -1 if query is None else query.start()


def _is_name(scheme: str, user: str, host: str) -> bool:
    """Whether the text before an @ names data and not a user."""
    if scheme in _CONTAINER:
        return ":" not in user
    if scheme == "hf":
        return ":" not in user and host not in _REPOSITORY_KINDS and not _is_token(user)
    return scheme == "github" and "@" not in user and not _is_token(user)


def _is_token(user: str) -> bool:
    return any(part.startswith(_TOKENS) for part in user.lower().split(":"))
