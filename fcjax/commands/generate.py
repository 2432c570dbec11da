"""Text from a model whose state stays cut over the nodes from the embedding to the chosen token.

A prompt goes to a chat model as a user's message, to any other as it is; several --prompt make one
batch, and each gets the text that it gets alone. --messages takes conversations from a JSON file:
[{"role": "user", "content": "..."}], or a list of such lists. --interactive reads a conversation
line by line; /reset forgets it, the end of the input ends it, and what the caches hold of it is not
computed again. --depth=1 --layer=L runs one layer on shards and leaves the others unmodified.

The text goes to stdout as it is made, all else to stderr. generation_config.json of the model says
how tokens are chosen where no flag does. Every pass runs a program that passed the audit. With
--evidence=DIR every pass is compared with the unsharded reference and recorded (docs/EVIDENCE.md).

Exit code 1: the audit failed, and nothing ran, or a recorded pass did not pass.
"""

import dataclasses
import json
import os
import sys
import time

import jax
import jax.numpy as jnp
from absl import flags

from fcjax import audit, cli, cold_starts, hub
from fcjax.commands import job_flags, shared_flags
from fcjax.decode.audited import Programs
from fcjax.decode.decoder import Decoder
from fcjax.mesh import hardware, make_mesh, use_platform
from fcjax.model import checkpoint
from fcjax.record import baseline, reader
from fcjax.sharded.interval import Interval, ShardedModel
from fcjax.sharded.layout import Layout
from fcjax.sharded.ownership import Plan
from fcjax.text import chat, generate, generation_config, interactive
from fcjax.text.tokenizer import Text

FLAGS = flags.FLAGS
MAX_NEW_TOKENS = 128


def define_flags():
    shared_flags.model()
    shared_flags.platform()
    shared_flags.nodes()
    shared_flags.layer()
    shared_flags.depth("all")
    shared_flags.dtype()
    shared_flags.prompts("Text to go on from; may be given several times.")
    flags.DEFINE_string("messages", None, "JSON file with one conversation, or a list of them.")
    flags.DEFINE_string("system", None, "System message before the conversation, for a chat model.")
    flags.DEFINE_bool("interactive", False, "Read the user's lines from stdin.")
    flags.DEFINE_integer("context", 2048, "Tokens that an interactive conversation may have.", 2)
    flags.DEFINE_integer(
        "max_new_tokens", None, f"At most so many for a row. [the model's, or {MAX_NEW_TOKENS}]", 1
    )
    shared_flags.sampling(model_decides=True)
    shared_flags.seed()
    flags.DEFINE_string("evidence", None, "New folder for a record of every pass.")


@dataclasses.dataclass(frozen=True)
class Setup:
    """What the flags and the model folder say.

    Attributes:
      source: the model folder; its weights are not read yet.
      text: its tokenizer.
      layout: the model on its nodes.
      new: tokens that a row, or an answer, may have at most.
      length: tokens that a row of the caches may have.
      prompts: for each row, what was asked and its token ids; empty if lines are read.
    """

    source: checkpoint.HuggingFaceFolder | checkpoint.OrbaxFolder
    text: Text
    layout: Layout
    new: int
    length: int
    prompts: tuple[tuple[str, jax.typing.ArrayLike], ...] = ()

    @property
    def ids(self) -> list:
        """Token ids of each row."""
        return [ids for _, ids in self.prompts]


def main(_):
    sys.stdout.reconfigure(errors="backslashreplace")  # a terminal without Unicode
    sys.stdin.reconfigure(errors="replace")
    check_flags()
    use_platform(FLAGS.platform, FLAGS.nodes)
    s = setup()
    if FLAGS.evidence is not None:
        return record(s)
    conversation = chat.Conversation(s.text, FLAGS.system)
    programs = Programs(s.layout, len(s.prompts) or 1, s.length)
    start = time.perf_counter()
    for tokens in generate.passes(programs, max(map(len, s.ids), default=s.length)):
        note(f"audit, {tokens} token(s) at a time: {programs.prepare(tokens)}")
    if not programs.passed():
        return 1
    compiled = time.perf_counter()
    decoder = Decoder(programs, s.source.load(s.layout.params()), FLAGS.seed)
    note(f"compiled in {compiled - start:.1f} s, loaded in {time.perf_counter() - compiled:.1f} s")
    generator = generate.Generator(decoder, s.text)
    if s.prompts:
        show = generate.InOrder(len(s.prompts), write)
        note(generator.generate(s.ids, s.new, show).summary())
        return 0
    try:
        interactive.talk(
            generator, conversation, interactive.read_lines(sys.stdin, ask), s.new, write, note
        )
    except KeyboardInterrupt:
        return 130
    return 0


def check_flags() -> None:
    """Raise ValueError unless there is one source of prompts, and it goes with --evidence."""
    sources = {
        "--prompt": FLAGS.prompt is not None,
        "--messages": FLAGS.messages is not None,
        "--interactive": FLAGS.interactive,
    }
    given = [name for name, there in sources.items() if there]
    if len(given) != 1:
        raise ValueError(
            f"prompt: expected one of {', '.join(sources)}, got {' and '.join(given) or 'none'}"
        )
    if FLAGS.interactive and FLAGS.evidence is not None:
        raise ValueError("evidence: expected --prompt or --messages with it, got --interactive")
    if FLAGS.evidence is not None and os.path.lexists(FLAGS.evidence):
        raise ValueError(f"evidence: expected a new folder, got an existing one ({FLAGS.evidence})")


def setup() -> Setup:
    """Everything that can be refused before anything is compiled or loaded."""
    folder = hub.model_folder(shared_flags.model_path())
    source, text = checkpoint.open_folder(folder), Text(folder)
    cfg = source.cfg
    settings = generation_config.settings(
        folder,
        temperature=FLAGS.temperature,
        top_k=FLAGS.top_k,
        top_p=FLAGS.top_p,
        repetition_penalty=FLAGS.repetition_penalty,
    )
    interval = Interval(FLAGS.layer, cli.depth(FLAGS.depth, cfg.L))
    plan, mesh, dtype = Plan(cfg, FLAGS.nodes), make_mesh(FLAGS.nodes), jnp.dtype(FLAGS.dtype)
    layout = Layout(ShardedModel(plan, interval, settings.sampling), mesh, dtype)
    default = settings.max_new_tokens or MAX_NEW_TOKENS
    prompts = () if FLAGS.interactive else encode(text)
    if prompts:
        ids = [ids for _, ids in prompts]
        new = generate.room(ids, cfg.max_len, FLAGS.max_new_tokens, default)
        length = max(map(len, ids)) + new
    else:
        new, length = FLAGS.max_new_tokens or default, min(FLAGS.context, cfg.max_len)
    for line in settings.notes:
        note(f"note: {line}")
    note(settings.words())
    return Setup(source, text, layout, new, length, prompts)


def encode(text: Text) -> tuple:
    """For each row, what was asked and its token ids."""
    if FLAGS.messages is not None:
        asked = [chat.with_system(m, FLAGS.system) for m in chat.read_messages(FLAGS.messages)]
        return tuple((json.dumps(m), text.encode_messages(m)[0]) for m in asked)
    for i, prompt in enumerate(FLAGS.prompt):
        if not prompt:
            raise ValueError(f"prompt {i}: expected at least one token, got '' (--prompt)")
    conversation = chat.Conversation(text, FLAGS.system)
    return tuple((prompt, conversation.ask(prompt)) for prompt in FLAGS.prompt)


def record(s: Setup) -> int:
    """The same as one recorded start: every pass beside the unsharded reference."""
    job = job_flags.common(
        "generate",
        cli.flag_values(__name__),
        s.source,
        interval=s.layout.model.interval,
        sampling=s.layout.model.sampling,
        hardware=hardware(FLAGS.platform, s.layout.mesh.devices.flat),
        length=s.length,
        cold_starts=1,
        steps=s.new,
        prompts=(tuple((asked, tuple(ids.tolist())) for asked, ids in s.prompts),),
        eos=s.text.eos,
        baseline=baseline.none(),
    )
    try:
        with cold_starts.recorded_here(FLAGS.evidence, job) as start:
            for tokens, verdict in start.prepare().audits.items():
                note(f"audit, {tokens} token(s) at a time: {verdict}")
            start.load()
            show = generate.InOrder(len(s.prompts), write)
            batch = generate.Batch(s.ids, s.text, s.new, show)
            start.decode(batch.follow)
    except audit.Failed as e:
        note(f"{e}\nevidence: {FLAGS.evidence}")
        return 1
    total = reader.summary(FLAGS.evidence)
    note(f"{batch.result().summary()}, recording included")
    note(f"{total['verdict']}\nevidence: {FLAGS.evidence}")
    return 0 if total["passed"] else 1


def ask() -> None:
    """A mark where a person is to write."""
    if sys.stdin.isatty():
        print("> ", end="", file=sys.stderr, flush=True)


def write(piece: str) -> None:
    print(piece, end="", flush=True)


def note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
