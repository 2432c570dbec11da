"""The flags of the programs that record runs, and the job that they describe."""

import subprocess
import sys

from absl import flags

from fcjax import cli, cold_starts, hub
from fcjax.decode import parity
from fcjax.files import plain
from fcjax.mesh import hardware
from fcjax.model import checkpoint
from fcjax.record import baseline
from fcjax.record.job import Job
from fcjax.sharded.interval import Interval
from fcjax.sharded.sampling import Sampling
from fcjax.text.tokenizer import Text

FLAGS = flags.FLAGS
flags.DEFINE_string("model", "weights/tiny", "Folder with config.json and weights, or a hub id.")
flags.DEFINE_enum("platform", "cpu", ["cpu", "cuda"], "Where the nodes are; cpu emulates them.")
flags.DEFINE_integer("nodes", 2, "Number of nodes that the state is cut over.")
flags.DEFINE_integer("layer", 0, "The first layer that runs whole on shards.")
flags.DEFINE_string(
    "depth", "1", "How many layers in a row run on shards; all for the whole model."
)
flags.DEFINE_integer("steps", 50, "Decode steps.", lower_bound=1)
flags.DEFINE_enum("dtype", "float32", list(parity.BOUND), "Type of weights, state and cache.")
flags.DEFINE_float("temperature", 0.0, "0 decodes greedily, more draws tokens.", lower_bound=0.0)
flags.DEFINE_integer("top_k", 0, "Draw among that many tokens only; 0 for all.", lower_bound=0)
flags.DEFINE_float("top_p", 1.0, "Draw among the fewest tokens of at least this probability.")
flags.DEFINE_integer("seed", 0, "Seed of the draws.", lower_bound=0)
flags.DEFINE_string("baseline", None, "Run folder that this run goes further than, or seed.")
flags.DEFINE_enum("axis", None, baseline.CLASSES, "In which respect it does.")


def job(command: str, prompts: list[str], starts: int, stop_at_eos: bool) -> Job:
    """The job that the flags describe; reads the model folder but no weights.

    Raises:
      ValueError: a flag, the model folder or the baseline is not what it has to be.
    """
    folder = hub.model_folder(FLAGS.model)
    source, text = checkpoint.open_folder(folder), Text(folder)
    encoded = [((p, tuple(text.encode(p)[0].tolist())),) for p in prompts]
    longest = max(len(rows[0][1]) for rows in encoded)
    depth = cli.depth(FLAGS.depth, source.cfg.L)
    made = dict(
        command=command,
        flags=plain(cli.flag_values()),
        model_path=FLAGS.model,
        weights_sha256=source.digest,
        cfg=source.cfg,
        nodes=FLAGS.nodes,
        interval=Interval(FLAGS.layer, depth),
        sampling=Sampling(FLAGS.temperature, FLAGS.top_k, FLAGS.top_p),
        platform=FLAGS.platform,
        hardware=_hardware(),
        dtype=FLAGS.dtype,
        length=longest + FLAGS.steps,
        cold_starts=starts,
        steps=FLAGS.steps,
        seed=FLAGS.seed,
        prompts=tuple(encoded[i % len(encoded)] for i in range(starts)),
        eos=text.eos if stop_at_eos else (),
    )
    return Job(**made, baseline=_baseline(Job(**made)))


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
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
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
