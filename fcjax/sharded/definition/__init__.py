"""What the plan says that every value on the wire, every result and every cache write is.

The operators once more, in numpy and float64: `fcjax.audit.identity` holds a compiled program
against them. A program is cut at its transfers. What a node receives from one is drawn afresh, so
each value is a function of the node's own blocks, of public values, and of what it was handed.

Padding is treated as any other coordinate: it is random where it comes in, and the operators take
zero padding to zero padding.
"""

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from fcjax.audit.draws import Draws
from fcjax.audit.identity import Nodes, Result, Transfer
from fcjax.model.config import ModelConfig
from fcjax.sharded.definition import functions
from fcjax.sharded.definition.choice import Choice
from fcjax.sharded.interval import ShardedModel, boundaries
from fcjax.sharded.ownership import Plan


@dataclasses.dataclass(frozen=True)
class Definition:
    """The interval of a model, for B rows, T new tokens and caches of S slots.

    Attributes:
      model: the model that the program is of.
      batch, tokens, length: B, T and S.
    """

    model: ShardedModel
    batch: int
    tokens: int
    length: int

    @property
    def plan(self) -> Plan:
        return self.model.plan

    @property
    def cfg(self) -> ModelConfig:
        return self.plan.cfg

    @property
    def nodes(self) -> int:
        """N."""
        return self.plan.nodes

    def draw(self, roles, draws: Draws) -> dict[str, Nodes]:
        """Random inputs: an array for each node, by the names of the parameters' roles.

        Args:
          roles: of the program's parameters (`Signature.parameters`), with the node's own shapes.
          draws: where the numbers come from.
        """
        public = {
            "tokens": draws.distinct(0, self.cfg.V, (self.batch, self.tokens)),
            "pos": draws.distinct(0, self.length - self.tokens + 1, self.batch),
            "seed": draws.integers(0, 2**32, (), np.uint32),
        }

        def one(role) -> np.ndarray:
            leaf = role.name.rpartition(".")[2]
            if leaf in public:
                return public[leaf]
            if leaf == "seen":
                return draws.integers(0, 2, role.shape, np.bool_)
            if leaf in ("residual", "cache_v"):
                return draws.state(role.shape, spread=2)
            if leaf == "cache_k" or len(role.shape) == 1 or leaf.endswith("bias"):
                return draws.state(role.shape)
            return draws.block(role.shape)

        return {role.name: [one(role) for _ in range(self.nodes)] for role in roles}

    def run(self, values: dict[str, Nodes], draws: Draws, near: Callable) -> Iterator[Transfer]:
        """The transfers in order. What the nodes are handed is to be sent in.

        Args:
          values: the inputs, from `draw`.
          draws: where what the nodes are handed comes from.
          near: number or array -> the same as the program has rounded it; itself if it has not.

        Returns:
          The program's results in order.
        """
        run, whole = _Run(self, values, draws, near), self.model.whole
        for boundary in boundaries(self.model, self.batch, self.tokens):
            layer, _, name = boundary.scope.rpartition("/")
            yield from getattr(run, f"_{name}")(layer.replace("layer_", "layers."))
        if whole:
            results = [run.chosen, run.logits] if self.tokens == 1 else []
            return [*map(Result, (*results, run.x)), *run.caches]
        complete = yield from run.gather()
        return [*map(Result, (run.x, run.qkv, *complete)), *run.caches]


class _Run:
    """The operators one after the other, on all nodes at once.

    Each is a generator, by its name in the table, and is told its layer: "layers.3", or "".
    """

    def __init__(self, definition: Definition, values, draws: Draws, near: Callable):
        self.definition, self.values, self.draws, self.near = definition, values, draws, near
        self.cfg, self.plan = definition.cfg, definition.plan
        self.caches: list[Result] = []  # k and v [B, K_n, S, H] of each layer
        self.x: Nodes = []  # residual [B, T, D_n]
        self.qkv: Nodes = []  # [B, T, K_n, C, H]
        self.o: Nodes = []  # attention [B, T, K_n, G, H]
        self.act: Nodes = []  # activation [B, T, F_n]
        self.logits: Nodes = []  # [B, V_n]
        self.chosen: Nodes = []  # token ids [B, 1]

    # Transfers

    def _scatter(
        self, operator: str, operands: Nodes, axis: int, spread: int, calm=None, typed=False
    ):
        """Node q receives run q of the sum: here fresh numbers in its place.

        Args:
          axis: the one that is dealt out.
          spread: leading axes along which the scale varies.
          calm: an index of what keeps its scale, since a function that is not linear reads it.
          typed: whether the numbers are of f32, since their bits are compared.
        """
        shape = list(operands[0].shape)
        shape[axis] //= len(operands)

        def fresh() -> np.ndarray:
            x = self.draws.state(shape, spread)
            if calm is not None:
                x[calm] = self.draws.state(x[calm].shape)
            return x.astype(np.float32).astype(np.float64) if typed else x

        return (
            yield Transfer(operator, "reduce-scatter", operands, lambda got: [fresh() for _ in got])
        )

    def _norm(self, gain: str):
        """x / sqrt(sum of squares / D + eps) times the gain: every node is handed the sum."""
        squares = [(x**2).sum(-1, keepdims=True) for x in self.x]
        total = self.draws.positive(squares[0].shape) * self.cfg.D
        moved = Transfer(f"{gain} statistic", "all-reduce", squares, lambda got: [total] * len(got))
        handed = yield moved
        inverse, eps = self.near(1 / self.cfg.D), self.near(self.cfg.eps)
        each = zip(self.x, handed, self.values[gain], strict=True)
        return [functions.rms_norm(x, s, w, inverse, eps) for x, s, w in each]

    def _project(self, states: Nodes, weight: str, summed: int = 1) -> Nodes:
        each = zip(states, self.values[weight], strict=True)
        return [functions.project(x, w, summed) for x, w in each]

    def _add(self, received: Nodes) -> None:
        self.x = [x + y for x, y in zip(self.x, received, strict=True)]

    # Operators

    def _entry(self, layer: str):
        self.x = self.values["residual"]
        yield from ()

    def _embed(self, layer: str):
        each = zip(self.values["embed"], self.values["tokens"], strict=True)
        self.x = [table[ids] for table, ids in each]
        yield from ()

    def _qkv(self, layer: str):
        normed = yield from self._norm(f"{layer}.input_norm")
        calm = (..., slice(self.cfg.G + 1), slice(None))  # softmax reads queries and keys
        operands = self._project(normed, f"{layer}.qkv")
        self.qkv = yield from self._scatter(f"{layer}.qkv", operands, 2, 4, calm)
        if bias := self.values.get(f"{layer}.qkv_bias"):
            self.qkv = [x + b for x, b in zip(self.qkv, bias, strict=True)]

    def _attention(self, layer: str):
        cfg, near, pos = self.cfg, self.near, self.values["pos"]
        gains = [self.values.get(f"{layer}.{name}_norm") for name in "qk"]
        old = [self.values[f"{layer}.cache_{name}"] for name in "kv"]
        step = 2 * near(1 / cfg.H, near(2 / cfg.H) / 2)  # either may be the program's constant
        frequencies = near(near(cfg.rope_theta) ** -(np.arange(cfg.H // 2) * step))
        self.o, kept = [], ([], [])
        for n, qkv in enumerate(self.qkv):
            pos_BT = pos[n][:, None] + np.arange(self.definition.tokens)
            *heads, v = np.split(qkv, [cfg.G, cfg.G + 1], axis=3)
            for i, gain in enumerate(gains):
                if gain is not None:
                    inverse, eps = near(1 / cfg.H), near(cfg.eps)
                    heads[i] = functions.head_norm(heads[i], gain[n], inverse, eps)
            q, k = (functions.rope(x, pos_BT, frequencies) for x in heads)
            for new, cache, out in zip((k, v), old, kept, strict=True):
                out.append(functions.write_cache(cache[n], new[:, :, :, 0], pos_BT))
            (ks, _), (vs, _) = kept[0][n], kept[1][n]
            self.o.append(functions.attend(q, ks, vs, pos_BT, near(cfg.H**-0.5)))
        self.caches += [Result([c for c, _ in out], [~new for _, new in out]) for out in kept]
        yield from ()

    def _out(self, layer: str):
        operands = self._project(self.o, f"{layer}.out", summed=3)
        self._add((yield from self._scatter(f"{layer}.out", operands, 2, 2)))

    def _gate_up(self, layer: str):
        normed = yield from self._norm(f"{layer}.post_norm")
        operands = self._project(normed, f"{layer}.gate_up")
        calm = (..., 0, slice(None))  # silu reads the gate
        received = yield from self._scatter(f"{layer}.gate_up", operands, 3, 3, calm)
        self.act = [functions.swiglu(x) for x in received]

    def _down(self, layer: str):
        operands = self._project(self.act, f"{layer}.down")
        self._add((yield from self._scatter(f"{layer}.down", operands, 2, 2)))

    def _head(self, layer: str):
        normed = yield from self._norm("norm")
        table = "embed" if self.cfg.tied else "head"
        each = zip(normed, self.values[table], strict=True)
        operands = [functions.project(x[:, 0], w.T) for x, w in each]
        self.logits = yield from self._scatter(table, operands, 1, 1, typed=True)

    def _choose(self, layer: str):
        sampling, values = self.definition.model.sampling, self.values
        rules = Choice(sampling, self.plan.split("V"), self.draws, self.near)
        seed = values["seed"][0] if "seed" in values else None
        self.chosen = yield from rules.run(self.logits, values["pos"][0], seed, values.get("seen"))

    # After the interval, outside the claim

    def gather(self):
        """Every node is handed residual, q, k and v of all; returns them without padding."""
        B, T, Kn, C, H = self.qkv[0].shape
        each = zip(self.x, self.qkv, strict=True)
        flat = [np.concatenate([x, y.reshape(B, T, -1)], 2)[None] for x, y in each]
        handed = self.draws.state((len(flat), *flat[0].shape[1:]), spread=3)
        each = yield Transfer(
            "compatibility all-gather", "all-gather", flat, lambda got: [handed] * len(got)
        )
        Dn = self.x[0].shape[2]
        residual = [np.concatenate(h[..., :Dn], 2)[:, :, : self.cfg.D] for h in each]
        shards = [h[..., Dn:].reshape(-1, B, T, Kn, C, H) for h in each]
        return residual, [np.concatenate(s, 2)[:, :, : self.cfg.K] for s in shards]
