"""Scores in the layout of mteb's own results, so that its tools read them: `mteb.ResultCache('RUN/mteb').load_results()`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jobs.tasks import Evaluation, Unit, folder

FOLDER = "mteb/results"


def write(run: Evaluation, units: Sequence[Unit], missing: Mapping[tuple[str, str, str], str]) -> None:
    """Write one result a cell; a model under a temperature is a model of its own there.

    Args:
        run: the run.
        units: its tasks.
        missing: the cells that are not there.
    """
    from mteb.models.model_meta import ModelMeta

    run.storage.remove(FOLDER)  # Of an earlier attempt, whose files may have changed.
    for model in run.models:
        for temperature in run.temperatures:
            name = f"tempscale/{model.label}_tau-{temperature.slug}"
            at = f"{FOLDER}/{name.replace('/', '__')}/{model.fingerprint}"
            here = [u for u in units if temperature in u.temperatures(run)]
            found = [u for u in here if (model.label, temperature.canonical, u.name) not in missing]
            for unit in found:
                result = run.storage.read_json(f"{folder(run, model, temperature, unit)}/result.json")["mteb"]
                run.storage.write_json(f"{at}/{unit.slug}.json", result, durable=False)
            if found:
                facts = {"name": name, "revision": model.fingerprint, "framework": ["PyTorch"]}
                meta = ModelMeta.create_empty(facts)
                run.storage.write_json(f"{at}/model_meta.json", meta.to_dict(), durable=False)
