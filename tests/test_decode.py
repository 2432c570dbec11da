"""The decode loop: greedy text as transformers gives it, parity at every step, and refusals."""

import jax
import numpy as np
import pytest

from fcjax import audit, checkpoint, parity
from fcjax.decode import Decoder, Programs, chooser, decode
from fcjax.evidence import RunFolder
from fcjax.model import Interval, Model
from fcjax.ownership import Plan, make_mesh
from fcjax.run import run
from fcjax.text import Text

TINY = "weights/tiny"


def make_decoder(folder, nodes, layer, prompt_tokens, steps, batch=1):
    source = checkpoint.open_folder(folder)
    model = Model(Plan(source.cfg, nodes), Interval(layer), make_mesh(nodes))
    programs = Programs(model, batch, prompt_tokens + steps)
    return source, Decoder(programs, source.load(model.params()))


def hugging_face_greedy(folder, prompt_BT, new_tokens):
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    out = model.generate(
        torch.asarray(prompt_BT, dtype=torch.int64),
        attention_mask=torch.ones(prompt_BT.shape, dtype=torch.int64),
        do_sample=False, min_new_tokens=new_tokens, max_new_tokens=new_tokens,
        eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return out[:, prompt_BT.shape[1] :].numpy()


def check_250_greedy_tokens(folder, prompt, nodes, layer, run_folder):
    prompt_BT = Text(folder).encode(prompt)
    steps = 249  # the prefill gives the first of the 250 tokens
    source, decoder = make_decoder(folder, nodes, layer, prompt_BT.shape[1], steps)
    for tokens in (prompt_BT.shape[1], 1):
        assert decoder.programs.prepare(tokens).ok
    oracle = parity.Oracle(source, Interval(layer), 1, decoder.programs.length)
    record = RunFolder(run_folder, decoder.programs, {}, source.digest)
    result = run(decoder, oracle, record, prompt_BT, steps, chooser(0, 0), (), lambda it: it)
    assert result.steps == steps and result.copies_agree
    assert max(result.worst.values()) <= parity.BOUND["float32"]
    assert result.passed
    np.testing.assert_array_equal(result.tokens, hugging_face_greedy(folder, prompt_BT, 250))
    assert len((run_folder / "steps.jsonl").read_text().splitlines()) == steps + 1


@pytest.mark.parametrize(("nodes", "layer"), [(2, 0), (3, 4), (4, 2)])
def test_250_greedy_tokens_are_those_of_transformers(nodes, layer, tmp_path):
    check_250_greedy_tokens(TINY, "ROMEO:\n", nodes, layer, tmp_path / "run")


def test_250_greedy_tokens_of_a_real_model_are_those_of_transformers(smollm2, tmp_path):
    # 3 KV groups on 2 nodes: an uneven split.
    check_250_greedy_tokens(smollm2, "Write a story about a whale.", 2, 14, tmp_path / "run")


def test_rows_of_a_batch_decode_as_they_do_alone():
    prompt_BT = np.array([[5, 6, 7], [900, 3, 44]], np.int32)
    _, both = make_decoder(TINY, 2, 1, 3, 6, batch=2)
    together = np.concatenate([s.tokens_out for s in decode(both, prompt_BT, 6, chooser(0, 0))], 1)
    for row in range(2):
        _, one = make_decoder(TINY, 2, 1, 3, 6)
        steps = decode(one, prompt_BT[row : row + 1], 6, chooser(0, 0))
        alone = np.concatenate([s.tokens_out for s in steps], 1)
        np.testing.assert_array_equal(together[row : row + 1], alone)


def test_end_of_text_stops_the_loop_when_every_row_has_ended():
    _, decoder = make_decoder(TINY, 2, 0, 2, 8)
    script = iter([11, 12, 13, 14])
    choose = lambda logits, step: np.array([next(script)])  # noqa: E731
    steps = list(decode(decoder, np.array([[1, 2]]), 8, choose, eos=(13, 99)))
    assert [s.index for s in steps] == [-1, 0, 1]
    assert [s.tokens_in.tolist() for s in steps] == [[[1, 2]], [[11]], [[12]]]
    assert decoder.pos == 4


def test_draws_follow_the_seed_and_the_temperature():
    logits = jax.device_put(np.log(np.array([[0.7, 0.2, 0.1]], np.float32)))
    choosers = [chooser(1.0, seed) for seed in (0, 0, 1)]
    draws = [[int(choose(logits, step)[0]) for step in range(300)] for choose in choosers]
    assert draws[0] == draws[1] != draws[2]
    # 300 draws of p = 0.7: five standard deviations are 0.13.
    assert abs(draws[0].count(0) / 300 - 0.7) < 0.13
    cold = chooser(0.01, 0)
    assert {int(cold(logits, step)[0]) for step in range(20)} == {0}
    assert int(chooser(0, 0)(logits, 0)[0]) == 0
    tie = jax.device_put(np.array([[1.0, 3.0, 3.0]], np.float32))
    assert int(chooser(0, 0)(tie, 0)[0]) == 1
    with pytest.raises(ValueError, match="temperature: expected 0 or more, got -1"):
        chooser(-1, 0)


def test_bad_tokens_and_a_full_cache_are_refused_in_one_line():
    _, decoder = make_decoder(TINY, 2, 0, 2, 2)
    with pytest.raises(ValueError, match=r"tokens: expected ids of 0 to 2047, got 2048"):
        decoder.step([[1, 2048]])
    with pytest.raises(ValueError, match=r"tokens: expected ids of 0 to 2047, got -1"):
        decoder.step([[-1]])
    with pytest.raises(
        ValueError, match=r"tokens: expected shape \(1, T\) with T > 0, got \(2, 1\)"
    ):
        decoder.step([[1], [2]])
    with pytest.raises(ValueError, match=r"cache: expected at most 4 tokens, got 0 \+ 5"):
        decoder.step([[1, 2, 3, 4, 5]])
    with pytest.raises(ValueError, match="cache: expected at most 4 tokens, got a prompt of 3"):
        next(decode(decoder, np.array([[1, 2, 3]]), 2, chooser(0, 0)))
    with pytest.raises(ValueError, match="cache: expected 1 to 512 slots.*, got 513"):
        Programs(decoder.programs.model, 1, 513)
    assert decoder.pos == 0


def test_no_program_runs_whose_audit_failed():
    _, decoder = make_decoder(TINY, 2, 0, 1, 2)
    programs = decoder.programs
    leaking = programs.model._run_inside

    def with_an_extra_gather(params, caches, x_BTDn, pos):
        out = leaking(params, caches, x_BTDn, pos)
        everything = jax.lax.psum_scatter(
            jax.lax.all_gather(x_BTDn, "node", axis=2, tiled=True),
            "node",
            scatter_dimension=2,
            tiled=True,
        )
        return (out[0] + 0 * everything, *out[1:])

    object.__setattr__(programs.model.inside, "fn", with_an_extra_gather)
    assert not programs.prepare(1).ok
    with pytest.raises(audit.Failed):
        decoder.step([[1]])


def test_a_run_never_writes_into_an_existing_folder(tmp_path):
    _, decoder = make_decoder(TINY, 2, 0, 1, 2)
    decoder.programs.prepare(1)
    RunFolder(tmp_path / "run", decoder.programs, {}, "digest").step({"step": 0})
    with pytest.raises(ValueError, match="workdir: expected a new folder, got an existing one"):
        RunFolder(tmp_path / "run", decoder.programs, {}, "digest")
    assert (tmp_path / "run" / "steps.jsonl").read_text() == '{"step": 0}\n'
