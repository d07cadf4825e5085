"""Draw docs/data-flow.svg: python docs/data_flow.py. tests/test_docs.py holds what is drawn against the code."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
WIDTH, HEIGHT = 1000, 1190
LEFT, MIDDLE, RIGHT, SIDE = 20, 350, 680, 300

TITLE = "How data flow through an audit"
DESCRIPTION = (
    "From top to bottom: the corpus is read by the driver into shards/ and rejected/. Ray Data tokenises and embeds the "
    "shards into texts/; a cache may spare some of it. From texts/ Ray tasks leave partials/cosine/, then neighbours/ and "
    "partials/exposure/; model actors leave factors/ of a sample, from which Ray tasks leave partials/socm/; model actors "
    "leave partials/probe/; on request partials/top/ holds the worst pairs of all texts. The driver puts the partials "
    "together into tables/, judges them, writes the record of nights, report.html and, last, run.json."
)

STYLE = """
text { font: 15px system-ui, sans-serif; fill: #1f2328; text-anchor: middle }
.small { font-size: 13px; fill: #57606a }
.name { font-weight: 600 }
path { stroke: #57606a; stroke-width: 1.5; fill: none; marker-end: url(#head) }
#head path { marker-end: none; fill: #57606a; stroke: none }
.may { stroke-dasharray: 3 4 }
.outside { fill: none; stroke: #57606a }
.driver { fill: #fdf3d8; stroke: #9a7b1f }
.ray { fill: #e0f3e6; stroke: #2f8049 }
.kept { fill: #e3eefb; stroke: #2f68a8 }
.passing { fill: #f2f6fb; stroke: #2f68a8; stroke-dasharray: 6 4 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .small { fill: #a9b4c0 }
  path { stroke: #a9b4c0 }
  #head path { fill: #a9b4c0 }
  .outside { stroke: #a9b4c0 }
  .driver { fill: #3a3115; stroke: #c9a640 }
  .ray { fill: #173222; stroke: #56b375 }
  .kept { fill: #172a42; stroke: #6ba4e4 }
  .passing { fill: #131d2b; stroke: #6ba4e4 }
}
"""


class Box(NamedTuple):
    """A folder or a step: a name in bold and up to two lines below it."""

    kind: str
    x: int
    y: int
    width: int
    name: str
    lines: tuple[str, ...] = ()

    @property
    def height(self) -> int:
        """Of the box."""
        return 32 + 18 * len(self.lines)

    @property
    def middle(self) -> float:
        """Of the box, from the left."""
        return self.x + self.width / 2


BOXES = {
    "corpus": Box("outside", 370, 12, 260, "corpus", ("files, a lake's table, the hub, docstrings",)),
    "read": Box(
        "driver", 320, 96, 360, "corpus.py", ("with sources.py, readers.py, lakes.py", "usable texts, or a reason why not")
    ),
    "shards": Box("passing", 320, 198, 170, "shards/", ("gone at the end",)),
    "rejected": Box("kept", 510, 198, 170, "rejected/", ("rows and reasons",)),
    "cache": Box("outside", RIGHT + 30, 198, SIDE - 30, "the cache of --cache", ("shared by runs; none needs it",)),
    "look": Box("ray", RIGHT + 30, 284, SIDE - 30, "cache.py: tasks", ("copies what it knows,", "adds what is new")),
    "embed": Box(
        "ray",
        300,
        284,
        400,
        "embed.py: Ray Data",
        ("tasks tokenise, a pool of model actors embeds,", "each shard under every τ"),
    ),
    "texts": Box("kept", 300, 388, 400, "texts/model=…/temperature=…/", ("one part a shard: embeddings, lengths, moments",)),
    "tiles": Box(
        "ray",
        LEFT,
        474,
        SIDE,
        "pairwise.py, blocks.py: tasks",
        ("blocks in canonical order, then", "super-tiles i ≤ j of all pairs"),
    ),
    "sample": Box(
        "ray",
        MIDDLE,
        474,
        SIDE,
        "socm_sample.py, factors.py: actors",
        ("a sample embedded again", "for its covariance factors"),
    ),
    "probe": Box("ray", RIGHT, 474, SIDE, "probe.py: actors", ("long texts embedded again,", "cut to 32, 64, … tokens")),
    "cosine": Box("kept", LEFT, 578, SIDE, "partials/cosine/", ("a part a tile",)),
    "factors": Box("kept", MIDDLE, 578, SIDE, "factors/", ("a part for 32 texts",)),
    "probed": Box("kept", RIGHT, 578, SIDE, "partials/probe/", ("a part for 16 texts",)),
    "expose": Box(
        "ray", LEFT, 664, SIDE, "exposure.py: tasks", ("the nearest texts of each text,", "merged over the tiles")
    ),
    "socm": Box(
        "ray", MIDDLE, 664, SIDE, "pairwise_socm.py: tasks", ("d_Σ of all pairs of the sample,", "super-tile by super-tile")
    ),
    "top": Box(
        "ray",
        RIGHT,
        664,
        SIDE,
        "socm_top.py: tasks and actors",
        ("on request: bounds over all pairs,", "then the survivors exactly"),
    ),
    "exposed": Box("kept", LEFT, 768, SIDE, "neighbours/, partials/exposure/"),
    "measured": Box("kept", MIDDLE, 768, SIDE, "partials/socm/", ("a part a tile",)),
    "found": Box("kept", RIGHT, 768, SIDE, "partials/top/"),
    "summary": Box("driver", MIDDLE - 30, 856, SIDE + 60, "summary.py", ("the partial tables put together",)),
    "tables": Box("kept", MIDDLE, 942, SIDE, "tables/", ("whole only after every step",)),
    "judge": Box("driver", LEFT, 1020, SIDE, "nights.py, gate.py"),
    "render": Box("driver", MIDDLE, 1020, SIDE, "report.py"),
    "end": Box("driver", RIGHT, 1020, SIDE, "runs.py"),
    "verdict": Box("kept", LEFT, 1084, SIDE, "tables/gate.parquet, history/"),
    "page": Box("kept", MIDDLE, 1084, SIDE, "report.html, figures/"),
    "done": Box("kept", RIGHT, 1084, SIDE, "run.json", ("last: the run is complete",)),
}
DOWN = (
    ("corpus", "read"), ("read", "shards"), ("read", "rejected"), ("shards", "embed"), ("embed", "texts"),
    ("cache", "look"), ("texts", "tiles"), ("texts", "sample"), ("texts", "probe"), ("tiles", "cosine"),
    ("sample", "factors"), ("probe", "probed"), ("cosine", "expose"), ("factors", "socm"), ("expose", "exposed"),
    ("socm", "measured"), ("top", "found"), ("exposed", "summary"), ("measured", "summary"), ("found", "summary"),
    ("summary", "tables"), ("tables", "judge"), ("judge", "verdict"), ("render", "page"), ("end", "done"),
)  # fmt: skip
ACROSS = (("judge", "render"), ("render", "end"))
LEGEND = (
    ("driver", "work of the driver"),
    ("ray", "work on Ray"),
    ("kept", "kept, whole or not there"),
    ("passing", "removed at the end"),
)


def drawing() -> str:
    """The drawing as SVG."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="title about">',
        f'<title id="title">{escape(TITLE)}</title>',
        f'<desc id="about">{escape(DESCRIPTION)}</desc>',
        f"<style>{STYLE}</style>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0 8 4 0 8z"/></marker></defs>',
    ]
    parts += [_down(BOXES[above], BOXES[below]) for above, below in DOWN]
    parts += [_across(BOXES[one], BOXES[other]) for one, other in ACROSS]
    look, texts, probed, cosine = (BOXES[name] for name in ("look", "texts", "probed", "cosine"))
    middle = texts.y + texts.height / 2
    parts.append(f'<path class="may" d="M{look.middle} {look.y + look.height}V{middle}H{texts.x + texts.width}"/>')
    # The probe and the cosines go to the summary past what lies below them; the search reads texts/ and the grid's blocks.
    right, left, summary = WIDTH - 8, 8, BOXES["summary"]
    level = summary.y + summary.height / 2
    parts.append(f'<path d="M{probed.x + probed.width} {probed.y + 25}H{right}V{level}H{summary.x + summary.width}"/>')
    parts.append(f'<path d="M{cosine.x} {cosine.y + 25}H{left}V{level}H{summary.x}"/>')
    top = BOXES["top"]
    parts.append(
        f'<path class="may" d="M{cosine.x + cosine.width} {cosine.y + 12}H{MIDDLE - 14}V{top.y - 10}H{top.middle}V{top.y}"/>'
    )
    parts += [_box(box) for box in BOXES.values()]
    for number, (kind, text) in enumerate(LEGEND):
        x = 40 + 245 * number
        parts.append(f'<rect class="{kind}" x="{x}" y="{HEIGHT - 34}" width="24" height="16" rx="4"/>')
        parts.append(f'<text class="small" x="{x + 34}" y="{HEIGHT - 21}" style="text-anchor:start">{escape(text)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _box(box: Box) -> str:
    rounded = 4 if box.kind in ("kept", "passing") else 14
    lines = [f'<rect class="{box.kind}" x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" rx="{rounded}"/>']
    lines.append(f'<text class="name" x="{box.middle:g}" y="{box.y + 21}">{escape(box.name)}</text>')
    for number, line in enumerate(box.lines):
        lines.append(f'<text class="small" x="{box.middle:g}" y="{box.y + 40 + 18 * number}">{escape(line)}</text>')
    return "\n".join(lines)


def _down(above: Box, below: Box) -> str:
    start, end = above.y + above.height, below.y
    if above.middle == below.middle or (below.x <= above.middle <= below.x + below.width):
        return f'<path d="M{above.middle:g} {start}V{end}"/>'
    if above.x <= below.middle <= above.x + above.width:
        return f'<path d="M{below.middle:g} {start}V{end}"/>'
    return f'<path d="M{above.middle:g} {start}V{(start + end) / 2:g}H{below.middle:g}V{end}"/>'


def _across(one: Box, other: Box) -> str:
    return f'<path d="M{one.x + one.width} {one.y + one.height / 2:g}H{other.x}"/>'


if __name__ == "__main__":
    (HERE / "data-flow.svg").write_text(drawing(), "utf-8")
