"""Paths and URLs as they may be written down: without the secrets in them."""

from __future__ import annotations

import re

from tempscale.checkpoint import first_line

_USER = re.compile(r"\b(?!(?:hf|git|github|abfss?)://)([a-z][a-z0-9+.-]*://)[^/?#]*@", re.IGNORECASE)
"""What may be a name and a password. In the schemes left out, what stands before the @ names a repository or container."""
_WEB_QUERY = re.compile(r"(https?://[^?#]*[?#]).*", re.IGNORECASE | re.DOTALL)
_QUERY = re.compile(r"(://[^?]*\?)[\w.%~-]+=.*", re.DOTALL)
"""A query where `?` may also be part of a glob."""


def shown(source: str) -> str:
    """A path or URL as it may be written down: a URL without its user, password, query and fragment; all else as it is."""
    without_user = _USER.sub(r"\1***@", source)
    return _QUERY.sub(r"\1***", _WEB_QUERY.sub(r"\1***", without_user))


def reason(error: BaseException, source: str) -> str:
    """The first line of an error, without the secrets of URLs in it."""
    line = first_line(error).replace(source, shown(source))
    return re.sub(r"[\w.+:-]+://[^\s'\"<>]+", lambda url: shown(url[0]), line)
