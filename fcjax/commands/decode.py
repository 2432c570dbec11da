"""One decode layer on sharded state, or several, or all of them: end to end, audited.

    python -m experiments.decode_layer --prompt="ROMEO:" --steps=50
    python -m experiments.decode_layer --depth=all --temperature=0.8 --top_p=0.9

Two emulated nodes decode with the packaged tiny model; layer 0 and the next layer's Q/K/V run on
shards, the other layers are unmodified. Cost: half a minute and 1 GB on two cores. A 1.5B model in
f32 takes 14 GB and half a second a step, the unsharded reference beside it included.

Expected: the audit finds 4 reduce-scatters and 2 statistics for the layer, one more of each for the
next layer's Q/K/V, and one all-gather behind them; every parity figure is below 1e-5 in f32. This
is one start of `experiments.cold_starts` in this process; docs/EVIDENCE.md says what it leaves.
"""

import functools
import time

from absl import flags
from tqdm import tqdm

from experiments import run_flags
from fcjax import audit, cli, cold_starts
from fcjax.mesh import use_platform
from fcjax.record import baseline, run_folder
from fcjax.record.start import Start
from fcjax.sharded import balance, interval

FLAGS = flags.FLAGS
flags.adopt_module_key_flags(run_flags)
flags.DEFINE_string("prompt", "ROMEO:", "Text to go on from; a chat model gets it as a message.")
flags.DEFINE_string("workdir", None, "New folder for the evidence. [runs/decode_layer-<time>]")


def main(_):
    use_platform(FLAGS.platform, FLAGS.nodes)
    job = run_flags.job("decode_layer", [FLAGS.prompt], 1, stop_at_eos=True)
    model = job.model()
    workdir = FLAGS.workdir or f"runs/decode_layer-{time.strftime('%Y%m%d-%H%M%S')}"

    print("The interval, and what each node owns behind each operator:\n")
    print(interval.table(model, job.batch, 1))
    print("\nWhat each node holds and does:\n")
    print(balance.table(model, job.dtype, job.batch, job.slots))

    folder = cold_starts.create(workdir, job)
    with run_folder.lock(folder):
        try:
            with cold_starts.kept(folder, 0):
                found = decode(Start(folder, job, 0), job)
        except audit.Failed:
            print(f"\nThe audit failed; evidence in {workdir}")
            return 1
        total = cold_starts.finish(folder, job)

    # A random checkpoint's ids are mostly outside the vocabulary of its borrowed tokenizer.
    answer = found["text"][0] or f"(token ids) {found['tokens'][0]}"
    print(f"\n{FLAGS.prompt}\n  -> {answer}\n")
    print(found["audit"])
    figures = "  ".join(f"{name} {float(x):.1e}" for name, x in found["worst"].items())
    print(
        f"parity: {figures}\n"
        f"        worst |out - ref| / |ref| of {found['steps']} steps and the prefill, against the"
        f" unsharded f32 reference; bound {job.bound:.0e}: {said(found['passed'])}\n"
        f"caches: {float(found['caches']['worst']):.1e} over all layers, against the reference's"
    )
    for fault in found["faults"][:5]:
        print(f"  {fault}")
    if found["median_seconds"] is not None:
        print(f"speed:  {found['median_seconds']:.3f} s a step (median)")
    print(f"memory: {found['peak_bytes'] / 2**30:.2f} GiB at its peak, the reference included")
    print(f"record: {total['verdict']}; baseline {baseline.words(job.baseline)}")
    print(f"evidence: {workdir}")
    return 0 if total["passed"] else 1


def decode(start: Start, job) -> dict:
    """The start's stages, each with a headline; returns its summary and the audit as a table."""
    note("Compiling, and auditing the interval's compiled programs")
    try:
        programs = start.prepare()
    finally:
        for tokens, verdict in start.verdicts.items():
            print(f"{tokens} token(s) at a time: {verdict}")
    note("Loading each node's blocks, and the unsharded reference for the check")
    start.load()
    note("Decoding")
    total = len(job.passes(0)) + job.steps
    bar = functools.partial(tqdm, total=total, unit="step", mininterval=1)
    text = programs.audits[1].text("audit of the program that ran every step")
    return start.decode(bar) | {"audit": text}


def said(passed: bool) -> str:
    return "passed" if passed else "FAILED"


def note(phase: str) -> None:
    print(f"\n== {phase} ==", flush=True)


if __name__ == "__main__":
    cli.run(main)
