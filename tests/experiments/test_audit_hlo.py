"""`python -m experiments.audit_hlo` on saved dumps: what it prints, and its exit codes."""

import gzip
import os
import subprocess
import sys

import jax
import pytest
from jaxlib import _hlo

from experiments.adversary import planted
from experiments.adversary.programs import interval, leak
from fcjax import audit
from fcjax.audit.hlo import dump
from fcjax.model.config import ModelConfig
from fcjax.sharded.programs import INTERVAL_NAMES

CFG = ModelConfig.from_hf("weights/tiny")


def run(*flags):
    command = [sys.executable, "-m", "experiments.audit_hlo", *flags]
    return subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"JAX_PLATFORMS": "cpu"}
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Saved programs of weights/tiny: an honest one, and one that gathers its input."""
    folder = tmp_path_factory.mktemp("hlo")
    (folder / "honest.hlo").write_text(interval(cfg=CFG)[0])
    (folder / "honest.hlo.gz").write_bytes(gzip.compress((folder / "honest.hlo").read_bytes()))
    gathers, _ = interval(cfg=CFG, patches=[leak(planted.gather)])
    (folder / "gathers.hlo").write_text(gathers)
    (folder / "three.hlo").write_text(interval(3, cfg=CFG)[0])
    crash = gathers.replace(" parameter(0)", " parameter(7)", 1)
    (folder / "crash.hlo").write_text(crash)
    (folder / "garbage.hlo").write_bytes(bytes(range(256)))
    (folder / "cut.hlo.gz").write_bytes((folder / "honest.hlo.gz").read_bytes()[:-40])
    (folder / "foreign.hlo").write_text(
        "HloModule jit_f, is_scheduled=true, num_partitions=2\n\n"
        "ENTRY %main (a: f32[4]) -> f32[4] {\n"
        "  %a = f32[4]{0} parameter(0)\n"
        "  ROOT %b = f32[4]{0} copy(%a)\n}\n"
    )
    x = jax.numpy.ones((4, 4))
    lowered = jax.jit(lambda x: x @ x).lower(x)
    (folder / "lowered.mlir").write_text(lowered.as_text())
    module = _hlo.hlo_module_from_text(gathers)
    (folder / "program.hlo.pb").write_bytes(module.as_serialized_hlo_module_proto())
    (folder / "unoptimised.hlo").write_text(gathers.replace(", is_scheduled=true", "", 1))
    return folder


def test_a_clean_program(files):
    done = run(f"--hlo={files / 'honest.hlo.gz'}")
    assert done.returncode == 0, done.stderr
    assert "clean: 8 collectives inside the interval, 1 after it" in done.stdout
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [r[0] for r in rows if r[1:2] == ["reduce-scatter"]] == [
        f"layers.{x}" for x in ("0.qkv", "0.out", "0.gate_up", "0.down", "1.qkv")
    ]
    assert "(outside the claim)" in done.stdout
    assert "2 nodes, " in done.stdout and "as its header has partitions" in done.stdout


def test_the_number_of_nodes_is_read_from_the_program(files):
    done = run(f"--hlo={files / 'three.hlo'}")
    assert done.returncode == 0 and "3 nodes, " in done.stdout, done.stdout + done.stderr
    done = run(f"--hlo={files / 'three.hlo'}", "--nodes=2")
    assert done.returncode == 1 and "expected 2 nodes, got 3 partitions" in done.stdout


def test_a_violation_shows_the_instruction(files):
    done = run(f"--hlo={files / 'gathers.hlo'}")
    assert done.returncode == 1, done.stderr
    assert "early-gather" in done.stdout and " all-gather(" in done.stdout
    assert "every node receives 192 elements" in done.stdout


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--hlo=no/such.hlo"], "No such file"),
        (["--hlo={}/garbage.hlo"], "expected HLO text"),
        (["--hlo={}/foreign.hlo"], "another program"),
        (["--hlo={}/lowered.mlir"], "StableHLO, which no compiler has seen; hand in"),
        (["--hlo={}/program.hlo.pb"], "a serialized module or no module; hand in"),
        (["--hlo={}/unoptimised.hlo"], "expected an optimized module, got one without"),
        (["--hlo={}/crash.hlo"], "parser crashed"),
        (["--hlo={}", "--topology=l4x2"], "either --hlo or --topology"),
        (["--topology=x9x2"], "expected one of"),
        (["--topology=l4x2", "--role=.=state"], "role: expected with --hlo"),
        (["--hlo={}/honest.hlo", "--role=state"], "expected PATTERN=state|weight|table|public"),
        (["--hlo={}/honest.hlo", "--role=(=state"], "expected a regular expression"),
        (["--hlo={}/honest.hlo", "--role=nothing=state"], "none for args[0]"),
        (["--hlo={}/lowered.mlir", "--role=.=state"], "StableHLO, which no compiler has seen"),
        (["--hlo={}/program.hlo.pb", "--role=.=state"], "a serialized module or no module"),
    ],
)
def test_what_cannot_be_audited(files, flags, words):
    done = run(*(flag.format(files) for flag in flags))
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr and done.stderr.count("\n") == 1


def test_another_model_is_a_violation(files):
    done = run(f"--hlo={files / 'honest.hlo'}", "--model=0.5b")
    assert done.returncode == 1 and "expected shape" in done.stdout


def test_who_is_handed_what(files, tmp_path):
    """Any program, by roles that fit into a file of flags."""
    (tmp_path / "roles").write_text(
        "--role=args\\[0\\]=weight\n--role=args\\[[12]\\]=state\n--role=.=public\n"
    )
    done = run(f"--hlo={files / 'honest.hlo'}", f"--flagfile={tmp_path / 'roles'}")
    assert done.returncode == 1, done.stderr  # the compatibility all-gather
    assert "2 nodes, 9 transfers" in done.stdout and done.stdout.count("own shard") > 9
    assert done.stdout.endswith("Complete state is handed to nodes by 9.\n")
    mine = run(f"--hlo={files / 'foreign.hlo'}", "--role=.=state")
    assert mine.returncode == 2 and "jax.jit(f).lower(...).compile()" in mine.stderr


def test_a_folder_that_xla_dumped(tmp_path):
    program = (
        "import jax; jax.config.update('jax_num_cpu_devices', 2)\n"
        "from fcjax import mesh; from fcjax.model import config\n"
        "from fcjax.sharded import interval, layout, ownership, programs\n"
        "plan = ownership.Plan(config.ModelConfig.from_hf('weights/tiny'), 2)\n"
        "m = interval.ShardedModel(plan, interval.Interval(1))\n"
        "l = layout.Layout(m, mesh.make_mesh(2))\n"
        "for p in programs.of_pass(m, 1)[:2]: programs.compile(p, l, 2, 1, 9)\n"
    )
    flags = f"--xla_dump_to={tmp_path} --xla_dump_hlo_as_text"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
    done = run(f"--hlo={tmp_path}", "--layer=1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "B 2, T 1, S 9" in done.stdout and done.stdout.count("clean: ") == 1


def test_a_dump_of_the_whole_model(tmp_path):
    program = (
        "import jax; jax.config.update('jax_num_cpu_devices', 2)\n"
        "from fcjax import mesh; from fcjax.model import config\n"
        "from fcjax.sharded import interval, layout, ownership, programs, sampling\n"
        "plan = ownership.Plan(config.ModelConfig.from_hf('weights/tiny'), 2)\n"
        "s = sampling.Sampling(0.7, 5)\n"
        "m = interval.ShardedModel(plan, interval.Interval(0, 6), s)\n"
        "l = layout.Layout(m, mesh.make_mesh(2))\n"
        "for T in (1, 3): programs.compile(programs.interval(m, T), l, 2, T, 9)\n"
    )
    flags = f"--xla_dump_to={tmp_path} --xla_dump_hlo_as_text"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
    done = run(f"--hlo={tmp_path}", "--depth=all", "--temperature=0.7", "--top_k=5")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "B 2, T 1, S 9" in done.stdout and "B 2, T 3, S 9" in done.stdout
    assert done.stdout.count("clean: ") == 2 and "top-k count" in done.stdout
    other = run(f"--hlo={tmp_path}", "--depth=all")  # greedy: a seed too many
    assert other.returncode == 2 and "another program" in other.stderr


def test_reading_dumps(files, tmp_path):
    (text,) = dump.read(files / "honest.hlo", INTERVAL_NAMES).values()
    assert dump.read(files / "honest.hlo.gz", INTERVAL_NAMES) == {"honest.hlo.gz": text}
    with pytest.raises(audit.Unauditable, match="expected HLO text"):
        dump.read(files / "cut.hlo.gz", INTERVAL_NAMES)
    with pytest.raises(audit.Unauditable, match="no [*]after_optimizations"):
        dump.read(tmp_path, INTERVAL_NAMES)
    (tmp_path / "module_1.jit_f.cpu_after_optimizations.txt").write_text(
        "HloModule jit_f, is_scheduled=true"
    )
    with pytest.raises(audit.Unauditable, match="jit_f"):
        dump.read(tmp_path, INTERVAL_NAMES)
    (tmp_path / "module_2.jit_f.cpu_after_optimizations.txt").write_text(text)
    assert list(dump.read(tmp_path, INTERVAL_NAMES).values()) == [text]
    nested = tmp_path / "run" / "audit_T1"
    nested.mkdir(parents=True)
    (nested / "interval.hlo").write_text(text)
    assert dump.read(nested, INTERVAL_NAMES) == {"interval.hlo": text}
    assert "run/audit_T1/interval.hlo" in dump.read(tmp_path, INTERVAL_NAMES)
