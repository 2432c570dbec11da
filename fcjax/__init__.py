"""Qwen2.5 decode on JAX with the execution state cut by coordinate over several nodes.

The folders stand in the order in which the data flows, and none imports one that stands below it:

    audit     the audit of any compiled program, which knows no model (`audit.certify`)
    model     what is computed: sizes (`config.ModelConfig`), parameters, maths, weights on disk,
              the unsharded reference
    sharded   who owns what: THE operator table (`operators`), the plan (`ownership.Plan`), the
              interval (`interval.ShardedModel`), its programs, and its contract for the audit
    decode    audited programs (`audited.Programs`), the decode loop, parity with the reference
    text      tokenizer, chat, settings, generation
    record    what a run leaves: its job, lines, ledger, certificates, and their one `reader`
    report    a run as a page for a reader
    verify    a recorded run checked again
    bench     timings, peers, sweeps
    commands  the programs: `fcjax NAME`, or `python -m experiments.NAME` in a clone

and beside them what several of them use:

    cold_starts  runs of several starts, each its own process
    mesh         the nodes as devices
    collectives  kinds of collectives, and what each sends
    files        whole files or none, hashes, JSON
    manifest     a folder's files by size and hash
    table        text tables
    hub          models by their names elsewhere
    cli          flags, messages and exit codes
"""
