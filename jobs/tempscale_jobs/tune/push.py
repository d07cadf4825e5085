"""Push a checkpoint to a repository of the Hugging Face hub that is new or has a checkpoint of tempscale."""

from __future__ import annotations

from huggingface_hub import HfApi, ModelCard
from huggingface_hub.errors import EntryNotFoundError

from tempscale_jobs.errors import IncompleteRun, UsageError
from tempscale_jobs.tune.model_card import TAG
from tempscale_jobs.urls import reason

_OF_THE_HUB = ".gitattributes"
"""The file that the hub puts into a new repository."""


def check(name: str) -> None:
    """Raise a UsageError unless a repository may be written, before anything is computed."""
    try:
        api = HfApi()
        api.whoami()
        files = [file for file in api.list_repo_files(name) if file != _OF_THE_HUB] if api.repo_exists(name) else []
        ours = not files or TAG in _tags(name)
    except Exception as error:  # The hub's client and its transport have their own exceptions.
        raise UsageError(f"--push '{name}' cannot be written: {reason(error)}; see `hf auth login`, or HF_TOKEN") from None
    if not ours:
        raise UsageError(
            f"--push '{name}' holds files that tempscale export did not write, such as '{files[0]}'; choose another name"
        )


def push(name: str, folder: str, message: str, public: bool) -> str:
    """Replace the content of a repository with a folder, as one commit; return its address, or raise an IncompleteRun."""
    try:
        api = HfApi()
        api.create_repo(name, private=not public, exist_ok=True)
        commit = api.upload_folder(repo_id=name, folder_path=folder, commit_message=message, delete_patterns=["*"])
    except Exception as error:  # See `check`.
        sends = f"hf upload {name} '{folder}'"
        raise IncompleteRun(
            f"'{folder}' is written, but '{name}' did not get it: {reason(error)}; `{sends}` sends it"
        ) from None
    return str(commit.repo_url)


def _tags(name: str) -> list[str]:
    """The tags of a repository's card; empty without a card."""
    try:
        return list(ModelCard.load(HfApi().hf_hub_download(name, "README.md")).data.tags or ())
    except (EntryNotFoundError, ValueError):
        return []
