"""Paths and URLs without the secrets in them, so that they can be written down."""

from __future__ import annotations

import re

from tempscale.model.checkpoint import first_line

_USER = re.compile(r"\b(?!(?:hf|git|github|abfss?)://)([a-z][a-z0-9+.-]*://)[^/?#]*@", re.IGNORECASE)
"""A possible user and password. In the excluded schemes, the text before the @ names a repository or container."""
_WEB_QUERY = re.compile(r"(https?://[^?#]*[?#]).*", re.IGNORECASE | re.DOTALL)
_QUERY = re.compile(r"(://[^?]*\?)[\w.%~-]+=.*", re.DOTALL)
"""A query where `?` may also be part of a glob."""


def masked(source: str) -> str:
    """A URL without its user, password, query and fragment; any other path unchanged."""
    without_user = _USER.sub(r"\1***@", source)
    return _QUERY.sub(r"\1***", _WEB_QUERY.sub(r"\1***", without_user))


def reason(error: BaseException, source: str) -> str:
    """The first line of an error, without the secrets of the URLs in it."""
    line = first_line(error).replace(source, masked(source))
    return re.sub(r"[\w.+:-]+://[^\s'\"<>]+", lambda url: masked(url[0]), line)
