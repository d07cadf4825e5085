"""What a run leaves in its folder: read, damaged, taken away by halves, and whether it was written again."""

import random
import re
from pathlib import Path

from whole_run import flipped

from tempscale_jobs.runs.observing import Observer

WAYS = ("missing", "empty", "cut", "flipped", "exchanged")
_PASSING = ("status.json", ".lock")
"""Files that every call writes."""
_ENDS = re.compile(
    r"(queries/)?(shards/index\.json|tables/.*|figures/.*|report\.html|calibration\.json|remove\.txt|run\.json|partials/inventory\.json|"
    r"(neighbours|corrections|partials/(exposure|neighbours_corrected|probe|order|remembered|what_if|by_group|query_cosines))\b.*|"
    r"partials/(cosine|socm|top)/.*/(closed|done|length_collapse|cosine_histogram|socm.*|replicates|text_means.*)\.\w+|"
    r"partials/cosine/.*/text_means/.*|mteb/.*|temperature\.json)"
)
"""Files that a step writes at its end, from its pieces."""
_STAYS = re.compile(
    r"(queries/)?(begun\.json|shards/plan\.json|history/.*|partials/(cache|budget|processors|exceptions)/.*)"
)


_OF_NEAR = re.compile(r"(?:queries/)?(?:neighbours|corrections|partials/(?:exposure|neighbours_corrected))/")


def files_of(out):
    """The content of each file of a run, by its name."""
    found = {str(file.relative_to(out)): file.read_bytes() for file in Path(out).rglob("*") if file.is_file()}
    return {name: data for name, data in found.items() if name.rpartition("/")[2] not in _PASSING}


def writes(out):
    """What another write of a file changes, by the file's name."""
    return {name: ((out / name).stat().st_ino, (out / name).stat().st_mtime_ns) for name in files_of(out)}


def damage(file, how, other=b""):
    """Damage a file in one of the ways that disks, crashes and people know."""
    data = file.read_bytes()
    if how == "missing":
        file.unlink()
    elif how == "empty":
        file.write_bytes(b"")
    elif how == "cut":
        file.write_bytes(data[: len(data) // 2])
    elif how == "flipped":
        file.write_bytes(flipped(data, 8 * (len(data) // 2)))
    else:
        file.write_bytes(other)


def is_end(name):
    """Whether a step writes this file at its end, so that a run that is stopped in the step writes it again."""
    return _ENDS.fullmatch(name) is not None


def piece_of(name):
    """The piece of work that wrote a file: one is done under all temperatures, and a tile has several files."""
    if (unit := re.search(r"(?:shards/(?:unit|part|corrected)|vectors/part)-(\d{8})[-.]", name)) is not None:
        return f"unit {unit[1]}"
    if name.startswith("cells/"):
        return "/".join(name.split("/")[:4])
    tile = re.sub(r"/near/(tile-\d{8}-\d{8})-\w+", r"/\1", name)
    return re.sub(r"/(temperature=[^/]+|layers|heads|seen)/", "/", re.sub(r"partials/(layers|heads|seen)/", "seen/", tile))


def halve(out, seed):
    """Leave a run as a kill in every step would: without what ends the steps, and without half of their pieces.

    Return the names that are left.
    """
    names = sorted(name for name in files_of(out) if not name.startswith("measured/"))  # A finished run of its own.
    pieces = sorted({piece_of(name) for name in names if not is_end(name) and not _STAYS.fullmatch(name)})
    gone = set(random.Random(seed).sample(pieces, len(pieces) // 2))
    near = {_under(name) for name in names if "/near/" in name}
    for name in names:
        # Once neighbours are merged, and only then, those of the tiles are removed.
        if _OF_NEAR.match(name) and _under(name) not in near:
            continue
        if is_end(name) or (piece_of(name) in gone and not _STAYS.fullmatch(name)):
            (out / name).unlink()
    return sorted(files_of(out))


def _under(name):
    """The model and temperature of a file."""
    return re.search(r"/(model=[^/]+/temperature=[^/]+)/", f"/{name}")[1]


class Interrupt(Observer):
    """Ctrl-C, when a stage begins or, with `after`, when it has told progress so often."""

    def __init__(self, stage, after=0):
        super().__init__()
        self._at, self._after = stage, after

    def stage(self, name, total):
        super().stage(name, total)
        self._strike()

    def progress(self, done):
        super().progress(done)
        self._strike()

    def say(self, event, message, seconds=None):
        if event == "progress":
            self._strike()

    def _strike(self):
        if self.name is not None and self.name.startswith(self._at):
            self._after -= 1
            if self._after < 0:
                raise KeyboardInterrupt
