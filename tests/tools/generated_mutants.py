"""Plant mistakes that cosmic-ray's operators make, a random sample of them, and list those that no test notices.

Run: `python tests/tools/generated_mutants.py --sample 500 --out benchmarks/results/mutants.md`. A run that was stopped
goes on where it stopped, as long as the seed and the sources are the same.

A place in the source is drawn first, and then one mutant of that place, so that operators with many mutants count no
more than others. Annotations, decorators, the text of errors and what does not compile are left out. Each mutant is a
process forked from this one, in which pytest and NumPy are imported already. It runs the tests of its module, then its
module's doctests, then the others, and stops at the first that fails.
"""

import argparse
import ast
import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from importlib.util import find_spec
from pathlib import Path

import pytest
from accepted_mutants import ACCEPTED
from cosmic_ray.ast import Visitor, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.provider import OperatorProvider

TESTS = Path(__file__).resolve().parents[1]
MODULES = [
    "functions",
    "layouts",
    "tables",
    "alignment",
    "plan",
    "angles",
    "exact_phases",
    "frequencies",
    "spectrum",
    "sections",
    "description",
    "embedding",
    "positions",
    "configs",
]
# Tests of a module that are named otherwise.
OF_EMBEDDING = ["embedding", "spectrum", "layouts", "plan", "description"]
TESTS_OF = {
    **dict.fromkeys(OF_EMBEDDING, ("embedding", "axes")),
    "exact_phases": ("angles", "frequencies"),
    "configs": ("config", "goldens"),
    "alignment": ("rotation", "axes"),
    "functions": ("rotation",),
    "sections": ("axes",),
    "tables": ("rotation", "embedding"),
}
# Not run, as they take long: tests of compiled kernels and of broken surroundings, and the search for bad configs.
SLOW = ("test_kernels", "test_faults", "test_config_fuzz")
# Without effect on results (decorators only cache), or with an argument of its own.
LEFT_OUT = ("RemoveDecorator", "VariableReplacer", "VariableInserter")
# The types of nodes that the largest groups of operators mutate.
NODES_OF = {
    "ReplaceBinary": ("operator",),
    "ReplaceComparison": ("comparison",),
    "ReplaceUnary": ("factor", "not_test"),
}
# What pytest's exit codes mean: a test fails, a file of tests cannot be imported, a conftest cannot be.
OUTCOMES = {0: "survived", 1: "killed", 2: "killed at import", 4: "killed at import"}


class Places(Visitor):
    """Where each operator can mutate a file, in cosmic-ray's own order of occurrences."""

    def __init__(self, operators):
        self.operators = operators
        self.found = {name: [] for name in operators}

    def visit(self, node):
        for name, operator in self.operators.items():
            # Two hundred operators ask each node; most of them only care for one type.
            if node.type in NODES_OF.get(name.partition("Operator_")[0], (node.type,)):
                self.found[name] += (start for start, _ in operator.mutation_positions(node))
        return node


def left_out(source):
    """The lines and columns, from and to, in which no mutant is planted."""
    for node in ast.walk(ast.parse(source)):
        outside = [node] if isinstance(node, ast.Raise) else []
        outside += [each for name in ("annotation", "returns") if (each := getattr(node, name, None)) is not None]
        decorators = getattr(node, "decorator_list", [])
        outside += [node] if any(ast.unparse(each) == "overload" for each in decorators) else decorators
        for each in outside:
            yield (each.lineno, each.col_offset), (each.end_lineno, each.end_col_offset)


def places_in(package, file, operators):
    """Each place of a file with the mutants that can stand there: file, operator, occurrence and place."""
    source = (package / file).read_text()
    visitor, spans = Places(operators), list(left_out(source))
    visitor.walk(get_ast(source))
    places = defaultdict(list)
    for name, found in visitor.found.items():
        for occurrence, place in enumerate(found):
            if not any(start <= place < end for start, end in spans):
                places[place].append({"file": file, "operator": name, "occurrence": occurrence, "line": place[0]})
    return list(places.values())


def mutated(source, operator, occurrence):
    """A mutant's text and the lines before and after, or None where it is no program or the same one."""
    text = mutate_code(source, operator, occurrence)
    try:
        if text is None or ast.dump(ast.parse(text)) == ast.dump(ast.parse(source)):
            return None
    except SyntaxError:
        return None
    lines = [(old.strip(), new.strip()) for old, new in zip(source.splitlines(), text.splitlines()) if old != new]
    return text, *lines[0]


def sample_of(package, count, seed):
    """So many mutants of different places, drawn with a seed."""
    operators = {name: OperatorProvider()[name]() for name in OperatorProvider() if name not in LEFT_OUT}
    files = [file for name in MODULES for end in (".py", "/*.py") for file in sorted(package.glob(f"**/{name}{end}"))]
    places = [place for file in files for place in places_in(package, str(file.relative_to(package)), operators)]
    draw, sample = random.Random(seed), []
    draw.shuffle(places)
    for mutants in places:
        draw.shuffle(mutants)
        for mutant in mutants:
            source = (package / mutant["file"]).read_text()
            planted = mutated(source, operators[mutant["operator"]], mutant["occurrence"])
            if planted is not None:
                sample.append({**mutant, "before": planted[1], "after": planted[2], "text": planted[0]})
                break
        if len(sample) == count:
            return sample, len(places)
    sys.exit(f"the sample must be at most the {len(sample)} places; got {count}")


def tests_for(package, file):
    """What pytest runs for a file: its own tests, its doctests, and all others but slow ones."""
    parts = Path(file).with_suffix("").parts if file else ()
    names = [name for part in parts for name in TESTS_OF.get(part, (part,))]
    own = [path for name in reversed(names) if (path := TESTS / "core" / f"test_{name}.py").exists()]
    files = [path for folder in ("core", "numpy") for path in sorted(TESTS.glob(f"{folder}/test_*.py"))]
    others = [path for path in files if path.stem not in SLOW and path not in own]
    return [*own, *([package / file] if file else []), *others]


def test_in_fork(folder, file):
    """Start a process that tests the package in a folder; its id."""
    process = os.fork()
    if process:
        return process
    os.setsid()
    code = 3
    try:
        os.chdir(folder)
        log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.path.insert(0, str(folder))
        os.environ["PYTHONPATH"] = str(folder)
        tests = map(str, tests_for(folder / "rope_xp", file))
        options = ["-x", "-q", "--xp=numpy", "--xp=strict", "--doctest-modules", "-p", "no:cacheprovider"]
        options += [f"--config-file={TESTS.parent / 'pyproject.toml'}"]
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # plugins are imported already
        code = int(pytest.main([*options, *tests]))
    finally:
        sys.stdout.flush()
        os._exit(code)


def outcomes(package, mutants, workers, timeout):
    """Test mutants, so many at a time, and yield each with its outcome and the seconds it took."""
    waiting, running, free = list(mutants), {}, [package.parent]
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        stack.callback(_end, running)
        free += [Path(shutil.copytree(package.parent, Path(folder, str(number)))) for number in range(1, workers)]
        while waiting or running:
            while waiting and free:
                mutant, at = waiting.pop(0), free.pop()
                (at / "rope_xp" / mutant["file"]).write_text(mutant["text"])
                running[test_in_fork(at, mutant["file"])] = mutant, at, time.monotonic()
            time.sleep(0.02)
            for process, (mutant, at, start) in list(running.items()):
                seconds = time.monotonic() - start
                if seconds > timeout:
                    _end([process])
                ended, status = os.waitpid(process, 0 if seconds > timeout else os.WNOHANG)
                if not ended:
                    continue
                _end([process])  # what its tests may have started
                code = os.waitstatus_to_exitcode(status)
                outcome = "killed by time" if seconds > timeout else OUTCOMES.get(code, "killed by a crash")
                log = (at / "log").read_text(errors="replace")
                if code == 3 and "INTERNALERROR" not in log:
                    sys.exit(f"{mutant['file']}:{mutant['line']}: pytest did not run:\n{log}")
                shutil.copy2(SOURCE / mutant["file"], at / "rope_xp" / mutant["file"])
                del running[process]
                free.append(at)
                last = next((line for line in reversed(log.splitlines()) if line.startswith(("FAILED", "ERROR"))), "")
                yield {**mutant, "outcome": outcome, "seconds": round(seconds, 1), "by": last}


def _end(processes):
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)


def report(results, sample, of, seed):
    """The table of survivors in Markdown, the share that is killed, and how many survivors have no reason."""
    count = Counter(each["outcome"] for each in results)
    survivors = sorted((each for each in results if each["outcome"] == "survived"), key=lambda each: each["file"])
    reasons = [ACCEPTED.get((each["file"], each["before"], each["after"]), "") for each in survivors]
    share = 1.0 - len(survivors) / len(results)
    stopped = "" if len(results) == sample else ", those drawn first; the run was stopped then"
    text = f"""# Random mistakes

Made by `python tests/tools/generated_mutants.py --sample {sample} --seed {seed}`: mutants by cosmic-ray's operators \
at {sample} of {of} places in {", ".join(MODULES)}, drawn at random. {len(results)} of them are tested{stopped}.

{share:.1%} are killed. {"; ".join(f"{name}: {number}" for name, number in sorted(count.items()))}.

| survivor | becomes | reason |
|---|---|---|
"""
    for each, reason in zip(survivors, reasons):
        before, after = (each[name].replace("|", "\\|") for name in ("before", "after"))
        text += f"| {each['file']}:{each['line']} `{before}` | `{after}` | {reason or '**none**'} |\n"
    return text, share, reasons.count("")


SOURCE = Path(find_spec("rope_xp").origin).parent


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--least", type=float, default=0.95, help="the share that must be killed")
    parser.add_argument("--out", type=Path, help="the table; survivors need reasons then, and results are kept, too")
    asked = parser.parse_args()
    sample, of = sample_of(SOURCE, asked.sample, asked.seed)
    _prepare()
    sources = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(SOURCE.rglob("*.py")))).hexdigest()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        known, kept = {}, None
        if asked.out is not None:
            kept = asked.out.with_suffix(".jsonl")
            known = _known(kept, sources)
            kept = stack.enter_context(open(kept, "a"))
        package = Path(folder, "rope_xp")
        shutil.copytree(SOURCE, package, ignore=shutil.ignore_patterns("__pycache__"))
        start = time.monotonic()
        # Without a mistake; the compiled kernels are then on disk for the others.
        _, status = os.waitpid(test_in_fork(package.parent, None), 0)
        if status:
            sys.exit(f"the tests must pass without a mistake:\n{(package.parent / 'log').read_text()}")
        timeout = 60 + 5 * (time.monotonic() - start)
        print(f"{len(sample)} of {of} places; without a mistake the tests take {time.monotonic() - start:.0f} s")
        results = [known[key] for each in sample if (key := _key(each)) in known]
        new = [each for each in sample if _key(each) not in known]
        with contextlib.suppress(KeyboardInterrupt):  # which leaves a table of what was tested
            for each in outcomes(package, new, asked.workers, timeout):
                del each["text"]
                results.append(each)
                place = f"{each['file']}:{each['line']}"
                print(f"{each['outcome']:17}{each['seconds']:6.1f} s  {place}  {each['after']}", flush=True)
                if kept is not None:
                    print(json.dumps({**each, "sources": sources}), file=kept, flush=True)
    if not results:
        sys.exit("a mutant must be tested before the run is stopped; got none")
    text, share, unexplained = report(results, len(sample), of, asked.seed)
    if asked.out is None:
        print(text)
    else:
        asked.out.write_text(text)
    if share < asked.least:
        sys.exit(f"{asked.least:.0%} must be killed; got {share:.1%}")
    if unexplained and asked.out is not None:
        sys.exit(f"every survivor must have a reason in accepted_mutants.py; {unexplained} have none")


def _key(mutant):
    return mutant["file"], mutant["operator"], mutant["occurrence"]


def _known(path, sources):
    """What an earlier run on the same sources killed; survivors are tested again, as there may be a new test."""
    lines = path.read_text().splitlines() if path.exists() else []
    results = [each for line in lines if (each := json.loads(line)).pop("sources") == sources]
    return {_key(each): each for each in results if each["outcome"] != "survived"}


def _prepare():
    """What all processes share: imports that take long, and hypothesis that repeats itself and keeps nothing."""
    import array_api_strict  # noqa: F401
    import hypothesis
    import mpmath  # noqa: F401
    import numba  # noqa: F401

    sys.dont_write_bytecode = True
    os.environ |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]  # no time is spent on a smaller example
    hypothesis.settings.register_profile("mutants", derandomize=True, database=None, phases=phases)
    hypothesis.settings.load_profile("mutants")


if __name__ == "__main__":
    main()
