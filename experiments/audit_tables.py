"""How well the audit tells honest programs from others: three tables.

    python -m experiments.audit_tables
    JAX_PLATFORMS=cpu .venv-aot/bin/python -m experiments.audit_tables --topology=l4x2

Compiles the interval, and the whole model, as they are for many sizes (must be clean), with one
violation planted in them (must be found, for its reason), and changes honest programs' texts
mechanically wherever it can (every mutant must be caught, every neutral change must stay clean;
of a whole model's transfers every tenth is made). With --topology the programs
are those of GPUs that are not there; planted programs that XLA cannot compile for them are listed
as such. Cost: some ten minutes on two cores, most of it for the mutants.

Expected: no honest program flagged, no planted one missed, a kill rate of 100 %. Exit code 1
otherwise.
"""

import collections

from absl import flags

from fcjax import audit, cli
from fcjax.commands import shared_flags
from fcjax.decode import aot
from fcjax.mesh import use_platform

FLAGS = flags.FLAGS
shared_flags.topology()
flags.DEFINE_integer("every", 1, "Make every so-many-th of the transfer mutants.", lower_bound=1)


def main(_):
    if FLAGS.topology:
        _, nodes = aot.parse_topology(FLAGS.topology)
        options = {"nodes": nodes, "mesh": aot.make_mesh(FLAGS.topology)}
    else:
        use_platform("cpu", 8)
        options = {}
    failures = honest(options) + planted(options) + functions(options) + mutated(options)
    print(f"\n{failures} not as expected")
    return 1 if failures else 0


def honest(options) -> int:
    from experiments.adversary.programs import HONEST, interval

    print(f"\n== Honest programs ({FLAGS.topology or 'cpu'}) ==")
    failures = count = 0
    for name, case in HONEST.items():
        if options and (case.get("nodes", 2) != options["nodes"] or "patches" in case):
            continue  # patches set options of the CPU's compiler, which end the GPU's
        verdict = audit.audit_interval(*interval(**case | options))
        print(f"{name:45} {str(verdict).splitlines()[0]}", flush=True)
        failures, count = failures + (not verdict.ok), count + 1
    return failures + varied(count, failures, options)


def varied(count: int, failures: int, options) -> int:
    """Programs for `certify` that are not the project's own; adds to how many were flagged."""
    from experiments.adversary.variations import VARIATIONS, program

    more = 0
    for name, case in () if options else VARIATIONS.items():  # their mesh is one of CPU devices
        mapped, arguments, roles = program(*case)
        verdict = audit.certify(mapped, roles, *arguments)
        print(f"{name:45} {str(verdict).splitlines()[0]}", flush=True)
        more, count = more + (not verdict.ok), count + 1
    print(f"{count} honest programs, {failures + more} flagged")
    return more


def planted(options) -> int:
    from experiments.adversary.planted import PLANTED, N
    from experiments.adversary.planted_outside import PLANTED_OUTSIDE
    from experiments.adversary.planted_whole import PLANTED_WHOLE
    from experiments.adversary.programs import interval

    print(f"\n== Planted violations ({FLAGS.topology or 'cpu'}) ==")
    if options.get("nodes", N) != N:
        print(f"they are written for {N} nodes")
        return 0
    ends = collections.Counter()
    every = PLANTED | PLANTED_OUTSIDE | PLANTED_WHOLE
    for name, (code, case) in every.items():
        try:
            text, contract = interval(**case | options)
        except Exception as e:  # whatever this backend's compiler cannot do
            reason, end = str(e).splitlines()[0][:60], "does not compile"
        else:
            codes = [v.code for v in audit.audit_interval(text, contract).violations]
            reason = ", ".join(dict.fromkeys(codes)) or "nothing"
            end = "as named" if code in codes else "another reason" if codes else "MISSED"
        ends[end] += 1
        print(f"{name:45} {code:22} {end:18} {reason}", flush=True)
    print(f"{len(every)} planted: {', '.join(f'{n} {end}' for end, n in ends.items())}")
    return ends["MISSED"]


def functions(options) -> int:
    """Programs that compute another function: planted ones, and mutants."""
    from experiments.adversary import mutate_function
    from experiments.adversary.planted_function import PLANTED_FUNCTION, N
    from experiments.adversary.programs import interval

    print(f"\n== Planted functions ({FLAGS.topology or 'cpu'}) ==")
    if options.get("nodes", N) != N:
        print(f"they are written for {N} nodes")
        return 0
    missed = 0
    for name, (where, case) in PLANTED_FUNCTION.items():
        try:
            verdict = audit.audit_interval(*interval(**case | options))
        except Exception as e:  # whatever this backend's compiler cannot do
            print(f"{name:45} does not compile: {str(e).splitlines()[0][:60]}", flush=True)
            continue
        refused = "identity" if verdict.compared else "walk"
        codes = ", ".join(dict.fromkeys(v.code for v in verdict.violations))
        end = "MISSED" if verdict.ok else f"refused by the {refused}: {codes}"
        print(f"{name:45} {where:32} {end}", flush=True)
        missed += verdict.ok
    text, contract = interval(**{"batch": 3} | options)
    made = mutate_function.mutants(text, FLAGS.every)
    return missed + _killed("function, one layer", made, contract)


def mutated(options) -> int:
    from experiments.adversary.programs import SAMPLED, WHOLE

    whole = WHOLE | {"layers": 1}
    return (
        _mutated("one layer", {}, options, FLAGS.every)
        + _mutated("whole", whole, options, 10 * FLAGS.every)
        + _mutated("whole, sampled", whole | {"sampling": SAMPLED}, options, 100 * FLAGS.every)
        + _mutated("whole, prefill", whole | {"tokens": 4}, options, 10 * FLAGS.every)
    )


def _mutated(name: str, case: dict, options: dict, every: int) -> int:
    from experiments.adversary import mutate_collectives, mutations
    from experiments.adversary.programs import interval

    nodes = options.get("nodes", 3)
    text, contract = interval(**{"nodes": nodes, "batch": nodes} | case | options)
    print(f"\n== Mutants of a program ({name}) of {nodes} nodes ({FLAGS.topology or 'cpu'}) ==")
    if options:  # its transfers are asynchronous pairs, which only `transfers` knows
        made = mutations.transfers(text, nodes, every)
    else:
        made = mutate_collectives.mutants(text, contract, every)
    survived, flagged = _killed(name, made, contract), 0
    count = 0
    for _, _, changed in mutations.neutral(text, max(every // 10, 1)):
        flagged, count = flagged + (not audit.audit_interval(changed, contract).ok), count + 1
    print(f"{count} neutral changes, {flagged} flagged")
    return survived + flagged


def _killed(name: str, made, contract) -> int:
    """Audit mutants and print a line for each kind; returns how many survive."""
    table = collections.defaultdict(collections.Counter)
    for kind, _, changed in made:
        try:
            end = "SURVIVED" if audit.audit_interval(changed, contract).ok else "caught"
        except audit.Unauditable:
            end = "refused"
        table[kind][end] += 1
    for kind, ends in table.items():
        print(f"{kind:45} {', '.join(f'{n} {end}' for end, n in ends.items())}")
    total = sum(table.values(), collections.Counter())
    killed, count = total["caught"] + total["refused"], sum(total.values())
    print(f"{name}: {count} mutants in {len(table)} kinds, kill rate {killed / count:.2%}")
    return total["SURVIVED"]


if __name__ == "__main__":
    cli.run(main)
