"""The text of docs/dev/performance.md for each benchmark: what is compared with what, on which data, against which limit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Group:
    """A benchmark's heading, the text before its table, the headings of two columns, and what the page leaves out.

    `hidden` are rows, `said` the pieces of their names that the text says.
    """

    title: str
    text: str
    ratio: str = "ratio"
    limit: str = "of the GEMM rate"
    hidden: tuple[str, ...] = ()
    said: tuple[str, ...] = ()


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
        """2,000 Wikipedia paragraphs through the real all-MiniLM-L6-v2 on two threads: sentence-transformers at the fastest
        of four batch sizes, against tempscale. The least cosine is to sentence-transformers' embeddings. The last two rows
        are an audit's embedding step on Ray, loading of the model included, against the library's own loop. bfloat16's
        share, too, is of the float32 GEMM rate.""",
        "ratio to sentence-transformers, to the loop",
        said=(r"(, 2,000 texts)? \(Wikipedia paragraphs\)(, 2 threads)?", ", from its start to its durable parts"),
    ),
    "tokenising": Group(
        "Token ids",
        """20,000 Wikipedia paragraphs to token ids, cut at 256, on one thread: the tokenizer's library through transformers,
        against tokie where `tempscale[fast]` takes it, comparisons included. MiniLM's tokenizer is the real one, the others
        are of transformers' classes with 8,000 tokens trained on paragraphs. Others say why tokie leaves them alone.""",
        "ratio to the library",
    ),
    "peers": Group(
        "Beside what else embeds",
        """200 Wikipedia paragraphs, cut at 256 tokens, through the real MiniLM in float32 on two threads: the backends of
        sentence-transformers, and onnxruntime and OpenVINO with our weights, exported, in batches of 32 of similar length
        (fastembed is onnxruntime). The largest difference is to sentence-transformers' own backend; its OpenVINO backend
        computes in bfloat16 on a processor that has it, hence the difference and more than 100 %. Memory is all that a
        process takes that loads one of them and embeds the texts once. None of them gives token moments, layers or a
        temperature.""",
        "ratio to sentence-transformers",
    ),
    "overhead": Group(
        "What a temperature costs",
        """`encode` of sentence-transformers over 8 docstrings on two threads: τ = 0.8, by length `log_length = 64`. The last
        column is the median of alternating rounds, ± one standard error.""",
        "more time than untouched",
    ),
    "socm": Group(
        "SOCM of all pairs",
        """MiniLM's token embeddings of 1,000 Wikipedia sentences of about 32 tokens, and of 64 texts of 512 tokens. The
        largest error of d_Σ is the difference from singular values in float64; slow methods are timed on few pairs. The
        limit is the product at the GEMM rate plus the eigenvalues of one matrix a pair by LAPACK.""",
        "ratio to the published protocol on as many threads",
        "of the rate with LAPACK",
    ),
    "cosine": Group(
        "Cosine of all pairs",
        """12,000 random embeddings of 384 dimensions in eight intervals of length, in chunks; tempscale also sums and lists
        near-duplicates, faiss only finds the ten nearest. The limit is one product a pair: a method that computes each
        pair twice cannot exceed 50 %.""",
        "ratio to scikit-learn",
    ),
    "stage": Group(
        "The pairwise stages on Ray",
        """Whole stages of an audit with two workers, from parts on disk to merged tables: cosines of random embeddings of
        384 dimensions, SOCM of the sentences above.""",
        "ratio to the stage without neighbours",
    ),
    "growth": Group(
        "Growth in n and in length",
        """On one thread: cosines of random embeddings of 384 dimensions, SOCM of texts of 32 tokens, and 24 texts of each
        length, runs of consecutive tokens of scipy's docstrings. The limits are those of the groups above. The exponent is
        the slope of seconds on logarithmic axes, ± one standard error: 2 for all pairs. The smallest sizes, and the stage
        on Ray, are in the charts alone.""",
        "ratio to the smallest size's",
        "of the limit",
        hidden=(
            r"^embedding \+ token moments",
            "^cosine stage on Ray",
            "^cosine pass, 2,000 texts",
            "^SOCM, 125 texts",
            "^(embedding|SOCM), .* of 64 tokens",
        ),
        said=(", 1 thread", "(pairs of )?24 texts of "),
    ),
    "workers": Group(
        "Scaling in workers",
        """The embedding step of 1,000 Wikipedia paragraphs, loading of the model included, and the cosine stage over 100,000
        random embeddings. Each worker is a process of one thread; efficiency is the ratio over their number. Ray, the
        driver and the tokeniser run on the same cores.""",
        "ratio to one worker",
        said=(r", 1,000 texts \(Wikipedia paragraphs\)", ", 100,000 texts"),
    ),
    "layers": Group(
        "Measuring the layers",
        """8 texts of 512 random tokens through MiniLM: a plain pass with `output_attentions=True` that decomposes every head
        and computes three figures a layer, against the measurement of `tempscale diagnose`, which fills every column of
        both tables. Memory is the median growth of the method's own process.""",
        "ratio to the plain pass",
        hidden=("",),
        said=(", 8 texts of 512 tokens, MiniLM, one thread",),
    ),
    "mean_socm": Group(
        "The mean SOCM of a corpus, and what its error costs",
        """1,000 Wikipedia sentences and 1,000 paragraphs through MiniLM on two threads, embedding included: all 499,500
        pairs (by the published protocol timed on few), and those of 32 groups, as an audit measures. ± is one
        standard error of the mean for another corpus; seconds grow as one over its square. Last, the stages of SOCM in
        `tempscale audit --limit 100000`, with the worst pairs.""",
        "ratio to all pairs, for the same error",
        hidden=(", 128 groups",),
        said=(": 499,500 pairs$",),
    ),
    "reading": Group(
        "Reading a million sentences",
        """Wikipedia sentences of one Parquet row group, in eight units, checked and written as shards by tasks of Ray
        Data.""",
        "ratio to one worker",
        hidden=("",),
    ),
    "correcting": Group(
        "A million embeddings corrected",
        """1,000,000 random vectors of 384 dimensions in row groups of 65,536 (1.6 GB), corrected by length in float64: whole
        commands, and a loop over the file in one process that checks nothing.""",
        "rate over that of the loop",
    ),
    "what_if": Group(
        "Variants of a million vectors",
        """Audits of 1,000,000 random vectors of 384 dimensions with 2,000 queries, `--quick --cosine moments`: without and
        with dims:256, dims:128, int8, bits, centre+bits and length.""",
        "seconds, to without",
    ),
    "vectors": Group(
        "Embeddings of your own, ten million",
        """Whole commands with two cores: random vectors of 32 dimensions with their lengths in a hundred Parquet files,
        `--cosine moments`. The driver is the process that starts the run, its growth that from 400,000 to 1,600,000.""",
        "rate over that of the fewest",
        hidden=("^1,600,000",),
        said=(" of 32 dimensions, closed form",),
    ),
    "shrinking": Group(
        "The files and tiles of a hundred million, by shrinking",
        """With blocks of 655 rows, parts of 41 and units of 1,310, a hundredth of the usual, a million vectors of 16
        dimensions have the files and tiles of 100 million. Operations on storage (files opened, written, listed, asked
        about, removed) and bytes are those of all processes, memory the driver's own. The ratio is 1 where operations grow
        as the vectors do. Of the steps that are left out the largest is 1.42, of what merges the 1.2 million tiles. Other
        work ran on the same cores: seconds are too many.""",
        "operations a vector over those of the fewest",
        hidden=(
            "^exposure",
            "^tables",
            "^order of the source",
            "^everything else",
            "^layout",
            "^cosine: (blocks|sums|means by text)",
        ),
        said=(", 1,000,000 vectors$",),
    ),
    "verifying": Group(
        "Wrong vectors found and named",
        """Each fault planted in 1 % of MiniLM's vectors of Wikipedia paragraphs, made by sentence-transformers or ONNX
        Runtime, and `tempscale verify --sample all`; a row is named if its cause is the planted one. Then samples of clean
        indexes, and one of a million rows. Whole commands with two cores.""",
    ),
    "wide": Group(
        "Wide models, long texts",
        """One random layer of Qwen3's shape with 384 to 4,096 dimensions, on texts of 512 to 8,192 tokens, one thread:
        8,192 tokens are embedded, the pairs of a few texts compared, one text's layer looked at. The ratio is the share over
        that of the first row of its kind; of pairs it is that to LAPACK's singular values of the same blocks. Memory is
        what the process grows by. 768 dimensions, and embeddings alone, are in the results.""",
        "ratio to the narrow one's share, or to LAPACK",
        hidden=("τ 0.8", "factors", "^768 dimensions", ": embeddings$"),
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
        """SOCM of all pairs of random token embeddings; cosines of 65,536 × 65,536 random embeddings of 768 dimensions; the
        real MiniLM against sentence-transformers; random models of other shapes. «Tokens ready» leaves out tokenising.""",
        "ratio to the first of its kind",
        hidden=(
            "tokens ready$",
            "tempscale's looks",
            "^cosines.*, float32$",
            "^sentence-transformers, float32",
            "packed, 65,536",
            "65,536 tokens at once, tokens ready",
            r"bfloat16, batches of (32|128)$",
            "tf32, 65,536 tokens at once$",
            "of 200 texts of about 128 tokens",
            "^cosines.*(tf32|bfloat16)$",
            "(tf32|bfloat16), 262,144 tokens at once",
        ),
        said=(" of all pairs", "( of|,) 65,536 × 65,536 texts"),
    ),
}
"""The groups by the name of their benchmark, in the order of the page."""
