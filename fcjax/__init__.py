"""Qwen2.5 decode on JAX with the execution state cut by coordinate over several nodes.

The folders stand in the order in which the data flows:

    model     what is computed: sizes, parameters, maths, the unsharded reference, weights on disk
    sharded   who owns what: THE operator table (operators.py), the plan, programs, the contract
    audit     the audit of any compiled program; knows no model
    decode    audited programs, the decode loop, parity with the reference
    text      tokenizer, chat, settings, generation
    record    what a run leaves behind
    verify    checking a recorded run again
    report    a run as a page for a reader
    bench     timings, peers, sweeps

and beside them what several use: cli, cold_starts, collectives, files, hub, manifest, mesh.
"""
