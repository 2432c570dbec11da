"""What a run is to do: everything that is fixed before its first cold start.

It is written to run.json once, and every cold start, which is a process of its own, reads it there
and is told nothing else. The plan and the operator table stand beside it for a reader; they are
derived again, not read.
"""

import dataclasses

import numpy as np

from fcjax.decode import parity
from fcjax.decode.audited import check_sizes
from fcjax.decode.loop import chunks
from fcjax.files import plain
from fcjax.model.config import ModelConfig
from fcjax.record.environment import code_sha256
from fcjax.sharded.interval import (
    Interval,
    ShardedModel,
    boundaries,
    compatibility_all_gather,
)
from fcjax.sharded.layout import Layout
from fcjax.sharded.ownership import Plan
from fcjax.sharded.sampling import Sampling

# And their versions; the last one is written.
FORMATS = {"fcjax run 1": 1, "fcjax run 2": 2, "fcjax run 3": 3}

# The claim's limits, repeated wherever the evidence repeats the claim.
LIMITS = (
    "What is shown is what nodes are sent and hold inside the interval. It is not a confidentiality"
    " guarantee: with public weights a node's own shards can be enough to compute the rest.",
    "Owners between two operators inside the interval follow from the audited program; there is no"
    " array to look at in between.",
    "Prefill passes run the same programs and are recorded, but the claim is about decode steps.",
    "Nothing is said about separate hosts, pods, data centres or vendors, dishonest or colluding"
    " nodes, secret sharing, TEE or MPC, or moving and revoking nodes.",
    "The record is hashed, not signed: it shows accidents and contradictions, not who wrote it.",
)
EMULATED = (
    "The nodes are emulated: devices of one process that share one host's memory. What is shown is"
    " what the compiled program moves between them, not that a host keeps them apart."
)
AFTER = (
    "After the interval one compatibility all-gather restores the complete state for the layers"
    " that were left unmodified. It is outside the claim, and so is everything before the interval."
)
WHOLE = (
    "Every layer is inside the interval, from the embedding on. The chosen token becomes public, as"
    " does what the exchanges that choose it find."
)
PROSE = ("limits",)  # fields of run.json
NOT_COMPARED = "The numbers were not compared with an unsharded reference."


@dataclasses.dataclass(frozen=True)
class Job:
    """A run before it begins.

    Attributes:
      command: the program.
      flags: its flags.
      model_path: where the weights are.
      weights_sha256: digest of that folder.
      cfg: the model's sizes.
      nodes: N.
      interval: which layers run on shards.
      sampling: how tokens are chosen.
      platform: "cpu" or "cuda".
      hardware: the devices in words.
      dtype: of weights, state and cache.
      length: tokens that a row may have.
      cold_starts, steps: how much.
      seed: of the draws.
      prompts: for each start, for each row, (text, ids).
      eos: ids that end a row early.
      compared: whether the unsharded reference runs beside it.
      baseline: what it is compared with (`baseline.difference`).
      chunk: tokens of a prefill pass.
      version: of the record's format. Version 1 does not say by which code it was written, and
        versions 1 and 2 not what ran in a pass besides the programs.
      code: hash of the code that wrote the record (`environment.code_sha256`); "" if not said.

    Raises:
      ValueError: sizes that no program can be compiled for.
    """

    command: str
    flags: dict
    model_path: str
    weights_sha256: str
    cfg: ModelConfig
    nodes: int
    interval: Interval
    sampling: Sampling
    platform: str
    hardware: str
    dtype: str
    length: int
    cold_starts: int
    steps: int
    seed: int
    prompts: tuple[tuple[tuple[str, tuple[int, ...]], ...], ...]
    eos: tuple[int, ...] = ()
    compared: bool = True
    baseline: dict = dataclasses.field(default_factory=dict)
    chunk: int = 32
    version: int = max(FORMATS.values())
    code: str = dataclasses.field(default_factory=code_sha256)

    def __post_init__(self):
        self.model()  # refuses what cannot be cut
        check_sizes(self.cfg, self.length, self.chunk)
        longest = max(len(ids) for rows in self.prompts for _, ids in rows)
        if longest + self.steps > self.length:
            raise ValueError(
                f"cache: expected at most {self.length} tokens, got a prompt of {longest} and"
                f" {self.steps} more"
            )

    @property
    def batch(self) -> int:
        """Rows."""
        return len(self.prompts[0])

    @property
    def slots(self) -> int:
        """Slots of the caches."""
        return self.length + self.chunk

    @property
    def tokens(self) -> tuple[int, ...]:
        """For which numbers of tokens the programs are compiled."""
        prefill = any(len(ids) > 1 for rows in self.prompts for _, ids in rows)
        return (self.chunk, 1) if prefill else (1,)

    @property
    def bound(self) -> float:
        """The largest parity figure that is allowed."""
        return parity.BOUND[self.dtype]

    @property
    def limits(self) -> list[str]:
        """What the run does not show."""
        model = self.model()
        return [
            WHOLE if model.whole else AFTER,
            *((EMULATED,) if self.platform == "cpu" else ()),
            *LIMITS,
            *(() if self.compared else (NOT_COMPARED,)),
        ]

    def model(self) -> ShardedModel:
        """The model as it is cut."""
        return ShardedModel(Plan(self.cfg, self.nodes), self.interval, self.sampling)

    def layout(self, mesh) -> Layout:
        """The model on its nodes."""
        return Layout(self.model(), mesh, self.dtype)

    def ids(self, start: int) -> list[np.ndarray]:
        """The prompts of a start, for each row."""
        return [np.array(ids, np.int32) for _, ids in self.prompts[start]]

    def passes(self, start: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """The prefill passes of a start: tokens and positions."""
        return chunks(self.ids(start), self.chunk)

    def to_json(self) -> dict:
        """The content of run.json; `PROSE` in it is this code's words for its facts."""
        model = self.model()
        outside = None
        if not model.whole:
            outside = compatibility_all_gather(model.plan, self.batch, 1).describe()
        (kind,) = (kind for kind, version in FORMATS.items() if version == self.version)
        return plain({
            "format": kind,
            **({"code": self.code} if self.version > 1 else {}),
            "command": self.command,
            "flags": self.flags,
            "model": self.cfg.describe(),
            "model_path": self.model_path,
            "weights_sha256": self.weights_sha256,
            "nodes": self.nodes,
            "interval": dataclasses.asdict(self.interval),
            "whole": model.whole,
            "sampling": dataclasses.asdict(self.sampling),
            "seed": self.seed,
            "platform": self.platform,
            "hardware": self.hardware,
            "dtype": self.dtype,
            "batch": self.batch,
            "length": self.length,
            "chunk": self.chunk,
            "slots": self.slots,
            "cold_starts": self.cold_starts,
            "steps": self.steps,
            "eos": self.eos,
            "prompts": [[{"text": t, "ids": ids} for t, ids in rows] for rows in self.prompts],
            "compared": self.compared,
            "bound": self.bound,
            "plan": model.plan.describe(),
            "boundaries": [b.describe() for b in boundaries(model, self.batch, 1)],
            "outside_the_claim": outside,
            "baseline": self.baseline,
            "limits": self.limits,
        })

    @classmethod
    def from_json(cls, content: dict) -> "Job":
        """The job of a run.json.

        Raises:
          ValueError: it is none, or its sizes are ones that no program can be compiled for.
        """
        kind = content.get("format") if isinstance(content, dict) else content
        if not isinstance(kind, str) or kind not in FORMATS:
            known = " or ".join(map(repr, FORMATS))
            raise ValueError(f"run.json: field format: expected {known}, got {kind!r}")
        same = {f.name for f in dataclasses.fields(cls)} & content.keys() - {"prompts", "version"}
        try:
            return cls(
                **{"code": ""}
                | {name: content[name] for name in same - {"interval", "sampling", "eos"}},
                version=FORMATS[kind],
                cfg=ModelConfig(**content["model"]),
                interval=Interval(**content["interval"]),
                sampling=Sampling(**content["sampling"]),
                eos=tuple(content["eos"]),
                prompts=tuple(
                    tuple((row["text"], tuple(row["ids"])) for row in rows)
                    for rows in content["prompts"]
                ),
            )
        except (KeyError, TypeError, IndexError) as e:
            raise ValueError(f"run.json: expected the fields of a job, got {e!r}") from None
