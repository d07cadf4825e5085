"""Documentation that is generated is current; what it points to is there."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def generator():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["tables.md", "configuration.md"])
def test_generated_pages_are_current(page):
    assert (ROOT / "docs" / page).read_text("utf-8") == generator().PAGES[page](), "run: python docs/generate.py"


def test_every_function_and_test_that_the_equations_name_exists():
    text = (ROOT / "docs" / "equations.md").read_text("utf-8")
    for path in re.findall(r"`((?:tests|jobs)/\w+\.py)`", text):
        assert (ROOT / path).is_file(), path
    for module, name in re.findall(r"`(moments|socm|length|aggregates)\.(\w+)", text):
        found = importlib.import_module(f"tempscale.{module}")
        assert hasattr(found, name), f"tempscale.{module}.{name}"


def test_relative_links_of_the_readme_lead_somewhere():
    for link in re.findall(r"\]\((?!https?://|#)([^)#]+)", (ROOT / "README.md").read_text("utf-8")):
        assert (ROOT / link).exists(), link
