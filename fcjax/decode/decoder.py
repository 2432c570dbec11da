"""A model on its nodes, with the caches of one batch of prompts: one pass at a time."""

import dataclasses
import time
from collections.abc import Callable, Sequence

import jax
import numpy as np

from fcjax.decode.audited import Programs
from fcjax.sharded import layout
from fcjax.sharded.programs import Program


@dataclasses.dataclass(frozen=True)
class Output:
    """What one pass of T tokens leaves behind, still on the nodes.

    Attributes:
      values: by name (`layout.VALUES`): "residual" at the interval's end; "qkv" and both complete
        ones unless the whole model is inside; "logits" and "next_tokens" if T = 1.
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
        there = [name for name in layout.names(layout.SHARD) if name in self.values]
        whole = jax.device_get({name: self.values[name] for name in there})
        return {name: layout.VALUES[name].without_padding(cfg, x) for name, x in whole.items()}

    def copies_agree(self, shards: dict[str, np.ndarray]) -> bool:
        """Whether every complete copy on every node equals `shards`, bit for bit."""
        return all(
            np.array_equal(shards[name], jax.device_get(copy.data))
            for name in shards
            if f"complete_{name}" in self.values
            for copy in self.values[f"complete_{name}"].addressable_shards
        )


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
          params: every parameter by path, laid out as `Layout.params` says.
          seed: of the draws, if tokens are drawn.
        """
        self.programs, self.params = programs, params
        self.caches = programs.layout.init_cache(programs.batch, programs.slots)
        # The tokens that each row already has; read where repetition is penalised.
        self._seen_BV = np.zeros((programs.batch, programs.model.plan.split("V").padded), bool)
        self.watch: Watch | None = None
        self._everywhere = jax.NamedSharding(programs.layout.mesh, jax.P())
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
        target = self.programs.layout.value("seen", batch, 1)
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
