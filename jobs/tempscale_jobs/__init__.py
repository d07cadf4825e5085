"""What runs on Ray. A folder is a subject, and imports only from the folders below it in this list.

    __main__              `python -m tempscale_jobs`
    cli/                  the command line
      app                 the command: groups, help, exit codes
      options             makes the options of the settings in config/
      runs                the commands that write a run folder
      records             the commands over finished runs: export, history, report, compare, cache
      submit              `tempscale submit`
      start               what every command does around its work: progress, what ends it early, its exit code
    submit/               a command as a job of a Ray cluster
      command             what is sent, read by our own command line first
      packing             which files travel, and which never do
      head                the address of a cluster and a client of its jobs
      watch               submit it, show its log, give its exit code
    tune/                 `tempscale tune` and `export`: choose a temperature or a correction
      run, report, words, findings, terminal  as in every command, see below
      scores              choose by scores of tasks
      collapse            choose without labels
      corrections         what corrections do to scores and exposure
      layers              one τ a layer, by gradient
      export              a plain checkpoint with the choice in it
      correction_stages   a correction as stages of a checkpoint
      model_card          its card
      measured            what runs have measured of it, for the card
      push                the checkpoint on a hub
    audit/                `tempscale audit`
      run, summary, findings, charts, words, report, terminal
      checks              what it refuses before the long work
      facts               what run.json says of it
      plan                --plan: what a run costs
      verdict             the first screen: the answer and four figures
      advice              what follows, with a command
      by_group            what is said of groups of texts
      what_if             what is said of variants of the vectors
      served              what is said of served results
      named               what is said of the texts that are found most
      decomposed          what is said of the decomposition of the prefix gap
    correct/              `tempscale correct`: a fitted correction for a table of embeddings
      run, findings, terminal
      units               what one task reads and writes
    pairs/                `tempscale pairs`: SOCM of explicit pairs of texts
      run, summary, findings, report, terminal
      chunks              the pairs of a source, in pieces
      socm                the pairs of a piece, on an actor
    diagnose/             `tempscale diagnose`: why embeddings collapse
      run, summary, findings, charts, words, report, terminal
      sampling            which texts are looked into: evenly by length
      looks               every layer and head of each
      two_texts           two texts, token by token
      repeated            texts of one repeated token
      versions            versions of one document
    evaluate/             `tempscale evaluate`: downstream scores
      run, summary, findings, charts, words, report, terminal
      tasks               tasks by name
      own_tasks           a user's data as tasks
      windows             test sets by length
      documents           large corpora, embedded before the cells
      cells               a task under a temperature, on Ray
      loaded_task         the task that a worker keeps loaded
      grid_model          the model that a cell scores
      scored              a score, and the score of each item
      corrected           a score with corrected embeddings
      analyses            the papers' analyses of one cell
      audits              scores compared with finished audits
    verify/               `tempscale verify`: whether stored vectors are a model's
      run, summary, findings, words, report, terminal
      stage               its steps, also as a stage of an audit
      sample              which rows are compared
      joined              vectors and texts of two tables
      computed            what each precision changes
      compare             stored vectors against the model's, and which are wrong
      variants            what people get wrong when they embed
      explain             wrong rows, embedded again in these ways
      earlier             which texts were edited since an earlier audit
    nights/               nightly audits
      night               the end of a night
      gate                thresholds and drift
      record              one part a run, baselines, accepted runs
      compare             what changed between two runs
      finished            a finished audit, and one model and temperature of it
      swap                what another model changes for a search and for a threshold
      notify              a webhook, annotations of a build
      page                the record as a page
      findings, charts, words, terminal
    steps/                what commands are made of, a file a step
      scope               what the steps of an audit share: run, model, texts, workers
      layout              texts in canonical order
      grouping            their groups by the values of a column
      embed               shards to texts/
      tokenise            their token ids, and what is done if they were wrong
      expected            how long it takes, before it begins
      budget              tokens of a micro-batch
      lookup              what a cache has of a corpus
      cache               texts by content, from night to night; what its key is made of
      prune               a smaller cache
      pieces              the pieces of a sample of texts, or of askers
      precision           what bfloat16 changes
      factors             covariance factors of a sample
      probe               the same texts, cut to prefixes
      readings            pieces of texts that are read in other ways
      decomposition       what the gap between prefixes is made of
      positions           which tenth of a text its vector follows
      blocks              durable blocks of texts, and a tile task's files
      cosine              all pairs: tiles, sums, length_collapse
      calibration         how near two random texts are, by length
      neighbours          the nearest texts
      slots               the results of searches, counted
      exposure            who fills the results; hubs, near-duplicates
      by_group            which groups fill the results, and how near they are
      named               the texts that are found most, and who is found if they go
      by_length           a correction by length, fitted
      what_if             what variants of the vectors keep and change
      what_if_tables      its rows
      cut_texts           texts cut into chunks, for a variant
      late                chunks that are read together, each pooled apart
      other_models        texts and queries by other models, for a variant
      carried             thresholds carried over to other vectors, with errors
      served              what an index returns, against the exact nearest texts
      query_cosines       how near queries are to texts, by length
      source_order        whether neighbours in the source are alike
      dealing             which texts make up the groups that stand for all pairs
      groups              all pairs of each group, under every τ
      group_tables        their tables
      pair_values         d_μ and d_Σ of every pair of some texts
      socm                all pairs of a sample
      socm_tables         their tables
      factor_pairs        bounds and exact values of listed pairs
      largest             the pairs of the texts of largest tr Σ
      worst               the most collapsed pairs of a whole corpus
    corpus/               from a source to shards
      stream              all units of a source, read by Ray Data
      reading             one unit, read into durable parts
      distinct            repeated ids and samples, over all units
      preview             what --plan looks at
      peek                refuses a source for its first rows, before Ray starts
      index               what a run keeps of a source
      shards              texts as the contents of a source
      vectors             a user's embeddings as its contents
      stored              texts with the vectors of an index as its contents
      results             what an index returned for queries
      units               a source in pieces
      rows                usable rows, why others are not, and what refuses a source
      sources             every kind of source
      hub                 data sets of the hub
      stores              arrays and tables that are no text files, by one interface
      arrays              numpy's files
      faiss_files         files of FAISS
      postgres            tables of PostgreSQL with pgvector
      qdrant              collections of Qdrant
      iceberg             Iceberg tables
      lakes               Lance and Delta
      address             addresses with settings, and parts of stores
      readers             formats of files
      folders             which files are data
      states              whether a file has changed
    lifecycle             (a file) a run from its lock to run.json, for all commands
    report/               what all reports share
      sections            a report as data: answer, figures, what to do, sections
      charts              colours, lines with bands, changes with intervals; each with its table
      provenance          the last section: how it was made
      page                a report -> one page, by one template
      findings            what a run found, as data
      screen              the end of a command on the terminal
      shell               commands to copy
      again               the command that goes on from a finished run
      terms               what symbols mean
      text                figures in words
    workers/              Ray
      nodes               whether all machines see the files
      dispatch            pieces of work to actors and tasks, retries, the crew of model actors, what is slow
      actor               one model on one worker
      loaded              whether it is the model that the run began with
      marks               which text kills its process
      meter               what workers count for Ray's metrics
      bfloat16            the precision of the workers' processors
      failures            what fails in a worker, as an error that a user reads
      cluster             start or join Ray
      private             a token and addresses of this machine alone
      raylet              its daemon, watched
      headroom            memory, watched
    runs/                 the run folder
      folder              identity, resume, completion
      inventory           the digest of each of its files
      mending             what is removed where a file is damaged
      places              where it may be
      lock                one run at a time
      journal             progress for people
      observing           progress for machines
      pace                how long the rest takes
      memory              how much a run takes
      provenance          processors and sources, as they are written down
      sealed              files that notice a flipped bit
      storage             local or remote
    config/               each setting once, with its option and its help
      audit, correct, diagnose, evaluate, nights, pairs, tune, verify
      command             what all commands have in common
      sections            what several of them have
      fitted              a correction in a file
      given               files and texts of a user
      option              the option of a setting
      strict              unknown keys are errors
    tables/               the Arrow schema of every table
      audit, diagnose, evaluate, nights, pairs, tune, verify
      parts               what one step leaves for another
      findings            what a run found
      finished            tables of earlier versions
      columns             columns, and those of many tables
    outlets               standard output and error
    errors                errors that a user reads
    urls                  addresses without their secrets
    collecting            how often Python looks for unreachable objects
    interrupts            what an interrupt leaves behind

In the folder of a command the same names mean the same thing: run (the command, top to bottom), its own files, summary
(parts to tables), findings (the state of each figure, decided once), charts, words (tables and findings to sentences),
report (the page), terminal (what is printed of a finished run, and --json). Steps hand on durable parts, not objects in
memory: corpus -> shards/ -> texts/ (and factors/, of a sample) -> partials/ -> tables/ -> report.html.

The steps compute with `tempscale/`, the science, which knows no Ray and no tables:

    temperature/          schedules, families of models, attach, fold, verify
    model/                from a checkpoint to embeddings: settings, tokens, batches, encoder, pooling
    collapse/             cosines of a tile, their sums, neighbours, exposure, lengths
    second_order/         token moments and SOCM; nuclear norms by polar (GPU) or bidiagonal (CPU)
    layers/               σ_a, HC, λ, ρ, r, C of each layer
    choosing/             one τ a layer, or by length
    correction/           corrections of embeddings, fitted and applied
    stored/               rounding of stored vectors
    stats/                errors, samples, how many values are enough
    measures              SOCM and σ_a of texts as they are
    optional              libraries that may be missing
    compiled, lanes       loops compiled by numba, sixteen numbers at once
    precompile            the loops that an audit needs, compiled beforehand
    tf32                  how a GPU multiplies float32
"""
