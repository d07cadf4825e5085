"""What `import tempscale` promises: names on first use, no weight until then, and no Ray, tables or jobs at all."""

import ast
import importlib
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch

import tempscale as ts

PACKAGE = Path(ts.__file__).parent
MODULES = sorted(path.stem for path in PACKAGE.glob("*.py") if path.stem != "__init__")


def modules_after(code):
    """Top-level modules that a fresh interpreter holds after running `code`."""
    script = f"{code}\nimport sys\nprint(' '.join(sorted({{name.split('.')[0] for name in sys.modules}})))"
    options = {"capture_output": True, "text": True, "check": True, "cwd": PACKAGE.parent, "timeout": 120}
    done = subprocess.run([sys.executable, "-c", script], **options)
    return set(done.stdout.split())


def test_every_promised_name_is_there():
    assert {"Encoder", "Temperature", "attach", "detach", "pairwise_socm", "socm", "verify"} <= set(ts.__all__)
    assert list(ts.__all__) == sorted(ts.__all__)
    for name in ts.__all__:
        assert callable(getattr(ts, name)), name
        assert getattr(ts, name).__doc__, name


def test_a_name_that_is_not_there_is_an_ordinary_error():
    with pytest.raises(AttributeError, match="module 'tempscale' has no attribute 'sock'"):
        ts.sock  # noqa: B018
    assert not hasattr(ts, "_no_such_thing")


def test_the_function_socm_stays_the_function_whatever_is_imported():
    code = """
import types
import tempscale as ts
import tempscale.socm
assert isinstance(ts.socm, types.FunctionType), ts.socm
from tempscale.socm import socm_tile
from tempscale import socm
import tempscale.socm as module
assert ts.socm is socm is sys.modules['tempscale.socm'].socm
"""
    modules_after("import sys\n" + code)


def test_the_module_socm_can_still_be_reached():
    module = importlib.import_module("tempscale.socm")
    assert isinstance(module, types.ModuleType)
    assert ts.socm is module.socm


def test_other_modules_are_attributes_as_usual():
    import tempscale.length

    assert isinstance(tempscale.length, types.ModuleType)


def test_importing_the_package_costs_nothing():
    before = modules_after("")
    found = modules_after("import tempscale")
    assert not found & {"torch", "numpy", "scipy", "transformers", "sentence_transformers", "ray", "pyarrow"}
    assert "tempscale" in found - before


@pytest.mark.parametrize(
    "code", ["from tempscale import Temperature; Temperature(0.8)", "import tempscale.checkpoint", "import tempscale.tiles"]
)
def test_light_modules_import_no_torch(code):
    assert not modules_after(code) & {"torch", "transformers", "numpy"}


def test_no_module_imports_transformers_before_a_model_is_loaded():
    found = modules_after("\n".join(f"import tempscale.{module}" for module in MODULES))
    assert "torch" in found
    assert not found & {"transformers", "sentence_transformers", "ray", "pyarrow", "jobs", "datasets", "polars"}


@pytest.mark.parametrize("module", MODULES)
def test_the_science_imports_neither_ray_nor_tables_nor_jobs(module):
    imported = set()
    for node in ast.walk(ast.parse((PACKAGE / f"{module}.py").read_text("utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add(node.module.split(".")[0])
    allowed = {"torch", "numpy", "scipy", "transformers", "huggingface_hub", "safetensors", "jaxtyping", "tempscale"}
    allowed |= {"numba", "llvmlite", "threadpoolctl"}
    assert imported - set(sys.stdlib_module_names) <= allowed


def test_errors_can_be_caught_as_what_they_are():
    assert issubclass(ts.TemperatureError, ValueError)
    assert issubclass(ts.UnsupportedArchitecture, ValueError)
    with pytest.raises(ts.TemperatureError):
        ts.Temperature(0)
    with pytest.raises(ts.UnsupportedArchitecture):
        ts.attach(torch.nn.Linear(1, 1), 0.8)


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


def test_the_version_is_the_packages():
    parts = ts.__version__.split(".")
    assert len(parts) == 3
    assert all(part.isdigit() for part in parts)
