"""Decode over the nodes: audited programs, caches that stay on their owners, one token a step.

A prompt's tokens but the last are put into the caches in chunks (prefill); then every step takes
one token of each row, the prompt's last one first, and gives the next.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence

import jax
import numpy as np

from fcjax import audit
from fcjax.sharded.programs import Model, Program


@dataclasses.dataclass(frozen=True)
class Output:
    """What one pass of T tokens leaves behind, still on the nodes.

    Attributes:
      values: by name, as `Model.value` lays them out: "residual" at the interval's end; "qkv",
        "complete_residual" and "complete_qkv" unless the whole model is inside; "logits" and
        "next_tokens" if T = 1.
      seconds: wall time of the programs.
    """

    values: dict[str, jax.Array]
    seconds: float

    @property
    def next_tokens(self) -> np.ndarray:
        """The chosen tokens, int32 [B, 1], on the host; every node has them."""
        return jax.device_get(self.values["next_tokens"].addressable_shards[0].data)

    def shards(self, cfg) -> dict[str, np.ndarray]:
        """The shards laid side by side on the host, without padding, as an observer sees them."""
        found = jax.device_get({n: self.values[n] for n in _SHARDS if n in self.values})
        return {name: whole[_SHARDS[name](cfg)] for name, whole in found.items()}

    def copies_agree(self, shards: dict[str, np.ndarray]) -> bool:
        """Whether every complete copy on every node equals `shards`, bit for bit."""
        return all(
            np.array_equal(shards[name], jax.device_get(copy.data))
            for name in shards
            if f"complete_{name}" in self.values
            for copy in self.values[f"complete_{name}"].addressable_shards
        )


# The true coordinates of the values that are shards.
_SHARDS = {
    "residual": lambda cfg: np.s_[:, :, : cfg.D],
    "qkv": lambda cfg: np.s_[:, :, : cfg.K],
    "logits": lambda cfg: np.s_[:, : cfg.V],
}


class Programs:
    """The compiled programs of a model, whose interval is audited before anything may run it.

    Attributes:
      model: layouts and programs.
      batch: rows B.
      length: tokens that a row may have in the caches.
      chunk: tokens T of a prefill pass.
      slots: of the caches: `length`, and room for a last chunk that is mostly padding.
      audits: for each number of tokens T that was compiled, the verdict on the interval's program.
    """

    def __init__(self, model: Model, batch: int, length: int, chunk: int = 32):
        if not 0 < length <= model.plan.cfg.max_len:
            raise ValueError(
                f"cache: expected 1 to {model.plan.cfg.max_len} tokens, the positions that the"
                f" model was made for, got {length}"
            )
        if chunk < 2:
            raise ValueError(f"chunk: expected at least 2 tokens a prefill pass, got {chunk}")
        self.model, self.batch, self.length, self.chunk = model, batch, length, chunk
        self.slots = length + chunk
        self.audits: dict[int, audit.Verdict] = {}
        self._compiled = {}

    def prepare(self, tokens: int) -> audit.Verdict:
        """Compile for T tokens and audit the interval; needs no weights. Returns the verdict."""
        if tokens not in self.audits:
            model, sizes = self.model, (self.batch, tokens, self.slots)
            compiled = [(p, model.compile(p, *sizes)) for p in model.programs(tokens)]
            (inside,) = (executable for p, executable in compiled if p.name == "interval")
            contract = audit.interval_contract(model, *sizes)
            self.audits[tokens] = audit.audit_compiled(inside, contract)
            self._compiled[tokens] = compiled
        return self.audits[tokens]

    def passed(self) -> bool:
        """Whether every program that was compiled passed its audit."""
        return all(verdict.ok for verdict in self.audits.values())

    def get(self, tokens: int) -> list[tuple[Program, jax.stages.Compiled]]:
        """The programs of a pass of T tokens with their executables, in order.

        Raises:
          audit.Failed: the interval's program did not pass its audit, so none is handed out.
        """
        verdict = self.prepare(tokens)
        if not verdict.ok:
            raise audit.Failed(verdict)
        return self._compiled[tokens]


# Called around the interval with "entry" or "exit" and the values of the pass so far.
Watch = Callable[[str, dict[str, jax.Array]], None]


class Decoder:
    """A model on its nodes, with the caches of one batch of prompts.

    Attributes:
      programs: the audited programs.
      params: every parameter by path.
      caches: (k, v) of every layer, each shard on its owner.
      watch: an observer of the interval; its time is not counted as the pass's.
    """

    def __init__(self, programs: Programs, params: dict[str, jax.Array], seed: int = 0):
        """
        Args:
          programs: made for the model that `params` belong to.
          params: every parameter by path, laid out as `Model.params` says.
          seed: of the draws, if tokens are drawn.
        """
        self.programs, self.params = programs, params
        self.caches = programs.model.init_cache(programs.batch, programs.slots)
        # The tokens that each row already has; read where repetition is penalised.
        self._seen_BV = np.zeros((programs.batch, programs.model.plan.split("V").padded), bool)
        self.watch: Watch | None = None
        self._everywhere = jax.NamedSharding(programs.model.mesh, jax.P())
        self._seed = jax.device_put(np.uint32(seed), self._everywhere)

    def begin(self, prompts: Sequence[np.ndarray]) -> None:
        """Rows with these token ids are what the steps from now on go on with."""
        self._seen_BV[:] = False
        for row, prompt in enumerate(prompts):
            self._seen_BV[row, prompt] = True

    def step(self, tokens_BT, pos_B) -> Output:
        """Run T tokens of every row through the model and write them into the caches.

        Args:
          tokens_BT: token ids [B, T]: on the host, or the `next_tokens` of the last step.
          pos_B: int array [B] on the host, the position of each row's first token.

        Raises:
          ValueError: a token id is outside the vocabulary, or the cache has no room for T more.
          audit.Failed: the interval's program did not pass its audit.
        """
        pos_B = np.asarray(pos_B, np.int32)
        tokens_BT = self._check(tokens_BT, pos_B)
        programs = self.programs.get(tokens_BT.shape[1])
        start = time.perf_counter()
        # A host array that slips in among the arguments would be copied to every node in silence.
        # (Copies to the host are refused on GPUs only; that a step makes none rests on the audit.)
        with jax.transfer_guard("disallow"):
            tokens, pos = jax.device_put((tokens_BT, pos_B), self._everywhere)
            values = {"tokens": tokens, "pos": pos, "seed": self._seed}
            if "seen" in programs[-1][0].arguments:
                values["seen"] = self._see(tokens_BT)
            watched = 0.0
            for program, executable in programs:
                inside = program.name == "interval"
                watched += self._show("entry", values) if inside else 0
                self._run(program, executable, values)
                watched += self._show("exit", values) if inside else 0
            jax.block_until_ready(values)
        seconds = time.perf_counter() - start - watched
        return Output(
            {n: values[n] for n in values if n not in ("tokens", "seed", "seen")}, seconds
        )

    def _run(self, program: Program, executable, values: dict[str, jax.Array]) -> None:
        params = {path: self.params[path] for path in program.params}
        caches = [self.caches[i] for i in program.layers]
        *results, caches = executable(params, caches, *(values[n] for n in program.arguments))
        for i, cache in zip(program.layers, caches, strict=True):
            self.caches[i] = cache
        values.update(zip(program.results, results, strict=True))

    def _see(self, tokens_B1) -> jax.Array:
        """The rows' tokens so far, these among them, each node's own part on the node."""
        batch = self.programs.batch
        self._seen_BV[np.arange(batch), jax.device_get(tokens_B1)[:, 0]] = True
        target = self.programs.model.value("seen", batch, 1)
        return jax.device_put(self._seen_BV, target.sharding)

    def _show(self, when: str, values: dict[str, jax.Array]) -> float:
        """Seconds that the observer took."""
        if self.watch is None:
            return 0.0
        jax.block_until_ready(values)
        start = time.perf_counter()
        self.watch(when, values)
        return time.perf_counter() - start

    def _check(self, tokens_BT, pos_B):
        batch, slots = self.programs.batch, self.programs.slots
        vocabulary = self.programs.model.plan.cfg.V
        if tokens_BT.ndim != 2 or tokens_BT.shape[0] != batch or tokens_BT.shape[1] < 1:
            raise ValueError(
                f"tokens: expected shape ({batch}, T) with T > 0, got {tokens_BT.shape}"
            )
        if pos_B.shape != (batch,) or pos_B.min() < 0:
            raise ValueError(f"pos: expected {batch} positions from 0 on, got {pos_B}")
        if pos_B.max() + tokens_BT.shape[1] > slots:
            raise ValueError(
                f"cache: expected at most {slots} slots, got {pos_B.max()} + {tokens_BT.shape[1]}"
            )
        if isinstance(tokens_BT, jax.Array):
            return tokens_BT  # chosen by the nodes, from the vocabulary
        wrong = tokens_BT[(tokens_BT < 0) | (tokens_BT >= vocabulary)]
        if wrong.size:
            raise ValueError(f"tokens: expected ids of 0 to {vocabulary - 1}, got {wrong[0]}")
        return tokens_BT.astype(np.int32)


@dataclasses.dataclass(frozen=True)
class Step:
    """One pass: the tokens that went in, at which positions, and what came out.

    Attributes:
      index: 0, 1, ... for decode steps; the prefill passes before them count up to -1.
      tokens_in: int32 [B, T]; T = 1 in a decode step. A row's chunk is filled up with token 0.
      pos: int32 [B].
      own: bool [B, T], which tokens are the row's own; the others fill its chunk up.
      output: what is still on the nodes.
      tokens_out: int32 [B, 1]; None in prefill.
    """

    index: int
    tokens_in: np.ndarray
    pos: np.ndarray
    own: np.ndarray
    output: Output
    tokens_out: np.ndarray | None


def chunks(
    prompts: Sequence[np.ndarray], size: int, cached_B=None
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Every prompt's tokens but the last as passes of `size` tokens: (tokens_BT, pos_B) of each.

    The first `cached_B` tokens of each row are left out. Rows are filled up with token 0, behind
    their own tokens: nothing reads those slots before they are written again.
    """
    ends_B = np.array([len(p) - 1 for p in prompts], np.int32)
    starts_B = np.zeros_like(ends_B) if cached_B is None else np.asarray(cached_B, np.int32)
    passes = []
    for done in range(0, int(max(ends_B - starts_B)), size):
        pos_B = np.minimum(starts_B + done, ends_B)
        tokens_BT = np.zeros((len(prompts), size), np.int32)
        for row, prompt in enumerate(prompts):
            part = prompt[pos_B[row] : min(pos_B[row] + size, ends_B[row])]
            tokens_BT[row, : len(part)] = part
        passes.append((tokens_BT, pos_B))
    return passes


def decode(decoder: Decoder, prompts, steps: int, eos=(), cached_B=None) -> Iterator[Step]:
    """Prefill, then one token a step.

    Args:
      decoder: with empty caches, but for what `cached_B` says.
      prompts: int array of each row.
      steps: at most so many decode steps.
      eos: ids that end a row; decoding stops when every row has ended. Until then an ended row
        goes on, and what it gives is to be left out.
      cached_B: of each row, how many of the prompt's first tokens are in the caches already, from
        an earlier run; less than all. [none]

    Raises:
      ValueError: wrong number of prompts, an empty one, one that does not fit into the caches, or
        one whose last token is said to be in them.
      FloatingPointError: no logit of a row is a number.
    """
    batch, length = decoder.programs.batch, decoder.programs.length
    prompts = [np.asarray(p, np.int32) for p in prompts]
    if len(prompts) != batch:
        raise ValueError(f"prompts: expected {batch}, one for each row, got {len(prompts)}")
    for row, prompt in enumerate(prompts):
        if prompt.ndim != 1 or not len(prompt):
            raise ValueError(f"prompt {row}: expected at least one token, got {prompt.tolist()}")
        if len(prompt) + steps > length:
            raise ValueError(
                f"cache: expected at most {length} tokens, got prompt {row} of {len(prompt)}"
                f" and {steps} more"
            )
    cached_B = [0] * batch if cached_B is None else list(cached_B)
    if len(cached_B) != batch or any(
        not 0 <= c < len(p) for c, p in zip(cached_B, prompts, strict=False)
    ):
        raise ValueError(
            f"cached: expected {batch} numbers of tokens, less than {[len(p) for p in prompts]},"
            f" got {cached_B}"
        )
    passes = chunks(prompts, decoder.programs.chunk, cached_B)
    ends_B = np.array([len(p) - 1 for p in prompts], np.int32)
    for index, (tokens_BT, pos_B) in enumerate(passes, start=-len(passes)):
        own_BT = pos_B[:, None] + np.arange(tokens_BT.shape[1])[None] < ends_B[:, None]
        yield Step(index, tokens_BT, pos_B, own_BT, decoder.step(tokens_BT, pos_B), None)
    tokens_in, pos_B = np.array([[p[-1]] for p in prompts], np.int32), ends_B
    tokens, own_B1 = tokens_in, np.ones((batch, 1), bool)
    decoder.begin(prompts)
    ended = np.zeros(batch, bool)
    for index in range(steps):
        output = decoder.step(tokens, pos_B)
        tokens, tokens_out = output.values["next_tokens"], output.next_tokens
        if tokens_out.max() >= decoder.programs.model.plan.cfg.V:
            raise FloatingPointError(f"step {index}: expected a number among the logits of a row")
        yield Step(index, tokens_in, pos_B, own_B1, output, tokens_out)
        ended |= np.isin(tokens_out[:, 0], list(eos))
        if ended.all():
            return
        tokens_in, pos_B = tokens_out, pos_B + 1
