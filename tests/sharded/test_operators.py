"""The operator table: by hand for the published sizes, and against the program it describes."""

import dataclasses
import re

import jax
import pytest

from fcjax.collectives import KINDS, AllGather, AllReduce, ReduceScatter
from fcjax.mesh import make_mesh
from fcjax.model.config import QWEN25
from fcjax.sharded import interval, programs
from fcjax.sharded.interval import Interval, ShardedModel
from fcjax.sharded.layout import Layout
from fcjax.sharded.operators import Gather, NormStatistic, Scatter
from fcjax.sharded.ownership import STATE, Plan
from fcjax.sharded.sampling import Sampling
from tests import models

OPERATORS = ("qkv", "attention", "out", "gate_up", "down")


def model(cfg, nodes, first=0, depth=1, sampling=Sampling()):  # noqa: B008
    return ShardedModel(Plan(cfg, nodes), Interval(first, depth), sampling)


def moves(rows):
    return [(c.kind, c.operand, c.result) for row in rows for c in row.transfers]


def scatters(rows):
    return [c for row in rows for c in row.transfers if isinstance(c, Scatter)]


def test_published_interval():
    """Qwen2.5-1.5B, two nodes, layer 0 and the next layer's q, k, v."""
    rows = interval.boundaries(model(QWEN25["1.5b"], 2), 1, 1)
    assert [row.scope for row in rows] == [
        "entry", "layer_0/qkv", "layer_0/attention", "layer_0/out", "layer_0/gate_up",
        "layer_0/down", "layer_1/qkv",
    ]
    norm = (AllReduce, (1, 1, 1), (1, 1, 1))
    qkv = (ReduceScatter, (1, 1, 2, 8, 128), (1, 1, 1, 8, 128))
    residual = (ReduceScatter, (1, 1, 1536), (1, 1, 768))
    gate_up = (ReduceScatter, (1, 1, 2, 8960), (1, 1, 2, 4480))
    assert moves(rows) == [norm, qkv, residual, norm, gate_up, residual, norm, qkv]
    weights = [c.weight for c in scatters(rows)]
    contracted = [c.contracted for c in scatters(rows)]
    assert weights == [
        "layers.0.qkv", "layers.0.out", "layers.0.gate_up", "layers.0.down", "layers.1.qkv",
    ]
    assert contracted == ["D", "K", "D", "F", "D"]


def test_uneven_sizes_are_padded():
    """F 8960 -> 8961 and K 2 -> 3 over three nodes."""
    rows = interval.boundaries(model(QWEN25["1.5b"], 3, 4), 2, 5)
    operands = {c.weight: c.operand for c in scatters(rows)}
    statistics = [c.operand for row in rows for c in row.transfers if isinstance(c, NormStatistic)]
    assert operands["layers.4.qkv"] == (2, 5, 3, 8, 128)
    assert operands["layers.4.gate_up"] == (2, 5, 2, 8961)
    assert operands["layers.4.down"] == (2, 5, 1536)
    assert statistics == [(2, 5, 1)] * 3


@pytest.mark.parametrize("name", QWEN25)
def test_bytes_are_the_closed_formula(name):
    """Per layer (N-1)/N x (K(G+2)H + D + 2F + D) elements sent, plus two statistics."""
    cfg, N = QWEN25[name], 2
    rows = interval.boundaries(model(cfg, N), 1, 1)[:-1]  # without the successor
    sent = sum(c.sent for row in rows for c in row.transfers)
    formula = (N - 1) / N * (cfg.K * (cfg.G + 2) * cfg.H + cfg.D + 2 * cfg.F + cfg.D)
    assert sent == formula + 2 * 2 * (N - 1) / N


def test_elements_sent():
    assert Scatter((3, 8), 4, 1, "w", "D").sent == 18  # 3 of 4 runs
    assert NormStatistic((4,), 4).sent == 6  # scattered, then gathered
    assert Gather((2,), 4).sent == 6  # its own, to three others


def test_all_gather_carries_residual_and_qkv():
    gather = interval.compatibility_all_gather(Plan(QWEN25["1.5b"], 2), 1, 1)
    assert gather.operand == (1, 1, 768 + 1 * 8 * 128)
    assert gather.result == (2, 1, 1, 768 + 1 * 8 * 128)


def test_every_state_tensor_of_the_interval_has_a_boundary():
    rows = interval.boundaries(model(models.THREE, 2), 1, 1)
    listed = {name for row in rows for name in row.state}
    assert listed == set(STATE) - {"normed", "logits"}
    rows = interval.boundaries(model(models.THREE, 2, depth=models.THREE.L), 1, 1)
    assert {name for row in rows for name in row.state} == set(STATE) - {"normed"}


def test_whole_model():
    """Embedding, every layer, head, and the exchanges of the choice; a prefill has no head."""
    cfg = dataclasses.replace(QWEN25["1.5b"], L=2)
    m = model(cfg, 3, depth=2, sampling=Sampling(0.7, 20, 0.9))
    rows = interval.boundaries(m, 2, 1)
    layers = [f"layer_{i}/{s}" for i in range(2) for s in OPERATORS]
    assert [row.scope for row in rows] == ["embed", *layers, "head", "choose"]
    head, choose = rows[-2:]
    norm = (AllReduce, (2, 1, 1), (2, 1, 1))
    assert moves([head]) == [norm, (ReduceScatter, (2, 151938), (2, 50646))]
    assert head.transfers[1].weight == "embed" and head.state == ("logits",)
    assert [(c.exchange.name, c.exchange.combine, c.operand) for c in choose.transfers] == [
        *[("top-k count", "add", (2, 15))] * 8, ("largest logit", "max", (2,)),
        ("total mass", "add", (2,)), *[("top-p mass", "add", (2, 15))] * 8,
        ("best value", "max", (2,)), ("chosen token", "min", (2,)),
    ]
    assert [r.scope for r in interval.boundaries(m, 2, 16)] == ["embed", *layers]
    untied = dataclasses.replace(cfg, tied=False)
    head = interval.boundaries(model(untied, 3, depth=2), 1, 1)[-2]
    assert head.transfers[1].weight == "head"


SAMPLED = Sampling(0.7, 20, 0.9)


@pytest.mark.parametrize(
    "N, first, depth, tokens, sampling",
    [
        (2, 0, 1, 2, Sampling()),
        (3, 1, 2, 2, Sampling()),
        (7, 0, 1, 2, Sampling()),
        (2, 0, 4, 1, Sampling()),
        (3, 0, 4, 1, SAMPLED),
        (3, 0, 4, 2, SAMPLED),
    ],
)
def test_the_lowered_interval_has_these_collectives_in_this_order(
    N, first, depth, tokens, sampling
):
    """What was written, before XLA: kind, operand and result of each, and nothing else."""
    m, B, T = model(models.UNTIED, N, first, depth, sampling), 3, tokens
    program = programs.interval(m, tokens)
    fn, arguments = programs.mapped(program, Layout(m, make_mesh(N)), B, T, 8)
    text = jax.jit(fn).lower(*arguments).as_text()
    found = re.findall(
        r'"stablehlo\.(reduce_scatter|all_reduce|all_gather|all_to_all|collective_\w+)"'
        r".*?: \(tensor<([\dx]*)[fi]32>\) -> tensor<([\dx]*)[fi]32>",
        text,
        re.DOTALL,
    )
    shape = lambda dims: tuple(int(n) for n in dims.split("x") if n)  # noqa: E731
    found = [(KINDS[kind.replace("_", "-")], shape(a), shape(b)) for kind, a, b in found]
    if not m.whole:
        kind, operand, result = found.pop()
        gather = interval.compatibility_all_gather(m.plan, B, T)
        assert kind is AllGather and operand[-3:] == gather.operand
        assert result == gather.result
    assert found == moves(interval.boundaries(m, B, T))


def test_owned_in_words():
    plan = Plan(QWEN25["1.5b"], 3)
    assert [interval.owned(plan, "activation", q) for q in range(3)] == [
        "F 0..2986", "F 2987..5973", "F 5974..8959",
    ]
    assert [interval.owned(plan, "k", q) for q in range(3)] == ["K 0", "K 1", "K none"]


def test_table_names_every_operator_and_owner():
    lines = interval.table(model(QWEN25["1.5b"], 2), 1, 1).splitlines()
    assert len(lines) == 9
    assert lines[0].split() == ["boundary", "collectives", "state", "node", "0", "node", "1"]
    assert "layer_0/down" in lines[6] and "reduce-scatter [1, 1, 1536]" in lines[6]
    assert "D 0..767" in lines[6] and "D 768..1535" in lines[6]
    assert lines[-1].startswith("(outside the claim)") and "all-gather" in lines[-1]


def test_table_of_the_whole_model():
    m = model(QWEN25["1.5b"], 2, depth=28, sampling=SAMPLED)
    lines = interval.table(m, 1, 1).splitlines()
    assert len(lines) == 1 + 1 + 5 + 1 + 2  # header, embed, a layer, the others, head and choice
    assert lines[1].startswith("embed") and "D 768..1535" in lines[1]
    assert lines[-3].startswith("... to layer_27/down")
    assert "reduce-scatter [1, 151936]" in lines[-2] and "V 0..75967" in lines[-2]
    assert "16 x all-reduce [1, 15]" in lines[-1] and "the token" in lines[-1]
    assert not any("all-gather" in line for line in lines)
