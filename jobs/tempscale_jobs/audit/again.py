"""The command that measures the same corpus and model again, with something changed."""

from __future__ import annotations

import shlex
from typing import Any

from pydantic import BaseModel

from tempscale_jobs.config.audit import AuditConfig
from tempscale_jobs.config.option import Setting, settings
from tempscale_jobs.config.sections import Corpus
from tempscale_jobs.config.tune import TuneConfig

_COMMANDS: dict[str, type[BaseModel]] = {"audit": AuditConfig, "tune": TuneConfig}
_REPEATED = {"corpus", "queries", "embedding", "analysis"}
_SIZES = {"socm_groups", "socm_se", "socm_sample"}
"""How much is measured, which another run need not repeat."""
_WITHOUT_OPTION = ("bits", "scale", "max_characters")
"""Settings of a corpus that only a configuration file gives."""


def again(run: dict[str, Any], model: str | None, command: str, *options: str, beside: str = "", whole: bool = False) -> str:
    """A command on the corpus and model of a finished run, under its settings.

    Args:
        run: the content of run.json.
        model: the label of the model; None for all of the run.
        command: audit or tune.
        options: what is changed; options among them are not repeated.
        beside: what the run's folder is called besides, because a folder holds one run; the empty text for the default.
        whole: whether all of the corpus is measured, where the run took a sample.
    """
    config = run["config"]
    words = ["tempscale", command]
    corpus = config.get("corpus", {})
    fields = Corpus.model_fields
    if any(corpus.get(name, fields[name].default) != fields[name].default for name in _WITHOUT_OPTION):
        words.append("CONFIG.toml")
    for setting in settings(_COMMANDS[command]):
        names = {option.typed for option, _ in setting.options}
        sized = setting.path == ("corpus", "sample") and (whole or command == "tune")
        if setting.path[0] in _REPEATED and setting.path[-1] not in _SIZES and not sized and not names & set(options):
            words += _repeated(setting, _at(config, setting.path), command, run, model)
    if beside:
        words += ["--out", f"{config['out']}-{beside}"]
    return shlex.join([*words, *options])


def _at(config: dict[str, Any], path: tuple[str, ...]) -> Any:
    for name in path:
        config = (config or {}).get(name)  # type: ignore[assignment]
    return config


def _repeated(setting: Setting, value: Any, command: str, run: dict[str, Any], model: str | None) -> list[str]:
    """The options that give a setting the value that it had; none where that is its default."""
    name, option = setting.path[-1], setting.options[0][0]
    if setting.path == ("corpus", "source"):
        return [option.typed, run["corpus"]["source"]]
    if name == "models":
        named = value if model is None else value and [value[list(run["models"]).index(model)]]
        return [word for one in named or [] for word in (option.typed, one)]
    if value is None or value == setting.field.get_default(call_default_factory=True):
        return []
    if name == "temperatures":  # What tune tries is its own; a schedule is a file of the user's.
        taus = [] if command == "tune" else value
        return [
            word for tau in taus for word in (("--temperature", "FILE") if isinstance(tau, dict) else ("--tau", str(tau)))
        ]
    if option.sets is not None:
        return [option.typed]
    if isinstance(value, bool):
        return [option.flag.split("/")[0 if value else -1]]
    return [option.typed, ",".join(map(str, value)) if isinstance(value, list) else str(value)]
