"""Checks the evidence of a run again.

Hashes every file, audits the stored programs again, checks every step against the plan and against
the step before it, and counts the figures again; with --recompute so many steps, drawn at random,
are run again with the model's weights and their numbers compared. Exit code 0: verified. 1: not
verified, with file, line and field of every fault. 2: no run folder, or other weights than its.
"""

from absl import flags

from fcjax.mesh import use_platform
from fcjax.record import baseline, reader
from fcjax.verify.recompute import Recompute
from fcjax.verify.run import Verification

FLAGS = flags.FLAGS
ARGUMENTS = ("RUN_DIR",)
SHOWN = 20  # faults


def define_flags():
    flags.DEFINE_string("run", None, "The run's folder; may also stand without --run.")
    flags.DEFINE_integer("recompute", 0, "How many steps to run again.", lower_bound=0)
    flags.DEFINE_string("model", None, "Where the weights are, if not where the run had them.")


def main(argv):
    given = [*argv[1:], *([FLAGS.run] if FLAGS.run else [])]
    if len(given) != 1:
        raise ValueError(f"run: expected one run folder, got {given}")
    check = Verification(given[0])
    faults = check.check()
    lines = sum(len(x) for x in check.lines.values())
    print(
        f"{lines} lines of {len(check.lines)} starts checked, {check.audited} different programs"
        " audited again"
    )
    if check.job is not None:
        writers = ", ".join(sorted(check.writers)) or "(not said)"
        print(f"record: format {check.job.version}, written by fcjax {writers}")
    for line in check.notes:
        print(f"note: {line}")
    if FLAGS.recompute and not faults:
        use_platform(check.job.platform, check.job.nodes)
        again = Recompute(check.folder, check.job, FLAGS.model)
        again.check(check.lines, FLAGS.recompute, check.faults)
        steps = ", ".join(f"{step} of start {start}" for start, step in again.chosen)
        rest = len(again.chosen) - again.exact
        print(
            f"run again: step {steps} ({again.replayed} passes); {again.exact} compared bit for bit"
            + (
                f", {rest} within rounding, as program, compiler or machine are others"
                if rest
                else ""
            )
        )
    elif FLAGS.recompute:
        print("nothing was run again, as the record is at fault already")
    if faults:
        print(f"\nNOT VERIFIED: {len(faults)} fault(s)")
        print("\n".join(f"  {fault}" for fault in faults[:SHOWN]))
        if len(faults) > SHOWN:
            print(f"  ... and {len(faults) - SHOWN} more")
        return 1
    total = reader.summary(check.folder)
    print(f"baseline: {baseline.words(check.job.baseline)}")
    print("what this does not show:")
    print("\n".join(f"  - {limit}" for limit in check.job.limits))
    print(f"verified, {total['passed_steps']}/{total['asked']}: {total['verdict']}")
    return 0
