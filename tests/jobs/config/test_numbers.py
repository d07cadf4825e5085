"""Numbers that are none, or that no computation can hold: each setting of each command refuses them by its name."""

import math
import typing

import pytest
from pydantic import BaseModel

from tempscale_jobs.config.audit import AuditConfig
from tempscale_jobs.config.correct import CorrectConfig
from tempscale_jobs.config.diagnose import DiagnoseConfig
from tempscale_jobs.config.evaluate import EvaluateConfig
from tempscale_jobs.config.given import read_toml
from tempscale_jobs.config.pairs import PairsConfig
from tempscale_jobs.config.strict import checked
from tempscale_jobs.config.tune import TuneConfig
from tempscale_jobs.errors import UsageError

COMMANDS = (AuditConfig, PairsConfig, DiagnoseConfig, EvaluateConfig, TuneConfig, CorrectConfig)
NOT_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
TOO_LARGE = {"10^30": 10**30, "-10^30": -(10**30), "2^63": 2**63, "4,000 digits": 10**4000, "7,000 digits": 16**6000}


def sections(annotation):
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in typing.get_args(annotation):
        yield from sections(part)


def holds(annotation, kind):
    return annotation is kind or any(holds(part, kind) for part in typing.get_args(annotation))


def fields(command, kind, path=()):
    """The paths of all settings whose value may be, or may contain, a number of a kind."""
    for name, field in command.model_fields.items():
        inner = list(sections(field.annotation))
        for section in inner:
            yield from fields(section, kind, (*path, name))
        if not inner and holds(field.annotation, kind):
            yield *path, name


def refused(command, path, value):
    for name in reversed(path):
        value = {name: value}
    with pytest.raises(UsageError) as error:
        checked(command, value)
    return str(error.value)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("number", NOT_FINITE)
def test_every_setting_refuses_by_name_what_is_not_finite(command, number):
    value = NOT_FINITE[number]
    for path in fields(command, float):
        for given in (value, [value], {"constant": value}, {"cosine_mean": value}):
            assert path[-1] in refused(command, path, given)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("number", TOO_LARGE)
def test_every_setting_refuses_by_name_a_whole_number_that_64_bits_do_not_hold(command, number):
    paths = {*fields(command, int), *fields(command, float)}
    assert ("execution", "workers") in paths
    for path in paths:
        for given in (TOO_LARGE[number], [TOO_LARGE[number]], {"cosine_mean": TOO_LARGE[number]}):
            sentence = refused(command, path, given)
            assert path[-1] in sentence
            assert len(sentence) < 300


def test_the_fields_that_are_tried_are_those_with_numbers():
    assert {("gate", "false_alarms"), ("gate", "drift"), ("corpus", "scale")} < {*fields(AuditConfig, float)}
    assert {("seed",), ("corpus", "sample"), ("queries", "limit")} < {*fields(AuditConfig, int)}


def test_the_largest_whole_number_is_one():
    assert checked(AuditConfig, {"seed": 2**63 - 1}).seed == 2**63 - 1


def test_a_negative_zero_is_zero():
    found = checked(AuditConfig, {"gate": {"thresholds": ["collapse_gap >= -0"], "drift": {"cosine_mean": -0.0}}})
    assert found.gate.read_thresholds()[0].holds(0.0)
    with pytest.raises(UsageError, match="twice"):
        checked(AuditConfig, {"gate": {"thresholds": ["collapse_gap >= -0", "collapse_gap >= 0"]}})


WRITTEN = {
    "a size of 5,000 digits": "[corpus]\nsample = " + "1" * 5000,
    "a size in hexadecimal": "[corpus]\nsample = 0x" + "f" * 5000,
    "a limit of 1e999": '[gate]\nthresholds = ["texts >= 1e999"]',
    "a limit of 5,000 digits": '[gate]\nthresholds = ["texts >= ' + "1" * 5000 + '"]',
    "a size of a drift of 1e999": "[gate]\ndrift = {cosine_mean = 1e999}",
    "a share that is no number": "[gate]\nfalse_alarms = nan",
}


@pytest.mark.parametrize("what", WRITTEN)
def test_a_file_with_such_a_number_is_one_short_sentence(what, tmp_path):
    file = tmp_path / "nightly.toml"
    file.write_text(WRITTEN[what])
    with pytest.raises(UsageError) as error:
        checked(AuditConfig, read_toml(str(file)))
    assert len(str(error.value)) < 400
    assert "\n" not in str(error.value)
