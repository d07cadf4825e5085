"""Where a run computes, and how wide: the part of a configuration that changes no table."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from jobs.night_config import NIGHT
from jobs.strict import Strict


class Execution(Strict):
    """Where and how wide it runs. Nothing here changes a byte of the tables, but for the last digits of cached texts."""

    workers: int | None = Field(
        None, ge=1, description="Model actors and tile tasks at once; all cores or GPUs unless given."
    )
    address: str | None = Field(
        None, description="A Ray cluster, auto or HOST:PORT, from one of its machines; an in-process Ray unless given."
    )
    log_format: Literal["text", "json"] = Field(
        "text", description="text: lines for people. json: one JSON object a line, each with the run's id."
    )
    shuffle_seed: int | None = Field(
        None, description="Submit work in a seeded random order, to prove that order changes nothing."
    )

    @field_validator("address")
    @classmethod
    def _no_client(cls, address: str | None) -> str | None:
        if address is not None and address.startswith("ray://"):
            raise ValueError(
                "Ray Data does not run through Ray's client, ray://; start the command on a machine of the cluster with "
                "--address auto, such as by: tempscale submit --address http://HEAD:8265 -- audit …"
            )
        return address


class CachedExecution(Execution):
    """Where and how wide it runs, with embeddings that earlier runs left."""

    cache: str | None = Field(
        None,
        min_length=1,
        description="A folder, local or remote, of embeddings by content: texts that an earlier run embedded are taken from "
        "it, others added.",
    )

    @field_validator("cache")
    @classmethod
    def _of_all_nights(cls, cache: str | None) -> str | None:
        if cache is not None and NIGHT in cache:
            raise ValueError(f"a cache serves the nights after it; leave {NIGHT} out of its name")
        return cache
