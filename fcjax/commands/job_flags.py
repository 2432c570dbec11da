"""The flags of the programs that record runs, and the job that they describe."""

import dataclasses
import subprocess

from absl import flags

from fcjax import cli, cold_starts, files, hub
from fcjax.commands import shared_flags
from fcjax.mesh import hardware
from fcjax.model import checkpoint
from fcjax.record import baseline
from fcjax.record.job import Job
from fcjax.sharded.interval import Interval
from fcjax.text.tokenizer import Text

FLAGS = flags.FLAGS
flags.disclaim_key_flags()  # see shared_flags


def define() -> None:
    """The flags that `job` reads."""
    shared_flags.model()
    shared_flags.platform()
    shared_flags.nodes()
    shared_flags.layer()
    shared_flags.depth("1")
    shared_flags.steps()
    shared_flags.dtype()
    shared_flags.sampling()
    shared_flags.seed()
    flags.DEFINE_string("baseline", None, "Run folder that this run goes further than, or seed.")
    flags.DEFINE_enum("axis", None, baseline.CLASSES, "In which respect it does.")


def job(command: str, given: dict, prompts: list[str], starts: int, stop_at_eos: bool) -> Job:
    """The job that the flags describe; reads the model folder but no weights.

    Args:
      command: the name that the run's record has.
      given: the program's flags, for the record.
      prompts: texts to go on from, one a start, again from the first if they are fewer.
      starts: how many.
      stop_at_eos: whether an end-of-text token ends a row.

    Raises:
      ValueError: a flag, the model folder or the baseline is not what it has to be.
    """
    folder = hub.model_folder(shared_flags.model_path())
    source, text = checkpoint.open_folder(folder), Text(folder)
    encoded = [((p, tuple(text.encode(p)[0].tolist())),) for p in prompts]
    run = common(
        command,
        given,
        source,
        interval=Interval(FLAGS.layer, cli.depth(FLAGS.depth, source.cfg.L)),
        sampling=shared_flags.choice(),
        hardware=_hardware(),
        length=max(len(rows[0][1]) for rows in encoded) + FLAGS.steps,
        cold_starts=starts,
        steps=FLAGS.steps,
        prompts=tuple(encoded[i % len(encoded)] for i in range(starts)),
        eos=text.eos if stop_at_eos else (),
    )
    return dataclasses.replace(run, baseline=_baseline(run))


def common(command: str, given: dict, source, **fields) -> Job:
    """A job with the fields that its flags and its open model folder say; others are `fields`."""
    return Job(
        command=command,
        flags=files.plain(given),
        model_path=FLAGS.model,
        weights_sha256=source.digest,
        cfg=source.cfg,
        nodes=FLAGS.nodes,
        platform=FLAGS.platform,
        dtype=FLAGS.dtype,
        seed=FLAGS.seed,
        **fields,
    )


def _hardware() -> str:
    """The kinds of the nodes' devices, how many there are being another axis.

    Asks a process of its own, as each start has to be the first.
    """
    if FLAGS.platform == "cpu":
        return hardware("cpu", ())
    nodes = f"{FLAGS.platform!r}, jax.devices()[:{FLAGS.nodes}]"
    code = (
        "import jax; from fcjax.mesh import hardware, use_platform;"
        f"use_platform({FLAGS.platform!r}, {FLAGS.nodes}); print(hardware({nodes}))"
    )
    command, environment = cli.python("-c", code)
    asked = subprocess.run(command, env=environment, capture_output=True, text=True)
    if asked.returncode:
        last = (asked.stderr.strip().splitlines() or ["nothing"])[-1]
        raise ValueError(last.removeprefix("ValueError: "))
    return asked.stdout.strip().splitlines()[-1]


def _baseline(job: Job) -> dict:
    if FLAGS.baseline is None:
        if FLAGS.axis is not None:
            raise ValueError(f"axis: expected a --baseline with it, got only {FLAGS.axis}")
        return baseline.none()
    if FLAGS.baseline == baseline.SEED:
        described = baseline.seed()
    else:
        described = baseline.describe(cold_starts.read(FLAGS.baseline))
    return baseline.against(job, FLAGS.baseline, described, FLAGS.axis)
