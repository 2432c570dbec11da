"""One decode layer on sharded state, or several, or all of them: end to end, audited.

The interval and what each node owns, the audit's verdict on the programs that run, and decode steps
beside the unsharded reference. --depth=all has every layer on shards. The evidence is one start of
`cold-starts`, in this process; docs/EVIDENCE.md says what it leaves. Exit code 1: the audit or a
comparison failed.
"""

import functools
import time

from absl import flags
from tqdm import tqdm

from fcjax import audit, cli, cold_starts
from fcjax.commands import job_flags, shared_flags
from fcjax.mesh import use_platform
from fcjax.record import baseline, reader
from fcjax.record.job import Job
from fcjax.record.start import Start
from fcjax.sharded import balance, interval

FLAGS = flags.FLAGS


def define_flags():
    job_flags.define()
    shared_flags.prompt("ROMEO:")
    shared_flags.workdir("New folder for the evidence. [runs/decode_layer-<time>]")


def main(_):
    use_platform(FLAGS.platform, FLAGS.nodes)
    given = cli.flag_values(__name__)
    job = job_flags.job("decode_layer", given, [FLAGS.prompt], 1, stop_at_eos=True)
    model = job.model()
    workdir = FLAGS.workdir or f"runs/decode_layer-{time.strftime('%Y%m%d-%H%M%S')}"

    print("The interval, and what each node owns after each operator:\n")
    print(interval.table(model, job.batch, 1))
    print("\nWhat each node holds and does:\n")
    print(balance.table(model, job.dtype, job.batch, job.slots))

    try:
        with cold_starts.recorded_here(workdir, job) as start:
            run(start, job)
    except audit.Failed:
        print(f"\nThe audit failed; evidence in {workdir}")
        return 1
    show(start, job)
    total = reader.summary(workdir)
    print(f"record: {total['verdict']}; baseline {baseline.words(job.baseline)}")
    print(f"evidence: {workdir}")
    return 0 if total["passed"] else 1


def run(start: Start, job: Job) -> None:
    """The start's stages, each with a headline."""
    note("Compiling, and auditing the interval's compiled programs")
    try:
        start.prepare()
    finally:
        for tokens, verdict in start.verdicts.items():
            print(f"{tokens} token(s) at a time: {verdict}")
    note("Loading each node's blocks, and the unsharded reference for the check")
    start.load()
    note("Decoding")
    total = len(job.passes(0)) + job.steps
    start.decode(functools.partial(tqdm, total=total, unit="step", mininterval=1))


def show(start: Start, job: Job) -> None:
    """The text, the audit as a table, and the start's figures."""
    figures = start.summary
    # A random checkpoint's ids are mostly outside the vocabulary of its borrowed tokenizer.
    answer = figures["text"][0] or f"(token ids) {figures['tokens'][0]}"
    print(f"\n{FLAGS.prompt}\n  -> {answer}\n")
    print(start.programs.audits[1].text("audit of the program that ran every step"))
    worst = "  ".join(f"{name} {float(x):.1e}" for name, x in figures["worst"].items())
    verdict = "passed" if figures["passed"] else "FAILED"
    print(
        f"parity: {worst}\n"
        f"        worst |out - ref| / |ref| of {figures['steps']} steps and the prefill, against"
        f" the unsharded f32 reference; bound {job.bound:.0e}: {verdict}\n"
        f"caches: {float(figures['caches']['worst']):.1e} over all layers, against the reference's"
    )
    for fault in figures["faults"][:5]:
        print(f"  {fault}")
    if figures["median_seconds"] is not None:
        print(f"speed:  {figures['median_seconds']:.3f} s a step (median)")
    print(f"memory: {figures['peak_bytes'] / 2**30:.2f} GiB at its peak, the reference included")


def note(phase: str) -> None:
    print(f"\n== {phase} ==", flush=True)
