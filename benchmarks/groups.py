"""The text of docs/dev/performance.md for each benchmark: what is compared with what, on which data, against which limit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Group:
    """A benchmark's heading, the text before its table, the headings of two columns, and rows that the page leaves out."""

    title: str
    text: str
    ratio: str = "ratio"
    limit: str = "of the GEMM rate"
    hidden: tuple[str, ...] = ()


GROUPS = {
    "embedding": Group(
        "Embedding",
        """300 docstrings of scipy, up to 512 tokens, through the real all-MiniLM-L6-v2 in float32: sentence-transformers'
        `encode`, against tempscale's `Encoder` alone, with the token moments, and under a temperature. The limit is the
        model's own matrix products without padding, at the GEMM rate.""",
        "ratio to sentence-transformers",
        hidden=("",),  # The next group has the same comparison on paragraphs.
    ),
    "paragraphs": Group(
        "Embedding paragraphs, and what Ray adds",
        """The real all-MiniLM-L6-v2: sentence-transformers at the fastest of four batch sizes, against tempscale in float32,
        with token moments, and in bfloat16; the least cosine is to sentence-transformers' embeddings. The last two rows
        are an audit's embedding step on Ray with one worker, loading of the model included, against the library's own
        loop. The limit is the model's products at the float32 GEMM rate, which bfloat16 may exceed.""",
        "ratio to sentence-transformers, to the loop",
    ),
    "overhead": Group(
        "What a temperature costs",
        """`encode` of sentence-transformers over 8 docstrings on two threads, four models in alternating rounds. The last
        column is the median of how much longer each takes than the untouched model, ± one standard error. The schedule and
        the fold are of τ = 0.8.""",
        "more time than untouched",
    ),
    "socm": Group(
        "SOCM of all pairs",
        """MiniLM's token embeddings of 1,000 Wikipedia sentences of about 32 tokens, and of 64 texts of 512 tokens. The
        largest error of d_Σ is the difference from singular values in float64; slow methods are timed on few pairs. The
        limit is the product's operations at the GEMM rate plus the eigenvalues of one matrix a pair by LAPACK: more than
        100 % is faster than with LAPACK.""",
        "ratio to the published protocol on as many threads",
        "of the rate with LAPACK",
    ),
    "cosine": Group(
        "Cosine of all pairs",
        """12,000 random embeddings of 384 dimensions in eight intervals of length: chunks of scikit-learn or numpy with
        numpy's histograms, against tempscale, which also sums and lists near-duplicates; faiss only finds the ten
        nearest. The limit is one product a pair: a method that computes each pair twice cannot exceed 50 %.""",
        "ratio to scikit-learn",
    ),
    "stage": Group(
        "The pairwise stages on Ray",
        """Whole stages of an audit with two workers, from parts on disk to merged tables: cosines of random embeddings of
        384 dimensions, SOCM of the sentences above. The limit of cosines is one product a pair.""",
        "ratio to the stage without neighbours",
    ),
    "growth": Group(
        "Growth in n and in length",
        """More texts: cosines of random embeddings of 384 dimensions, on one thread and as the stage on Ray with two
        workers, and SOCM of texts of 32 tokens. Longer texts: as many of each length, runs of consecutive tokens of scipy's
        docstrings. The limits are those of the groups above. The exponent is the slope of seconds on logarithmic axes, ±
        one standard error: 2 for all pairs, and less where a stage has a fixed cost.""",
        "ratio to the smallest size's",
        "of the limit",
        hidden=(r"^embedding \+ token moments",),
    ),
    "workers": Group(
        "Scaling in workers",
        """The embedding step of an audit, loading of the model included, and the cosine stage over random embeddings; each
        worker is a process of one thread, and efficiency is the ratio over their number. Ray's processes, the driver and
        the tokeniser run on the same cores, so the last worker never has a core for itself. The limit is the products on as
        many threads as workers.""",
        "ratio to one worker",
    ),
    "layers": Group(
        "Measuring the layers",
        """8 texts of 512 random tokens through MiniLM, each method in its own process: a plain pass with
        `output_attentions=True` that decomposes every head and computes three figures a layer, against the measurement of
        `tempscale diagnose`, which fills every column of both tables. Best of five rounds; memory is the median growth of
        the process.""",
        "ratio to the plain pass",
    ),
    "grid": Group(
        "Scores under five temperatures",
        """Whole commands on two cores, on a retrieval task of 800 queries and documents made of scipy's docstrings:
        `tempscale evaluate` with five temperatures in one run and in five, and mteb with sentence-transformers, which runs
        only the untouched model. A cell is one temperature on the task.""",
        "ratio to five runs",
    ),
    "mean_socm": Group(
        "The mean SOCM of a corpus, and what its error costs",
        """1,000 Wikipedia sentences and 1,000 paragraphs through MiniLM on two threads, embedding included: all pairs, and
        those of 32 and 128 groups of texts dealt by length, which an audit measures. ± is one standard error of the mean
        for another corpus. The ratio is that of the seconds for the same error, since seconds grow as one over its square.
        The published protocol is timed on few pairs. Last, the stages of SOCM in `tempscale audit --limit 100000`, the worst
        pairs among them.""",
        "ratio to all pairs, for the same error",
    ),
    "reading": Group(
        "Reading a million sentences",
        """Wikipedia sentences of one Parquet row group, in eight units, checked and written as shards by tasks of Ray
        Data.""",
        "ratio to one worker",
    ),
    "panels": Group(
        "Reading the blocks of two panels",
        """Two panels of sixteen blocks of 8,192 texts with embeddings of 384 dimensions, 256 tiles, without any computing:
        what a GPU would wait for. From files in the system's memory, and from moto, which imitates S3 in one process.""",
        "ratio to each tile's own reading",
    ),
    "proofs": Group(
        "What proofs cost",
        """A part of 65,536 texts with embeddings of 384 dimensions, by pyarrow alone, and with the checksums of pages and
        footer that find a flipped bit; the fingerprint of a model of 1 GiB that is in the page cache; and the look at its
        files before each part. An actor takes the fingerprint once, and only where its machine's files are not in the state
        in which the driver read them.""",
        "ratio to the same without",
    ),
    "correcting": Group(
        "A million embeddings corrected",
        """1,000,000 random vectors of 384 dimensions in row groups of 65,536 (1.6 GB), corrected by length in float64: whole
        commands, and a loop over the file in one process that checks nothing.""",
        "rate over that of the loop",
    ),
    "vectors": Group(
        "Embeddings of your own, ten million",
        """Whole commands with two cores: random vectors of 32 dimensions with their lengths in a hundred Parquet files,
        `--cosine moments`. The driver is the process that starts the run, its growth that between the first two rows.""",
        "rate over that of the fewest",
    ),
    "shrinking": Group(
        "The files and tiles of a hundred million, by shrinking",
        """With blocks of 655 rows, parts of 41 and units of 1,310, a hundredth of the usual, a million vectors of 16
        dimensions have the files and tiles of 100 million. Operations on storage (a file that is opened, written, listed,
        removed or asked about) and bytes are those of all processes; the driver's memory is what it has for itself alone.
        The ratio is 1 where operations grow as the vectors do; only the 1.2 million tiles, and what merges them, may grow
        faster. Steps with fewer operations a vector than at the beginning are left out. Other work ran on the same cores:
        seconds are too many, operations and bytes are not.""",
        "operations a vector over those of the fewest",
        hidden=("^exposure: (counts|the rest)", "^order of the source", "^everything else"),
    ),
    "million": Group(
        "A million texts, and the next night",
        """Whole commands with two cores, from the file to the report: Wikipedia sentences through a random model of 2
        layers, 128 wide; cosine in closed form, SOCM of 499,500 pairs, the prefix probe. In the second night one sentence
        in a hundred is changed, and `--cache` contains the rest.""",
        "the first night's embedding time over its own",
    ),
    "gpu": Group(
        "On a GPU",
        """Random token embeddings and embeddings of 768 dimensions, and the real MiniLM against sentence-transformers, each
        in several precisions; the layers of a random BERT base. «Tokens ready» leaves out tokenising.""",
        "ratio to the first of its kind",
        hidden=(
            "tokens ready$",
            "65,536 tokens at once, tokens ready",
            r"bfloat16, batches of (32|128)$",
            "float32, batches of 512$",
        ),
    ),
}
"""The groups by the name of their benchmark, in the order of the page."""
