"""The text of docs/performance.md for each benchmark: what is compared with what, on which data, against which limit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Group:
    """A benchmark's heading, the text before its table, and the headings of two columns."""

    title: str
    text: str
    ratio: str = "ratio"
    limit: str = "of the GEMM rate"


GROUPS = {
    "embedding": Group(
        "Embedding",
        """300 docstrings of scipy of mixed length, up to 512 tokens, through the real all-MiniLM-L6-v2 in
        float32 on one thread: sentence-transformers' `encode` at the same maximum length, against tempscale's
        `Encoder` alone, with the token moments, and under a temperature. The limit is the time of the model's own
        matrix products, without padding, at the rate of one large float32 product on the same thread.""",
        "ratio to sentence-transformers",
    ),
    "paragraphs": Group(
        "Embedding paragraphs, and what Ray adds",
        """2,000 texts through the same model: sentence-transformers at the fastest of four batch sizes, against
        tempscale in float32, with token moments, and in bfloat16; the least cosine is to the embeddings of
        sentence-transformers. The last two rows are an audit's embedding step on Ray with one worker, including
        the time to load the model, against the library's own loop over the same pieces. The limit is the time of
        the model's products at the rate of one large float32 product on as many threads; bfloat16 may exceed
        it.""",
        "ratio to sentence-transformers, to the loop",
    ),
    "overhead": Group(
        "What a temperature costs",
        """`encode` of sentence-transformers over 8 docstrings on two threads, the four models in alternating
        rounds: untouched, with τ = 0.8 attached, with a schedule by length attached, and with τ = 0.8 folded
        into the weights. The table shows the median over the rounds of how much longer each takes than the
        untouched model, ± one standard error; no limit applies.""",
        "more time than untouched",
    ),
    "socm": Group(
        "SOCM of all pairs",
        """Pairs of the same real texts by each method: the published protocol with two dense roots a pair, scipy's
        `sqrtm`, POT, torch's singular values, and tempscale. The texts are MiniLM's token embeddings of 1,000
        Wikipedia sentences of about 32 tokens and of 64 texts of 512 tokens, or of 100 docstrings of scipy
        if the Wikipedia texts are missing. The largest error of d_Σ is the difference from singular values in float64;
        slow methods are timed on few pairs. The limit can be exceeded: it is the time of the product's operations at
        the rate of large products, plus the time in which LAPACK finds the eigenvalues of one matrix a pair. More
        than 100 % is faster than with LAPACK.""",
        "ratio to the published protocol on as many threads",
        "of the rate with LAPACK",
    ),
    "cosine": Group(
        "Cosine of all pairs",
        """12,000 random embeddings of 384 dimensions in eight intervals of length, on one thread: chunks of
        scikit-learn or numpy with numpy's histograms, against tempscale, which also sums and lists
        near-duplicates; faiss only finds the ten nearest. The limit is one product a pair at the
        rate of one large float32 product: a method that computes each pair twice cannot exceed 50 %.""",
        "ratio to scikit-learn",
    ),
    "stage": Group(
        "The pairwise stages on Ray",
        """The whole stages as an audit runs them with two workers, from parts on disk to merged tables, over
        random embeddings of 384 dimensions; the time that Ray takes to start is shown separately. SOCM, of the real
        sentences above, is compared with nothing here. The limit of cosines is one product a pair at the rate of a
        large float32 product on two cores.""",
        "ratio to the stage without neighbours",
    ),
    "growth": Group(
        "Growth in n and in length",
        """First more texts: cosines of random embeddings of 384 dimensions on one thread and as the stage on
        Ray with two workers, SOCM of texts of 32 tokens. Then longer texts: the same number of each length,
        embedded and compared. The texts are runs of consecutive tokens of scipy's docstrings, so that only n or
        only the length changes. The limits are those of the groups above: the GEMM rate, for SOCM the time with
        LAPACK. The exponent is the slope of seconds on logarithmic axes, ± one standard error. All pairs are n²;
        the fixed cost of a stage makes its exponent smaller.""",
        "ratio to the smallest size's",
        "of the limit",
    ),
    "workers": Group(
        "Scaling in workers",
        """The embedding step of an audit, model loading included, and the cosine stage over random embeddings,
        on one machine with more and more workers, each a process of one thread; efficiency is the ratio divided by
        the number of workers. Ray's own processes, the driver and the tokeniser run on the same cores, so the last
        worker never has a core for itself. The limit is the time of the products at the rate of one large float32
        product on as many threads as there are workers.""",
        "ratio to one worker",
    ),
    "layers": Group(
        "Measuring the layers",
        """8 texts of 512 random tokens through MiniLM on one thread, each method in its own process: a plain
        pass with `output_attentions=True` that decomposes every head and computes three figures a layer, against
        the measurement of `tempscale diagnose`, which fills every column of both tables. The rate is the best of
        five rounds; memory is the median growth of the process; no limit applies.""",
        "ratio to the plain pass",
    ),
    "grid": Group(
        "Scores under five temperatures",
        """Whole commands on two cores, including the start of Ray and of the model, on a retrieval task of 800
        queries and documents made of scipy's docstrings: `tempscale evaluate` with five temperatures in one run
        and in five runs, and mteb with sentence-transformers, which runs only the untouched model. A cell is one
        temperature on the task; no limit applies.""",
        "ratio to five runs",
    ),
    "mean_socm": Group(
        "The mean SOCM of a corpus, and what its error costs",
        """1,000 Wikipedia sentences and 1,000 paragraphs through the real all-MiniLM-L6-v2 on two threads: all pairs,
        and those of 32 and 128 groups of texts dealt by length, which an audit measures; each with the embedding of its
        texts. ± is one standard error of the mean for another corpus. The ratio is that of the seconds that each way
        takes for the same error, since seconds grow as one over its square. The published protocol is timed on few
        pairs, and its seconds are those of all. Last, the stages of SOCM in `tempscale audit --limit 100000`, the worst
        pairs among them.""",
        "ratio to all pairs, for the same error",
    ),
    "reading": Group(
        "Reading a million sentences",
        """Wikipedia sentences of one Parquet row group, in eight units, checked and written as shards by tasks of Ray Data;
        no model runs. The ratio is that of the seconds of one worker. No limit applies.""",
        "ratio to one worker",
    ),
    "panels": Group(
        "Reading the blocks of two panels",
        """Two panels of sixteen blocks of 8,192 texts with embeddings of 384 dimensions, 256 tiles, without any computing:
        what a GPU would wait for. From files that the system keeps in memory, and from moto, a stand-in of S3 in one process
        of Python. No limit applies.""",
        "ratio to each tile's own reading",
    ),
    "proofs": Group(
        "What proofs cost",
        """A part of 65,536 texts with embeddings of 384 dimensions, written and read by pyarrow alone, and with the
        checksums of pages and of the footer that find a flipped bit; the fingerprint of a model whose weights are a gigabyte
        in the page cache, as they are after it was loaded; and the look at its files before each part. An actor takes the
        fingerprint once, and only where its machine's files are not in the state in which the driver read them on its own:
        16 GB at the rate below, for each actor of another machine. No limit applies.""",
        "ratio to the same without",
    ),
    "correcting": Group(
        "A million embeddings corrected",
        """1,000,000 random vectors of 384 dimensions in row groups of 65,536 (1.6 GB), corrected by length in float64: whole
        commands, including the start of Ray, and a loop over the file in one process that checks nothing. What two workers
        leave, and what a run leaves that was killed after two of its units, is compared byte for byte with what one leaves.
        No limit applies.""",
        "rate over that of the loop",
    ),
    "vectors": Group(
        "Embeddings of your own, ten million",
        """Whole commands with two cores: random vectors of 32 dimensions with their lengths in a hundred Parquet files,
        `--cosine moments`. The driver is the process that starts the run, its growth that between the first two rows. No
        limit applies.""",
        "rate over that of the fewest",
    ),
    "shrinking": Group(
        "The files and tiles of a hundred million, by shrinking",
        """Blocks of 655 rows, parts of 41 and units of 1,310, a hundredth of the usual: a million vectors of 16
        dimensions in three intervals of length have the files and the tiles of 100 million otherwise. Operations on
        storage (a file that is opened, written, listed, removed or asked about) and bytes are counted in all processes of
        a run; the driver is the process that starts it, and its memory is what it has for itself alone. The ratio is 1
        where operations grow as the vectors do. Only tiles, and what merges them, may grow faster: a million vectors have
        1.2 million tiles. Other work ran on the same cores, so seconds are too many; operations and bytes do not depend on
        it. No limit applies.""",
        "operations a vector over those of the fewest",
    ),
    "million": Group(
        "A million texts, and the next night",
        """Whole commands with two cores, from the file to the report: Wikipedia sentences through a random
        model of 2 layers, 128 wide; cosine in closed form, SOCM of 499,500 pairs, the prefix probe. In the
        second night one sentence in a hundred is changed, and `--cache` contains the rest. No limit applies.""",
        "the first night's embedding time over its own",
    ),
    "gpu": Group(
        "On a GPU",
        """Random token embeddings and embeddings of 768 dimensions, and the real MiniLM against
        sentence-transformers, each in several precisions; the layers of a random BERT base. The
        limit is the rate of one large product in the same precision.""",
        "ratio to the first of its kind",
    ),
}
"""The groups by the name of their benchmark, in the order of the page."""
