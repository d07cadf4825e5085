"""Addresses without their secrets: every kind of address, drawn passwords, sentences with them, and texts without an end."""

import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tempscale_jobs import urls
from tempscale_jobs.errors import Damaged, IncompleteRun, UsageError
from tempscale_jobs.report.screen import Screen

ADDRESSES = (
    "s3://{}@bucket/path", "https://{}@host/x.jsonl", "HTTPS://{}@host:8443/x?next=1", "hf://{}@datasets/name/x.parquet",
    "git://{}@host/repository", "git+https://{}@host/repository.git", "sftp://{}@host/path", "ftp://{}@host:21/path",
    "gs://{}@bucket/path", "abfss://{}@account.dfs.core.windows.net/path", "postgres://{}@host/db", "ray://{}@head:10001",
    "simplecache::s3://{}@bucket/x", "filecache::https://{}@host/x", "zip://*.csv::https://{}@host/x.zip",
)  # fmt: skip
AFTER = ("https://host/x?X-Amz-Signature={}", "https://host/x#access_token={}", "s3://bucket/part-?.parquet?token={}",
         "abfs://box@account.net/x?sv=1&sig={}", "postgres://host/db?password={}", "gs://bucket/x#sig={}",
         "simplecache::https://host/x.csv?a={}")  # fmt: skip
SECRETS = st.text(st.sampled_from("abXY019/?#@:&=+%.~ -_'\"<>(){}[]\\|;,!$"), min_size=1, max_size=20).map(
    lambda text: f"<S3cret{text}S3cret>"
)
"""Each begins and ends with a word that nothing else has."""


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("s3://KEY:SECRET/WITH/SLASH@bucket/path", "s3://***@bucket/path"),
        ("https://user:pa/ss@host/x", "https://***@host/x"),
        ("postgres://user:pa?table=ss@host/x?table=s.t&key=id", "postgres://***@host/x?table=s.t&key=id"),
        ("postgres://host/x?table=t&password=zzz", "postgres://host/x?***"),
        ("https://host/x?table=t", "https://host/x?***"),
        ("https://user:pa?ss@host/x?t=1", "https://***@host/x?***"),
        ("https://user:pa#ss@host/x", "https://***@host/x"),
        ("https://user:12/3@host/x", "https://***@host/x"),
        ("https://user:p@ss/word@host/x", "https://***@host/x"),
        ("https://user:a%2Fb c@host/x", "https://***@host/x"),
        ("https://user:a://b@host/x", "https://***@host/x"),
        ("https://user:a::b@host/x", "https://***@host/x"),
        ("HTTPS://TOKEN@HOST/x", "HTTPS://***@HOST/x"),
        ("redis://:secret@host:6379/0", "redis://***@host:6379/0"),
        ("hf://user:token@datasets/a/b@main/x", "hf://***@datasets/a/b@main/x"),
        ("hf://token@datasets/a/b@main/x", "hf://***@datasets/a/b@main/x"),
        ("git://user:token@host/r", "git://***@host/r"),
        ("github://user:ghp_token@main/x", "github://***@main/x"),
        ("abfss://box:key@account/x", "abfss://***@account/x"),
        ("zip://a@b.csv::https://u:p@host/x.zip", "zip://a@b.csv::https://***@host/x.zip"),
        ("s3://bucket/part-?/x.parquet?token=abc", "s3://bucket/part-?/x.parquet?***"),
        ("s3://bucket/x#sig=abc", "s3://bucket/x#***"),
        ("s3://a/b:SECRET@bucket/x", "s3://***@bucket/x"),
        ("https://to/ken:SECRET@host/x", "https://***@host/x"),
        ("hf://user:pa@/ss@datasets/x/y", "hf://***@datasets/x/y"),
        ("hf://user:pa@?ss@datasets/x@main/y", "hf://***@datasets/x@main/y"),
        ("https://host/x;token=SECRET", "https://host/x;***"),
        ("s3:/KEY:SECRET@bucket/x.toml", "s3:/***@bucket/x.toml"),
        ("https:/user:pass@host/x?a=1", "https:/***@host/x?***"),
        *((same, same) for same in (
            "hf://datasets/NAME@REV/x", "hf://name@refs%2Fpr%2F1/x", "abfss://box@account.dfs.core.windows.net/a@b/x",
            "C:/x", "C:/me@work/x", "lance:/me@work/x", "s3://b/part-?.parquet", "s3://b/part-?-year=2024.parquet",
            "/data/a@b/x?y=1", "./a:b@c", "s3://bucket/part-?/year=2024/x", "s3://bucket/file#1.parquet",
            "s3://arn:aws:s3:us-east-1:123:accesspoint/x", "http://[::1]:8265/x", "http://head:8265", "zip://a@b.csv::/x.zip",
            "file:///home/me@work/x", "https://example.org/@name/x",
            "http://head:8265/#/jobs/name",
        )),
    ],
)  # fmt: skip
def test_an_address_is_shown_without_its_secrets_and_with_all_else(source, expected):
    assert urls.masked(source) == expected
    assert urls.masked(expected) == expected


def leaks(text, secret):
    """Whether a text has a part of a secret: its beginning, its end or the whole."""
    return "S3cret" in text or secret in text


@settings(max_examples=300, deadline=None)
@given(SECRETS, st.sampled_from(ADDRESSES), st.sampled_from(("KEY", "user.name", "", "me%40work")))
def test_no_drawn_password_is_in_what_is_shown_of_an_address(secret, form, user):
    # Right after a / of a path an @ begins a name, such as in https://host/@name.
    address = form.format(f"{user}:{secret}".replace("/@", "/"))
    shown = urls.masked(address)
    assert not leaks(shown, secret)
    assert urls.masked(shown) == shown
    assert urls.addresses_in({"a": [address, "x"], "b": {"c": address}, "d": "s3://b/x"}) == [address, address]
    for signed in AFTER:
        assert not leaks(urls.masked(signed.format(secret)), secret)


@settings(max_examples=200, deadline=None)
@given(SECRETS, st.sampled_from(ADDRESSES + AFTER))
def test_an_error_about_a_known_address_quotes_nothing_of_its_secrets(secret, form):
    secret = f"KEY:{secret}".replace("/@", "/") if form in ADDRESSES else secret
    address = form.format(secret)
    for text in (f"no '{address}' here", f"no {address!r} here", f"{secret} is wrong", json.dumps({"url": address})):
        assert "S3cret" not in urls.reason(OSError(text), address)


WORDS = ("pa/ss", "p?a", "p#a", "a:b", "pa%20s", "a@b", "s3cret", "x/@/y"[:2])


@pytest.mark.parametrize("password", WORDS)
@pytest.mark.parametrize(
    "around",
    ["cannot open {}", "'{}' is not there", '{{"source": "{}", "rows": 3}}', "({})", "[{}]", "<{}>", "{}, {}; {}",
     "see {} and hf://datasets/a@b/x", "`{}`", "a\t{}\tb"],
)  # fmt: skip
def test_addresses_in_sentences_are_shown_without_secrets(password, around):
    address = f"https://KEY:{password}zzz@host/x"
    shown = urls.hidden(around.format(*[address] * 3))
    assert "zzz" not in shown
    assert "KEY" not in shown
    assert shown.count("https://***@host/x") == around.count("{}") - around.count("{{}")
    assert ("hf://datasets/a@b/x" in around) == ("hf://datasets/a@b/x" in shown)


@pytest.mark.parametrize(
    "text",
    [
        "see http://HEAD:8265. Then",
        "either/or: this/that, me@work",
        "on C:/x and D:/y@z",
        "one:/two",
        "10:/20@x",
        "http://head:8265, mail a@b.org",
        "give http://HOST:PORT",
        "no address: a@b?c=d",
        "",
    ],
)
def test_sentences_without_secrets_stay_as_they_are(text):
    assert urls.hidden(text) == text


@pytest.mark.parametrize("password", ["pa zzz", 'pa"zzz', "pa,zzz zzz", "pa\tzzz"])
def test_a_password_with_what_ends_an_address_in_a_sentence_is_hidden_whole(password):
    assert urls.hidden(f"cannot open https://KEY:{password}@host/x today") == "cannot open https://***@host/x today"


@pytest.mark.parametrize("kind", [UsageError, IncompleteRun, Damaged])
def test_errors_and_the_screen_show_no_secret_and_are_short(kind, capsys):
    address = "https://user:pa/zzz@host/x?token=zzz"
    assert "zzz" not in str(kind(f"'{address}' is not there"))
    assert "zzz" not in str(kind(f"'{address}' is not there").alone())
    long = str(kind(f"'{'x' * 10**6}' is wrong; do this"))
    assert len(long) <= 2_000
    assert long.endswith("do this")
    Screen().print(f"reads {address}")
    assert "zzz" not in capsys.readouterr().out


def test_pieces_into_which_libraries_cut_a_known_address_are_hidden():
    address = "https://user:sec1/sec2%3Fsec3@host/x?sig=sec4%2Bsec5"
    for text in ("Port could not be cast to integer value as 'sec1'", "no bucket 'user:sec1'", "sec2?sec3 fails",
                 "sec4+sec5", "https://user:sec1 sec2"):  # fmt: skip
        assert "sec" not in urls.reason(ValueError(text), address), text
    shown = urls.lines_hidden(f"Traceback:\n  open('{address}')\nValueError: sec1", [address])
    assert "sec" not in shown
    assert shown.count("\n") == 2


_ENDLESS = """
import sys
from tempscale_jobs import urls
for unit in ("a://", "a", "a:b", "s://a:b/", "@", "/@", "https://u:p@h/?", "x::s3://", "x::s3://a:b", "?a", "#=", "'https://u:p",
             "https://u:p ", " a://b:c", "hf://", "://@", ":\\\\/\\\\/", "a+", "s3://a:b@c/", "\\n"):
    for size in (10**5, 10**6):
        text = (unit * size)[:size]
        urls.masked(text)
        urls.hidden(text)
        urls.reason(ValueError(text), "https://user:password@host")
print("ended")
"""


@pytest.mark.soak
def test_texts_without_an_end_take_time_in_proportion_to_their_length():
    """Ten times as long a text: where the time is quadratic, one of them alone takes hours."""
    ended = subprocess.run([sys.executable, "-c", _ENDLESS], capture_output=True, text=True, timeout=540, check=True)
    assert ended.stdout == "ended\n"


_LONG = """
import sys
from pathlib import Path
from tempscale.correction.recipes import CorrectionError, Recipe
from tempscale_jobs.config.nights import Gate
from tempscale_jobs.corpus import readers
from tempscale_jobs.errors import UsageError, visible
size = 10**5
for text in ("a<" + "1" * size + "x", " " * size, "a" * size + "<", "a<1" + " " * size + "x", "a" + " " * size + "x",
             "(" * size):
    for refused in (lambda: Gate(thresholds=[text]), lambda: Recipe.of(text)):
        try:
            refused()
        except (ValueError, CorrectionError):
            pass
    visible(text)
try:
    readers.check_columns([text * 3, "https://u:p@h/" * size], "a", readers.Columns({"text": "--text-column"}, {}, {}))
except UsageError as error:
    assert len(str(error)) <= 2_000
print("ended")
"""


def test_long_names_thresholds_and_recipes_are_refused_in_time():
    ended = subprocess.run([sys.executable, "-c", _LONG], capture_output=True, text=True, timeout=240, check=False)
    assert (ended.stdout, ended.stderr) == ("ended\n", "")
