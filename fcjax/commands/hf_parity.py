"""Decode with every layer on shards, for several numbers of nodes, held against transformers.

    python -m experiments.hf_parity --model=models/smollm2-135m-instruct --nodes=2,3,4,5,6,7,8,12

transformers on torch in f32 decodes greedily once; then each number of nodes decodes the same
prompt, and every step's logits and token are compared. Needs torch (the extra `test`). Cost: for
SmolLM2-135M about a minute for each number of nodes on two cores. Expected: every row within 1e-5
and the text identical; where a token differs, the reference's top two logits are closer than that.
"""

from absl import flags

from fcjax import cli, hub
from fcjax.bench import huggingface
from fcjax.decode.audited import Programs
from fcjax.decode.decoder import Decoder
from fcjax.mesh import make_mesh, use_platform
from fcjax.model import checkpoint
from fcjax.sharded.interval import Interval, ShardedModel
from fcjax.sharded.layout import Layout
from fcjax.sharded.ownership import Plan
from fcjax.text.tokenizer import Text

FLAGS = flags.FLAGS
flags.DEFINE_string("model", "weights/tiny", "Folder with config.json and weights, or a hub id.")
flags.DEFINE_list("nodes", "2,3,4,5,6,7,8,12", "Numbers of nodes.")
flags.DEFINE_integer("steps", 250, "Tokens to decode.", lower_bound=1)
flags.DEFINE_string("prompt", "ROMEO:\n", "Text to go on from; a chat model gets it as a message.")


def main(_):
    every = cli.numbers("nodes", FLAGS.nodes)
    use_platform("cpu", max(every))
    folder = hub.model_folder(FLAGS.model)
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
        found = huggingface.compare(decoder, prompt_T, tokens, logits)
        audit = "clean" if programs.passed() else "FAILED"
        print(f"{plan.nodes:3} nodes: audit {audit}, {found}", flush=True)
        passed &= found.passed
    return 0 if passed else 1


if __name__ == "__main__":
    cli.run(main)
