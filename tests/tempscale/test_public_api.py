"""What `import tempscale` promises: names on first use, no weight until then, and no Ray, tables or jobs at all."""

import importlib.util
import runpy
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import torch

import tempscale as ts
from tempscale.optional import needs

PACKAGE = Path(ts.__file__).parent
MODULES = sorted(
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    for path in PACKAGE.rglob("*.py")
    if path.stem not in ("__init__", "__main__")
)


def modules_after(code):
    """Top-level modules that a fresh interpreter holds after running `code`."""
    script = f"{code}\nimport sys\nprint(' '.join(sorted({{name.split('.')[0] for name in sys.modules}})))"
    options = {"capture_output": True, "text": True, "check": True, "cwd": PACKAGE.parent, "timeout": 120}
    done = subprocess.run([sys.executable, "-c", script], **options)
    return set(done.stdout.split())


def test_every_promised_name_is_there():
    assert {"Encoder", "Temperature", "attach", "detach", "pairwise_socm", "socm", "verify"} <= set(ts.__all__)
    assert dir(ts) == list(ts.__all__) == sorted(ts.__all__)
    for name in ts.__all__:
        assert callable(getattr(ts, name)), name
        assert getattr(ts, name).__doc__, name


def test_a_name_that_is_not_there_is_an_ordinary_error():
    with pytest.raises(AttributeError, match="'sock'"):
        ts.sock  # noqa: B018
    assert not hasattr(ts, "_no_such_thing")


def test_a_function_keeps_its_name_whatever_module_is_imported():
    code = """
import sys
import types
import tempscale as ts
import tempscale.second_order.socm, tempscale.temperature.fold, tempscale.temperature.verify
assert all(isinstance(getattr(ts, name), types.FunctionType) for name in ("socm", "fold", "verify"))
assert ts.socm is sys.modules["tempscale.measures"].socm
"""
    modules_after(code)


@pytest.mark.parametrize(
    "code",
    [
        "import tempscale",
        "from tempscale import Temperature; Temperature(0.8)",
        "import tempscale.model.checkpoint",
        "import tempscale.collapse.tiles",
    ],
)
def test_light_modules_import_no_torch(code):
    found = modules_after(code)
    assert "tempscale" in found
    assert not found & {"torch", "numpy", "scipy", "transformers", "sentence_transformers", "ray", "pyarrow"}


def test_no_module_imports_transformers_before_a_model_is_loaded():
    # The kernel in Triton is imported where CUDA is, and Triton need not be installed; mteb imports transformers itself.
    found = modules_after(
        "\n".join(f"import tempscale.{module}" for module in MODULES if module not in ("collapse.fused", "model.mteb_model"))
    )
    assert "torch" in found
    assert not found & {"transformers", "sentence_transformers", "ray", "pyarrow", "tempscale_jobs", "datasets", "polars"}


def without(monkeypatch, name):
    """As if a library were not installed."""
    for module in [*sys.modules]:
        if module.partition(".")[0] == name:
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, name, None)


def test_a_library_that_is_missing_is_named_with_what_needs_it(monkeypatch, tiny_folder):
    folder = tiny_folder("bert")
    without(monkeypatch, "sentence_transformers")
    with pytest.raises(ImportError, match=r"ts\.load.*sentence"):
        ts.load(folder)
    without(monkeypatch, "mteb")
    monkeypatch.delitem(sys.modules, "tempscale.model.mteb_model", raising=False)
    with pytest.raises(ImportError, match=r"ts\.MtebModel.*mteb"):
        importlib.import_module("tempscale.model.mteb_model")


def test_a_checkout_that_is_not_installed_says_as_much(monkeypatch):
    def unknown(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", unknown)
    assert "pip install" in needs("this test", "polars")


def test_the_package_alone_has_no_command(monkeypatch, capsys):
    monkeypatch.setattr(sys, "path", [str(PACKAGE), *sys.path])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(PACKAGE / "__main__.py"), run_name="__main__")
    assert ended.value.code == 2
    assert "tempscale_jobs" in capsys.readouterr().err


def test_the_example_of_the_package_runs(tiny_folder):
    from transformers import AutoModel

    folder = tiny_folder()
    model = AutoModel.from_pretrained(folder)
    ts.attach(model, 0.8)
    ts.verify(model)
    ts.detach(model)
    out = ts.Encoder.load(folder, temperature=0.8).encode(["a b c", "d e"], factors=True)
    assert out.embeddings.shape == (2, 32)
    assert out.moments.spread.shape == (2,)
    one, other = torch.randn(5, 8) + 1, torch.randn(7, 8) + 1
    d_mu, d_sigma, value = ts.socm(one, other)
    assert float(value) == pytest.approx(float((1 - d_mu) * d_sigma))
    assert ts.pairwise_socm([one, other]).socm[0, 1].item() == pytest.approx(float(value), abs=1e-5)
