"""Decode over the nodes: audited programs, caches that stay on their owners, one token a step."""

import dataclasses
import time
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from fcjax import audit
from fcjax.model import Model, Program


@dataclasses.dataclass(frozen=True)
class Output:
    """What one pass of T tokens leaves behind, still on the nodes.

    Attributes:
      residual: shards [B, T, D_n] entering the interval's successor.
      qkv: shards [B, T, K_n, C, H] of the successor's q, k, v, before RoPE.
      complete_residual: [B, T, D] on every node, from the compatibility all-gather.
      complete_qkv: [B, T, K, C, H] on every node, likewise.
      logits: [B, V] of the last token, on every node.
      seconds: wall time of the three programs.
    """

    residual: jax.Array
    qkv: jax.Array
    complete_residual: jax.Array
    complete_qkv: jax.Array
    logits: jax.Array
    seconds: float

    def shards(self, cfg) -> tuple[np.ndarray, np.ndarray]:
        """The shards laid side by side on the host, without padding, as an observer sees them."""
        residual_BTD, qkv_BTKCH = jax.device_get((self.residual, self.qkv))
        return residual_BTD[:, :, : cfg.D], qkv_BTKCH[:, :, : cfg.K]

    def copies_agree(self, shards: tuple[np.ndarray, np.ndarray]) -> bool:
        """Whether the complete copy on every node equals `shards`, bit for bit."""
        return all(
            np.array_equal(own, jax.device_get(copy.data))
            for own, complete in zip(
                shards, (self.complete_residual, self.complete_qkv), strict=True
            )
            for copy in complete.addressable_shards
        )


class Programs:
    """The compiled programs of a model, whose interval is audited before anything may run it.

    Attributes:
      model: layouts and programs.
      batch: rows B.
      length: cache slots S.
      audits: for each number of tokens T that was compiled, the verdict on the interval's program.
    """

    def __init__(self, model: Model, batch: int, length: int):
        if not 0 < length <= model.plan.cfg.max_len:
            raise ValueError(
                f"cache: expected 1 to {model.plan.cfg.max_len} slots, the positions that the model"
                f" was made for, got {length}"
            )
        self.model, self.batch, self.length = model, batch, length
        self.audits: dict[int, audit.Verdict] = {}
        self._compiled = {}

    def prepare(self, tokens: int) -> audit.Verdict:
        """Compile for T tokens and audit the interval; needs no weights. Returns the verdict."""
        if tokens not in self.audits:
            model, sizes = self.model, (self.batch, tokens, self.length)
            compiled = [model.compile(p, *sizes) for p in (model.before, model.inside, model.after)]
            contract = audit.interval_contract(model, *sizes)
            self.audits[tokens] = audit.audit_compiled(compiled[1], contract)
            self._compiled[tokens] = compiled
        return self.audits[tokens]

    def passed(self) -> bool:
        """Whether every program that was compiled passed its audit."""
        return all(verdict.ok for verdict in self.audits.values())

    def get(self, tokens: int):
        """The executables of `before`, `inside` and `after` for T tokens.

        Raises:
          audit.Failed: the interval's program did not pass its audit, so none is handed out.
        """
        verdict = self.prepare(tokens)
        if not verdict.ok:
            raise audit.Failed(verdict)
        return self._compiled[tokens]


class Decoder:
    """A model on its nodes, with the caches of one batch of prompts.

    Attributes:
      programs: the audited programs.
      pos: tokens in the caches.
    """

    def __init__(self, programs: Programs, params: dict[str, jax.Array]):
        """
        Args:
          programs: made for the model that `params` belong to.
          params: every parameter by path, laid out as `Model.params` says.
        """
        self.programs, self.pos = programs, 0
        self._params = params
        self._caches = programs.model.init_cache(programs.batch, programs.length)
        self._everywhere = jax.NamedSharding(programs.model.mesh, jax.P())

    def step(self, tokens_BT) -> Output:
        """Run T tokens of every row through the model and append them to the caches.

        Args:
          tokens_BT: int array [B, T] of token ids: on the host, or on every node.

        Raises:
          ValueError: a token id is outside the vocabulary, or the cache has no room for T more.
          audit.Failed: the interval's program did not pass its audit.
        """
        tokens_BT = self._check(tokens_BT)
        model = self.programs.model
        before, inside, after = self.programs.get(tokens_BT.shape[1])
        start = time.perf_counter()
        # A host array that slips in among the arguments would be copied to every node in silence.
        # (Copies to the host are refused on GPUs only; that a step makes none rests on the audit.)
        with jax.transfer_guard("disallow"):
            tokens, pos = jax.device_put(
                (np.asarray(tokens_BT, np.int32), np.int32(self.pos)), self._everywhere
            )
            (x_BTDn,) = self._run(model.before, before, pos, tokens)
            x_BTDn, qkv_BTKnCH, x_BTD, qkv_BTKCH = self._run(model.inside, inside, pos, x_BTDn)
            (logits_BV,) = self._run(model.after, after, pos, x_BTD, qkv_BTKCH)
            jax.block_until_ready(logits_BV)
        self.pos += tokens_BT.shape[1]
        seconds = time.perf_counter() - start
        return Output(x_BTDn, qkv_BTKnCH, x_BTD, qkv_BTKCH, logits_BV, seconds)

    def _run(self, program: Program, executable, pos, *arguments):
        params = {path: self._params[path] for path in program.params}
        caches = [self._caches[i] for i in program.layers]
        *results, caches = executable(params, caches, *arguments, pos)
        for i, cache in zip(program.layers, caches, strict=True):
            self._caches[i] = cache
        return results

    def _check(self, tokens_BT) -> np.ndarray:
        batch, length = self.programs.batch, self.programs.length
        tokens_BT, vocabulary = np.asarray(tokens_BT), self.programs.model.plan.cfg.V
        if tokens_BT.ndim != 2 or tokens_BT.shape[0] != batch or tokens_BT.shape[1] < 1:
            raise ValueError(
                f"tokens: expected shape ({batch}, T) with T > 0, got {tokens_BT.shape}"
            )
        wrong = tokens_BT[(tokens_BT < 0) | (tokens_BT >= vocabulary)]
        if wrong.size:
            raise ValueError(f"tokens: expected ids of 0 to {vocabulary - 1}, got {wrong[0]}")
        if self.pos + tokens_BT.shape[1] > length:
            raise ValueError(
                f"cache: expected at most {length} tokens, got {self.pos} + {tokens_BT.shape[1]}"
            )
        return tokens_BT


def chooser(temperature: float, seed: int) -> Callable[[jax.Array, int], np.ndarray]:
    """How the next token is taken from the logits.

    Args:
      temperature: 0 takes the largest logit (ties to the lowest id), otherwise one token is drawn
        from softmax(logits / temperature).
      seed: of the draws; every step has its own key, so a run can be repeated from any step.

    Returns:
      ``choose(logits_BV, step) -> int32 [B]`` on the host.
    """
    if not temperature >= 0:
        raise ValueError(f"temperature: expected 0 or more, got {temperature}")

    @jax.jit
    def draw(logits_BV, step):
        key = jax.random.fold_in(jax.random.key(seed), step)
        return jax.random.categorical(key, logits_BV.astype(jnp.float32) / temperature)

    def choose(logits_BV, step):
        # The logits are on every node; the first one's copy is as good as any.
        logits_BV = logits_BV.addressable_shards[0].data
        if temperature == 0:
            return jax.device_get(jnp.argmax(logits_BV, axis=-1))
        return jax.device_get(draw(logits_BV, step))

    return choose


@dataclasses.dataclass(frozen=True)
class Step:
    """One decode step: the tokens that went in, the pass, and the tokens that came out."""

    index: int
    tokens_in: np.ndarray  # [B, 1]
    output: Output
    tokens_out: np.ndarray  # [B, 1]


def decode(decoder: Decoder, first_BT, steps: int, choose, eos=()) -> Iterator[Step]:
    """Prefill, then one token a step.

    Args:
      decoder: with empty caches.
      first_BT: int array [B, T], the prompts.
      steps: at most so many decode steps.
      choose: as `chooser` makes it.
      eos: ids that end a row; decoding stops when every row has ended.

    Yields:
      Step -1, the prefill (its tokens_in are the prompts), then steps 0, 1, ...
    """
    first_BT = np.asarray(first_BT)
    batch, length = decoder.programs.batch, decoder.programs.length
    if first_BT.shape[-1] + steps > length:
        raise ValueError(
            f"cache: expected at most {length} tokens, got a prompt of"
            f" {first_BT.shape[-1]} and {steps} steps"
        )
    tokens, ended = first_BT, np.zeros(batch, bool)
    for index in range(-1, steps):
        output = decoder.step(tokens)
        chosen = choose(output.logits, index + 1)[:, None]
        yield Step(index, tokens, output, chosen)
        tokens = chosen
        ended |= np.isin(chosen[:, 0], list(eos))
        if ended.all():
            return
