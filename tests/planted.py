"""Modules in a folder of data that must never be imported: each writes down the process that did."""

NAMES = (
    "polars", "numpy", "transformers", "torch", "pyarrow", "tokenizers", "safetensors", "psutil", "fsspec", "typer", "rich",
    "scipy", "numba", "ray", "datasets", "pydantic", "cloudpickle", "sitecustomize", "usercustomize",
)  # fmt: skip


def plant(folder, marks, names=(*NAMES, "tempscale_jobs")):
    """Write modules of these names into a folder; whoever imports one leaves a file in the folder `marks`."""
    marks.mkdir(exist_ok=True)
    for name in names:
        package = folder / name
        package.mkdir(exist_ok=True)
        (package / "__init__.py").write_text(
            f"import os, sys\nopen({str(marks)!r} + '/{name}-%d' % os.getpid(), 'w').write(' '.join(sys.argv))\n"
            f"raise ImportError('{name} of the folder of data')\n"
        )
    return folder
