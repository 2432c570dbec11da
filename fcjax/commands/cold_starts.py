"""Audited decode steps over several cold starts, each in a process of its own.

Each start loads the weights, compiles, audits, prefills its own prompt and decodes, with the
unsharded reference beside it. A run that was cut off goes on with --resume; a start that failed
stays in the folder as failed. `verify` checks the folder again; docs/EVIDENCE.md says what is in
it. Exit code 1: a start or a step failed.
"""

import pathlib
import time

from absl import flags
from tqdm import tqdm

from fcjax import cli, cold_starts, files, report
from fcjax.commands import job_flags, shared_flags
from fcjax.record import baseline, reader, run_folder
from fcjax.sharded import balance

FLAGS = flags.FLAGS
PROMPTS = (
    "ROMEO:\n",
    "First Citizen:\nBefore we proceed any further,",
    "KING RICHARD III:\nNow is the",
    "JULIET:\nO gentle Romeo,\nIf thou dost love, pronounce it",
    "DUKE VINCENTIO:\n",
)


def define_flags():
    job_flags.define()
    flags.DEFINE_integer("cold_starts", 5, "How many.", lower_bound=1)
    shared_flags.prompts("Text to go on from; one, or one for each start.")
    shared_flags.workdir("New folder for the evidence. [runs/cold_starts-<time>]")
    flags.DEFINE_bool(
        "resume", False, "Go on with the run in --workdir; other flags may be left out."
    )


def main(_):
    if FLAGS.resume:
        folder = resumed()
        job = cold_starts.read(folder)
    else:
        workdir = FLAGS.workdir or f"runs/cold_starts-{time.strftime('%Y%m%d-%H%M%S')}"
        prompts = FLAGS.prompt or list(PROMPTS)
        if FLAGS.prompt and len(prompts) not in (1, FLAGS.cold_starts):
            raise ValueError(f"prompt: expected 1 or {FLAGS.cold_starts}, got {len(prompts)}")
        given = cli.flag_values(__name__)
        job = job_flags.job("cold_starts", given, prompts, FLAGS.cold_starts, stop_at_eos=False)
        folder = cold_starts.create(workdir, job)
    with run_folder.lock(folder) as lock:
        if not reader.is_finished(folder):
            print(f"evidence: {folder}\nbaseline: {baseline.words(job.baseline)}")
            print(f"{balance.table(job.model(), job.dtype, job.batch, job.slots)}\n", flush=True)
            for name in cold_starts.tidy(folder, job):
                print(f"put aside: {folder / name}")
            try:
                start_all(folder, job, lock)
            except cold_starts.StartFailed as e:
                if e.exit_code == 2:
                    raise ValueError(f"start: {e}; go on with --resume --workdir={folder}") from e
                report.write(folder)  # it shows what there is
                print(f"A start failed: {e}\nGo on with --resume --workdir={folder}")
                return 1
            except KeyboardInterrupt:
                print(f"\ninterrupted. Go on with --resume --workdir={folder}")
                return 1
            cold_starts.finish(folder, job)
    return show(folder)


def start_all(folder: pathlib.Path, job, lock: int) -> None:
    """Every start that is missing, one after the other, under one bar."""
    left = reader.missing(folder, job.cold_starts)
    total = job.cold_starts * job.steps
    with tqdm(total=total, initial=total - len(left) * job.steps, unit="step") as bar:
        for i in left:

            def listen(kind, value, i=i):
                if kind == "phase":
                    bar.set_description(f"start {i + 1} of {job.cold_starts}, {value}")
                elif value >= 0:
                    bar.update()

            cold_starts.start_process(folder, i, lock, listen)


def resumed() -> pathlib.Path:
    """The folder of --workdir; flags that are given must be those of its run."""
    if FLAGS.workdir is None:
        raise ValueError("resume: expected --workdir with it, got none")
    recorded = cold_starts.read(FLAGS.workdir).flags
    for name, value in files.plain(cli.flag_values(__name__)).items():
        if FLAGS[name].present and name not in ("resume", "workdir"):
            if name not in recorded or recorded[name] != value:
                raise ValueError(
                    f"resume: expected --{name}={recorded.get(name)} as the run has it, got {value}"
                )
    return pathlib.Path(FLAGS.workdir)


def show(folder: pathlib.Path) -> int:
    total = reader.summary(folder)
    for s in total["starts"]:
        worst = " ".join(f"{n} {float(x):.1e}" for n, x in (s["worst"] or {}).items())
        passed = "passed" if s["passed"] else "FAILED"
        print(f"start {s['start']}: {s['passed_steps']}/{s['steps']} steps {passed}  {worst}")
    for f in total["failed_starts"]:
        print(f"{f['folder']}: {f['steps_recorded']} steps recorded, then {f['reason']}")
    print(f"{total['passed_steps']}/{total['asked']}: {total['verdict']}")
    if total["median_seconds"] is not None:
        print(
            f"speed: {total['median_seconds']:.4f} s a step (median); recording took"
            f" {total['recording_share']:.1%} of the programs' time"
        )
    print(f"evidence: {folder}")
    return 0 if total["passed"] else 1
