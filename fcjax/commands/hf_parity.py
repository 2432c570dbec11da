"""Decode with every layer on shards, for several numbers of nodes, held against transformers.

transformers on torch in f32 decodes greedily once; then each number of nodes decodes the same
prompt, and every step's logits and token are compared. Needs torch. Exit code 1: a row differs by
more than rounding.
"""

from absl import flags

from fcjax import cli, hub
from fcjax.bench import huggingface
from fcjax.commands import shared_flags
from fcjax.decode.audited import Programs
from fcjax.decode.decoder import Decoder
from fcjax.mesh import make_mesh, use_platform
from fcjax.model import checkpoint
from fcjax.sharded.interval import Interval, ShardedModel
from fcjax.sharded.layout import Layout
from fcjax.sharded.ownership import Plan
from fcjax.text.tokenizer import Text

FLAGS = flags.FLAGS


def define_flags():
    shared_flags.model()
    shared_flags.numbers_of_nodes()
    shared_flags.steps(250)
    shared_flags.prompt("ROMEO:\n")


def main(_):
    every = cli.numbers("nodes", FLAGS.nodes)
    shared_flags.need("torch", "test")
    use_platform("cpu", max(every))
    folder = hub.model_folder(shared_flags.model_path())
    source = checkpoint.open_folder(folder)
    plans = [Plan(source.cfg, n) for n in every]  # a split that is refused is refused now
    prompt_T = Text(folder).encode(FLAGS.prompt)[0]
    tokens, logits = huggingface.greedy(folder, prompt_T, FLAGS.steps)
    print(f"{folder}: prompt of {len(prompt_T)} tokens, every layer on shards, f32", flush=True)
    passed = True
    for plan in plans:
        layout = Layout(ShardedModel(plan, Interval(0, source.cfg.L)), make_mesh(plan.nodes))
        programs = Programs(layout, batch=1, length=len(prompt_T) + FLAGS.steps)
        decoder = Decoder(programs, source.load(layout.params()))
        comparison = huggingface.compare(decoder, prompt_T, tokens, logits)
        audit = "clean" if programs.passed() else "FAILED"
        print(f"{plan.nodes:3} nodes: audit {audit}, {comparison}", flush=True)
        passed &= comparison.passed
    return 0 if passed else 1
