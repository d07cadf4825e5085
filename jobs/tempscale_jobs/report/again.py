"""The command that goes on from a finished run, on its corpus or tasks and its model; it runs as it is printed."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from tempscale_jobs.config.audit import AuditConfig
from tempscale_jobs.config.diagnose import DiagnoseConfig
from tempscale_jobs.config.evaluate import EvaluateConfig
from tempscale_jobs.config.nights import NIGHT
from tempscale_jobs.config.option import Option, Setting, settings
from tempscale_jobs.config.sections import Corpus
from tempscale_jobs.config.tune import TuneConfig
from tempscale_jobs.report.shell import folder_for, shell_line

_COMMANDS: dict[str, type[BaseModel]] = {
    "audit": AuditConfig, "tune": TuneConfig, "diagnose": DiagnoseConfig, "evaluate": EvaluateConfig,
}  # fmt: skip
_SIZES = {"--socm-groups", "--socm-se", "--socm-sample"}
"""How much is measured, which another run need not repeat."""
_OF_A_NIGHT = {"--out", "--night", "--baseline", "--history"}
"""What another run beside a night must not share with it."""
_OF_ONE_NIGHT = {"--night", "--quick"}
"""What the nights after it do not repeat."""
_REPEATED = {"corpus", "queries", "results", "by", "embedding", "analysis", "choosing", "diagnosis", "seed", "keep_text"}
"""The sections that decide what is measured."""
_HIDDEN = "***"
"""What stands for a secret."""
_WITHOUT_OPTION = ("bits", "scale", "max_characters")
"""Settings of a corpus that only a configuration file gives."""


def again(run: dict[str, Any], model: str | None, command: str, *changed: str, beside: str) -> str:
    """A command on the corpus and model of a finished run, under its settings; empty where no line can say it.

    Args:
        run: the content of run.json of an audit, a tune, a diagnosis or an evaluation.
        model: the label of the model; None for all of the run.
        command: one of these.
        changed: the options that are changed, with their values.
        beside: what the new folder's name says, with /{night} behind it for nights.
    """
    config, started = run["config"], run.get("command_line") or {"file": None, "options": {}}
    run_command = run.get("command", "audit")
    file = started["file"] if command == run_command else None
    if file is not None and config.get("quick") and "--quick" not in started["options"]:
        return ""  # The file asks for a quick audit, and no option for a whole one.
    corpus, fields = config.get("corpus") or {}, Corpus.model_fields
    source = corpus.get("source") if run_command == "tune" else run.get("corpus", {}).get("source")
    if source is None and not (command == "tune" and started["options"].get("--task")):
        return ""
    if (
        file is None
        and command == run_command
        and any(corpus.get(n, fields[n].default) != fields[n].default for n in _WITHOUT_OPTION)
    ):
        return ""
    left_out = _left_out(command, changed)
    if command == run_command == "audit" and _is_quick_start(run):
        left_out |= {"--corpus", "--sample"}  # Without them it has the quick start's sizes, and takes as long.
    words = ["tempscale", command, *([] if file is None else [_path(file)])]
    by_option = {option.typed: setting for setting in settings(_COMMANDS[run_command]) for option, _ in setting.options}
    for setting in settings(_COMMANDS[command]):
        options = [option for option, _ in setting.options if option.typed not in left_out]
        measured = by_option.get(options[0].typed) if options else None
        if measured is None:
            continue
        typed = [word for option in options for word in started["options"].get(option.typed, [])]
        if measured.path == ("corpus", "source") and source is not None and (file is None or typed):
            words += [options[0].typed, source]  # With the night's date where {night} was in it.
        elif measured.path[-1] == "models" and model is not None and (file is None or typed or len(run["models"]) > 1):
            words += _of_model(config, run, model, options[0])
        elif typed or file is not None:
            words += typed
        elif measured.path[0] in _REPEATED:
            words += _repeated(measured, _at(config, measured.path))
    words += changed
    if file is not None and config.get("night") is not None:
        words += ["--night", config["night"]]
    name, slash, night = beside.partition("/")
    out = folder_for(words, config["out"], name) + slash + night
    words += ["--out", out]
    if file is not None and NIGHT not in beside:  # Its [record] may name that of the nights.
        words += ["--history", f"{out}/history"]
    return "" if hides(*words) else shell_line(words)


def repeated(run: dict[str, Any]) -> str:
    """The command line of a finished audit as it was typed, but for the date; empty where it is not known."""
    started = run.get("command_line")
    if started is None:
        return ""
    words = ["tempscale", "audit", *([] if started["file"] is None else [_path(started["file"])])]
    words += [word for option, typed in started["options"].items() if option not in _OF_ONE_NIGHT for word in typed]
    return "" if hides(*words) else shell_line(words)


def hides(*words: str) -> bool:
    """Whether a secret is hidden in one of some words: no line with it would run."""
    return any(_HIDDEN in word for word in words)


def _is_quick_start(run: dict[str, Any]) -> bool:
    """Whether an audit was typed without a corpus and without a number of texts."""
    started = run.get("command_line")
    if started is None or started["file"] is not None:
        return False
    return not {*started["options"]} & {"--corpus", "--sample", "--limit"}


def _left_out(command: str, changed: tuple[str, ...]) -> set[str]:
    """The options that are not repeated: what is suggested is a whole run."""
    left_out = _OF_A_NIGHT | {"--quick"} | set(changed)
    if "--sample" in changed:
        left_out.add("--limit")
    if command == "tune":  # It tries candidates of its own, on as many texts as it needs.
        left_out |= {"--sample", "--tau", "--temperature"}
    return left_out


def _path(file: str) -> str:
    """A file as an argument, which must not look like an option."""
    return f"./{file}" if file.startswith("-") else file


def _of_model(config: dict[str, Any], run: dict[str, Any], model: str, option: Option) -> list[str]:
    """The option that names one model of the run; none for the default one."""
    named = config.get("embedding", {}).get("models") or []
    return [option.typed, named[list(run["models"]).index(model)]] if named else []


def _at(config: dict[str, Any], path: tuple[str, ...]) -> Any:
    for name in path:
        config = (config or {}).get(name)  # type: ignore[assignment]
    return config


def _repeated(setting: Setting, value: Any) -> list[str]:
    """The options that give a setting the value that it had; none where that is its default, or no option can give it."""
    option = setting.options[0][0]
    if option.typed in _SIZES or value is None or value == setting.field.get_default(call_default_factory=True):
        return []
    if option.sets is not None:
        return [option.typed]
    if isinstance(value, bool):
        return [option.flag.split("/")[0 if value else -1]]
    if isinstance(value, list) and option.kind is not str:
        return [word for part in value if not isinstance(part, dict) for word in (option.typed, str(part))]
    return [option.typed, ",".join(map(str, value)) if isinstance(value, list) else str(value)]
