"""Make mutants, find the tests that execute their lines, and run these tests on each mutant.

cosmic-ray's operators make the mutants; coverage says which tests execute which lines. A mutant is tested in a process
forked from one in which all tests are collected: its functions get the changed code, and the tests that execute the
changed lines run, the fastest first, up to the first that fails. If a changed line runs at the import, or a compiler
reads the source, the tests are collected once more with a changed copy of the package.
"""

import ast
import contextlib
import difflib
import gc
import hashlib
import importlib
import inspect
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType

import coverage
import pytest
from cosmic_ray.ast import Visitor, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.provider import OperatorProvider

TESTS = Path(__file__).resolve().parents[1]
# Where what is measured is kept, by default.
FOLDER = TESTS.parent / ".nox/mutants"
# Tests with the marker "slow" start processes, which do not have the changed functions.
OPTIONS = [
    *("-q", "-m", "not slow and not long", "-p", "no:cacheprovider", "-p", "no:xdist", "--doctest-modules"),
    *("--hypothesis-profile=mutants", f"--config-file={TESTS.parent / 'pyproject.toml'}", f"--rootdir={TESTS.parent}"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # plugins are imported already
]
# Without effect on results (decorators only cache; small numbers and names are one object each), or with an argument
# of its own.
LEFT_OUT = (
    *("RemoveDecorator", "VariableReplacer", "VariableInserter"),
    *(f"ReplaceComparisonOperator_{names}" for names in ("Eq_Is", "Is_Eq", "NotEq_IsNot", "IsNot_NotEq")),
)
# The types of nodes that the largest groups of operators mutate.
NODES_OF = {
    "ReplaceBinary": ("operator",),
    "ReplaceComparison": ("comparison",),
    "ReplaceUnary": ("factor", "not_test"),
}
# Modules that a compiler reads, and those of them that write machine code when a function is compiled.
COMPILED = re.compile(r"^(?:import|from) (numba|triton)\b", re.M)
MACHINE_CODE = re.compile(r"^(?:import|from) llvmlite\b", re.M)
EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"  # git's name of a folder without files
TICK = 0.004  # seconds: some systems count the time of a process in such steps, and give 0 to a fast test
AT_IMPORT = ""  # the name of what runs a line in place of a test


def options_of(tests):
    """The libraries and folders that pytest is told to run for files of tests."""
    folders = {test.parent.name for test in tests if TESTS in test.parents}  # others have doctests
    names = folders - {"core"} | ({"numpy", "strict"} if "core" in folders else set())
    return [f"--xp={name}" for name in sorted(names)]  # a library named twice would have its tests under other names


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
    """The lines and columns, from and to, in which no mutant is planted: annotations, decorators, texts of errors."""
    for node in ast.walk(ast.parse(source)):
        outside = [node] if isinstance(node, ast.Raise) else []
        outside += [each for name in ("annotation", "returns") if (each := getattr(node, name, None)) is not None]
        decorators = getattr(node, "decorator_list", [])
        outside += [node] if any(ast.unparse(each) == "overload" for each in decorators) else decorators
        for each in outside:
            yield (each.lineno, each.col_offset), (each.end_lineno, each.end_col_offset)


def places_in(package, file, operators):
    """Each place of a file with the mutants that can stand there: file, operator, occurrence and line."""
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
    before, after = lines[0]
    if before.replace("*,", "/,") == after:  # no operator, but which arguments are given by position
        return None
    return text, before, after


def sample_of(package, files, count, draw, lines=None):
    """At most so many mutants at different places of files, and of how many places; `lines` by file, or all.

    A place is drawn first, and then one mutant of that place, so that operators with many mutants count no more.
    """
    operators = {name: OperatorProvider()[name]() for name in OperatorProvider() if name not in LEFT_OUT}
    places = [place for file in files for place in places_in(package, file, operators)]
    if lines is not None:
        places = [place for place in places if place[0]["line"] in lines[place[0]["file"]]]
    draw.shuffle(places)
    sample = []
    for mutants in places:
        if len(sample) == count:
            break
        draw.shuffle(mutants)
        for mutant in mutants:
            source = (package / mutant["file"]).read_text()
            planted = mutated(source, operators[mutant["operator"]], mutant["occurrence"])
            if planted is not None:
                name = f"{mutant['file']}:{mutant['line']} {mutant['operator']} {mutant['occurrence']}"
                texts = {mutant["file"]: planted[0]}
                sample.append({**mutant, "name": name, "before": planted[1], "after": planted[2], "texts": texts})
                break
    return sample, len(places)


def changed_lines(base):
    """The lines of the package that differ from a commit, by file; all lines if the checkout has no such commit."""
    git = partial(subprocess.run, cwd=TESTS.parent / "rope_xp", capture_output=True, text=True)
    if git(["git", "rev-parse", "--verify", "--quiet", f"{base}^{{commit}}"]).returncode:
        print(f"{base} is no commit here: all lines count as changed")
        base = EMPTY_TREE
    command = ["git", "diff", "--unified=0", "--no-color", "--relative", base, "--", "*.py"]
    found, file = defaultdict(set), ""
    for line in git(command, check=True).stdout.splitlines():
        if line.startswith("+++ "):
            file = line.removeprefix("+++ b/")
        elif part := re.match(r"@@ .* \+(\d+)(?:,(\d+))? @@", line):
            first, count = int(part[1]), int(part[2] or 1)
            found[file].update(range(first, first + count))
    return {file: lines for file, lines in found.items() if lines}


class Fork:
    """A call of a function in a process and a group of its own, for so many seconds of the processor at most.

    By the clock, it is ten times as many: a busy machine ends nothing.
    """

    def __init__(self, function, *, seconds, log):
        self.until = time.monotonic() + 10 * seconds
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # JAX warns of threads, and pytest would raise that in the next test
            self.process = os.fork()
        if not self.process:
            code = 3
            try:
                os.setsid()
                resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds) + 5))
                resource.setrlimit(resource.RLIMIT_DATA, (8 << 30, 8 << 30))
                with open(log, "w") as file:
                    os.dup2(file.fileno(), 1)
                    os.dup2(file.fileno(), 2)
                code = function()
            finally:
                sys.stdout.flush()
                os._exit(code)

    def has_ended(self):
        """Whether the function has. Its exit code is then `code`, or None if it took too long."""
        ended, status = os.waitpid(self.process, os.WNOHANG)
        if not ended and time.monotonic() < self.until:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process, signal.SIGKILL)  # with what its tests may have started
        if not ended:
            os.waitpid(self.process, 0)
        code = os.waitstatus_to_exitcode(status) if ended else None
        self.code = None if code in (-signal.SIGXCPU, -signal.SIGPROF) else code
        return True


def first_ended(forks):
    while True:
        for fork in forks:
            if fork.has_ended():
                return fork
        time.sleep(0.005)


def in_fork(function, *, seconds, log):
    """The exit code of a function in a process of its own, or None if it takes too long."""
    return first_ended([Fork(function, seconds=seconds, log=log)]).code


class Measured:
    """A plugin of pytest: the seconds of each test, and which tests do not pass; coverage is told which one runs."""

    def __init__(self, measuring):
        self.measuring, self.seconds, self.failed = measuring, {}, set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        self.measuring.switch_context(item.nodeid)
        start = time.process_time()
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid] = time.process_time() - start
            self.measuring.switch_context(AT_IMPORT)

    def pytest_runtest_logreport(self, report):
        if report.outcome != "passed":
            self.failed.add(report.nodeid)


def measure(package, test, file):
    """Write the seconds of each test of a file that passes, and the tests that execute each line of the package."""
    measuring = coverage.Coverage(data_file=None, config_file=False, include=[f"{package}/*"], messages=False)
    measuring.set_option("run:disable_warnings", ["no-data-collected", "module-not-measured"])
    measuring.start()
    importlib.import_module("rope_xp")  # as before other tests: it decides in which module pytest finds some doctests
    plugin = Measured(measuring)
    code = pytest.main([*OPTIONS, *options_of([test]), str(test)], plugins=[plugin])
    measuring.stop()
    data, lines = measuring.get_data(), {}
    names = [AT_IMPORT, *(name for name in plugin.seconds if name not in plugin.failed)]
    numbers = {name: number for number, name in enumerate(names)}
    for each in data.measured_files():
        tests_of_lines = data.contexts_by_lineno(each).items()
        own = {line: [numbers[name] for name in found if name in numbers] for line, found in tests_of_lines}
        lines[os.path.relpath(each, package)] = own
    seconds = [round(plugin.seconds.get(name, 0.0), 4) for name in names]
    file.write_text(json.dumps({"tests": names, "seconds": seconds, "lines": lines}))
    return 0 if code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED) else 3


class Lines:
    """Which tests execute which lines, from the files that `measure` writes, by the file of tests."""

    def __init__(self, measured):
        self.seconds, self.file_of_test, self.version_of_test, self._tests = {}, {}, {}, {}
        for test, file in measured.items():
            found = json.loads(file.read_text())
            names = found["tests"]
            self.seconds.update(zip(names, found["seconds"]))
            self.file_of_test.update(dict.fromkeys(names, str(test)))
            self.version_of_test.update(dict.fromkeys(names, file.name))
            for changed, tests_of_lines in found["lines"].items():
                for line, numbers in tests_of_lines.items():
                    of_line = self._tests.setdefault(changed, {}).setdefault(int(line), set())
                    of_line.update(names[number] for number in numbers)

    def of(self, source, file, lines):
        """The tests that execute the statements at lines of a file, and whether the import of the file does."""
        of_file, found, at_import = self._tests.get(file, {}), set(), False
        for line in lines:
            statement, in_function = statement_at(source, line)
            if in_function:
                found |= set().union(*(of_file.get(each, set()) for each in statement))
            else:
                # Not those at the import, which the first test that needs the module does.
                uses = [each for each in uses_of(source, statement) if statement_at(source, each)[1]]
                found |= set().union(*(of_file.get(each, set()) for each in uses))
            at_import |= not in_function or AT_IMPORT in found
        if not found - {AT_IMPORT}:
            found = self.of_file(file) or set(self.seconds)
        return found - {AT_IMPORT}, at_import

    def of_file(self, file):
        """The tests that execute a line of a file."""
        return set().union(*self._tests.get(file, {}).values())

    def fast(self, tests, budget):
        """Some tests, as many as take so many seconds, but one at least; and the seconds of each.

        The fastest come first. Of a test function, each further one with other parameters counts as slower.
        """
        chosen, seconds, number, order = {}, 0.0, Counter(), {}
        for name in sorted(tests, key=self.seconds.__getitem__):
            number[name.partition("[")[0]] += 1
            order[name] = number[name.partition("[")[0]] * max(self.seconds[name], TICK)
        for name in sorted(order, key=order.__getitem__):
            seconds += max(self.seconds[name], TICK)
            if seconds > budget and chosen:
                break
            chosen[name] = self.seconds[name]
        return chosen


def statement_at(source, line):
    """The lines of the innermost statement at a line, without those of its body; whether it is in a function."""
    in_function = False
    for node in ast.walk(ast.parse(source)):  # the outer statements first
        if isinstance(node, ast.stmt) and node.lineno <= line <= node.end_lineno:
            body = getattr(node, "body", None)
            last = max(node.lineno, body[0].lineno - 1) if body else node.end_lineno
            if line <= last:
                return range(node.lineno, last + 1), in_function
            in_function |= isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    return range(line, line + 1), in_function


def uses_of(source, statement):
    """The lines with the names that a statement of a module or a class assigns."""
    assigned = re.match(r"\s*([\w, ]+?)(?::[^=]*)?\s*=[^=]", source.splitlines()[statement.start - 1])
    names = assigned[1].replace(",", " ").split() if assigned else []
    found = re.compile(rf"\b({'|'.join(names)})\b") if names else None
    return [number for number, line in enumerate(source.splitlines(), 1) if found and found.search(line)]


def lines_that_differ(old, new):
    """The numbers of the lines of a text that another one has not."""
    changes = difflib.SequenceMatcher(None, old.splitlines(), new.splitlines(), autojunk=False).get_opcodes()
    return [
        line + 1 for kind, first, end, *_ in changes if kind != "equal" for line in range(first, max(end, first + 1))
    ]


def changed_code(path, old, new):
    """The code of functions that differs, before and after; None if a module or a class would run anew."""

    def own(code):
        constants = [repr(each) for each in code.co_consts if not isinstance(each, CodeType)]
        return code.co_code, constants, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars

    def pairs(before, after):
        yield before, after
        inner = [[each for each in code.co_consts if isinstance(each, CodeType)] for code in (before, after)]
        if len(inner[0]) == len(inner[1]):
            for pair in zip(*inner):
                yield from pairs(*pair)

    found = []
    for before, after in pairs(compile(old, path, "exec"), compile(new, path, "exec")):
        of_function = before.co_flags & inspect.CO_OPTIMIZED
        if (own(before) != own(after) and not of_function) or before.co_freevars != after.co_freevars:
            return None
        if before != after and of_function:
            found.append((before, after))
    return found


def put_in_place(path, pairs):
    """Give the functions of a module their changed code; whether there are such."""
    functions = [each for each in gc.get_objects() if type(each) is FunctionType and each.__code__.co_filename == path]
    found = [(each, after) for each in functions for before, after in pairs if each.__code__ == before]
    for function, code in found:
        function.__code__ = code
    return bool(found)


class Tested:
    """A plugin of pytest that in place of all tests tests each mutant, in a fork; `tell` gets the outcomes."""

    def __init__(self, package, mutants, tell, log):
        self.package, self.mutants, self.tell, self.log, self.failed = package, mutants, tell, log, None

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self):
        import hypothesis

        hypothesis.settings.load_profile("mutants")  # the tests of triton load one with fewer examples for all

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.failed = report.nodeid

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session):
        if session.testsfailed:  # while tests were collected: a changed copy cannot be imported
            raise session.Interrupted(f"{session.testsfailed} errors while collecting")
        items = {item.nodeid: item for item in session.items}
        # A mistake in a table may change which tests there are. Else, all that were measured must be here.
        measured = {name for each in self.mutants if each["pairs"] or not each["texts"] for name in each["tests"]}
        if lost := measured - items.keys():
            raise pytest.UsageError(f"tests that were measured must be collected; {len(lost)} are not: {min(lost)}")
        for file in {file for mutant in self.mutants for file in mutant["pairs"]}:
            importlib.import_module(".".join(Path("rope_xp", file).with_suffix("").parts).removesuffix(".__init__"))
        for mutant in self.mutants:
            with tempfile.NamedTemporaryFile("r") as failed:
                run = partial(self._test, mutant, items, Path(failed.name))
                code = in_fork(run, seconds=60 + 10 * sum(mutant["tests"].values()), log=self.log)
                others = "killed by time" if code is None else "killed by a crash"
                self.tell(mutant, {0: "survived", 1: "killed", 4: "not in place"}.get(code, others), failed.read())
        return True

    def _test(self, mutant, items, failed):
        if not all(put_in_place(str(self.package / file), pairs) for file, pairs in mutant["pairs"].items()):
            return 4
        if threads := sys.modules.get("rope_xp.arrays.threads"):
            threads._forked.clear()  # else no test would use threads; none has run before the fork
        names = [name for name in mutant["tests"] if name in items]
        for name, following in zip(names, [*names[1:], None]):
            # In a changed copy, a test also compiles.
            signal.setitimer(signal.ITIMER_PROF, (5 if mutant["pairs"] else 30) + 10 * mutant["tests"][name])
            item, nextitem = items[name], items.get(following)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)
            if self.failed is not None:
                failed.write_text(self.failed)
                return 1
        return 0


class Bench:
    """The package, and a folder for what is measured of it and for results."""

    def __init__(self, package, folder):
        self.package, self.folder = package, folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        texts = {str(path.relative_to(package)): path.read_text() for path in sorted(package.rglob("*.py"))}
        self.sources, self.compiled = _hash(texts.values()), defaultdict(list)
        for file, text in texts.items():
            if compiler := COMPILED.search(text):
                self.compiled[compiler[1]].append(file)
        self.results, self.log = self.folder / "results.jsonl", self.folder / f"log-{os.getpid()}"
        self.progress = os.fdopen(os.dup(2), "w", buffering=1)  # processes that test have another standard error

    def measure(self, tests):
        """The lines of files of tests, measured where no earlier run has: one file for each processor at a time."""
        measured, running = {}, {}

        def end_one():
            fork = first_ended(running)
            test, log = running.pop(fork)
            if fork.code != 0:
                sys.exit(f"{test}: pytest did not run:\n{Path(log).read_text()[-3000:]}")
            print(f"measured: {test}", file=self.progress)

        for number, test in enumerate(tests):
            key = _hash([self.sources, test.read_text()])
            file = measured[test] = self.folder / f"{test.parent.name}-{test.stem}-{key}.json"
            if not file.exists():
                if len(running) == os.cpu_count():
                    end_one()
                log = f"{self.log}-{number}"
                running[Fork(partial(measure, self.package, test, file), seconds=3000, log=log)] = test, log
        while running:
            end_one()
        return Lines(measured)

    def test(self, mutants, lines, budget):
        """Test mutants: their outcomes, by name. What an earlier run has killed by a test is not tested again."""
        versions = set(lines.version_of_test.values())
        known = {name: each for name, each in self._outcomes().items() if each["by"] and each["version"] in versions}
        quick, slow = [], []
        for mutant in mutants:
            if mutant["name"] in known:
                continue
            pairs, names, anew = {}, set(), False
            for file, text in mutant["texts"].items():
                source, path = (self.package / file).read_text(), str(self.package / file)
                found, at_import = lines.of(source, file, lines_that_differ(source, text))
                pairs[file], compiler = changed_code(path, source, text), COMPILED.search(source)
                if compiler and MACHINE_CODE.search(source):
                    # Coverage sees such a line only in the test that compiles first, and in none if numba's cache has
                    # the machine code: all tests of kernels count that the same compiler makes.
                    found = set().union(*map(lines.of_file, self.compiled[compiler[1]]))
                names |= found
                anew |= at_import or pairs[file] is None or compiler is not None
            tests = lines.fast(names, budget)
            if anew:  # what runs at the import may matter in any test of the file
                others = set().union(*map(lines.of_file, mutant["texts"])) - names
                tests |= lines.fast(others, budget - sum(tests.values()))
            (slow if anew else quick).append({**mutant, "tests": tests, "pairs": {} if anew else pairs})
        tell = partial(self._tell, lines)
        if quick:
            run = partial(self._run, self.package, quick, lines, tell)
            if in_fork(run, seconds=100_000, log=self.log) != 0:
                sys.exit(f"pytest did not run:\n{self.log.read_text()[-3000:]}")
            outcomes = self._outcomes()
            slow += [{**each, "pairs": {}} for each in quick if outcomes[each["name"]]["outcome"] == "not in place"]
        for mutant in slow:
            self._test_copy(mutant, lines, tell)
        found = self._outcomes()
        results = [found[each["name"]] for each in mutants]
        if killers := {each["by"] for each in results if each["by"]}:
            unchanged = {"name": "no mistake", "texts": {}, "pairs": {}, "tests": lines.fast(killers, float("inf"))}
            self._test_copy(unchanged, lines, tell)
            if (found := self._outcomes()["no mistake"])["outcome"] != "survived":
                sys.exit(f"the tests that fail with a mistake must pass without one; got {found}")
        return results

    def _tell(self, lines, mutant, outcome, by):
        found = {name: mutant[name] for name in ("name", "file", "line", "before", "after") if name in mutant}
        found |= {"outcome": outcome, "by": by, "version": lines.version_of_test.get(by), "sources": self.sources}
        with open(self.results, "a") as file:
            print(json.dumps(found), file=file)
        print(f"{outcome:17} {mutant['name']}  {mutant.get('after', '')}", file=self.progress)

    def _outcomes(self):
        """The last outcome of each mutant of these sources."""
        lines = self.results.read_text().splitlines() if self.results.exists() else []
        return {each["name"]: each for line in lines if (each := json.loads(line))["sources"] == self.sources}

    def _run(self, package, mutants, lines, tell):
        """Collect the files with the tests of mutants, and test each."""
        files = sorted({lines.file_of_test[name] for mutant in mutants for name in mutant["tests"]})
        plugin = Tested(package, mutants, tell, f"{self.log}-test")
        return int(pytest.main([*OPTIONS, *options_of(map(Path, files)), *files], plugins=[plugin]))

    def _test_copy(self, mutant, lines, tell):
        """Test one mutant with a changed copy of the package."""
        doctests = {name for name, file in lines.file_of_test.items() if self.package in Path(file).parents}
        mutant = {**mutant, "tests": {name: each for name, each in mutant["tests"].items() if name not in doctests}}
        with tempfile.TemporaryDirectory() as folder:
            package = shutil.copytree(self.package, Path(folder, "rope_xp"), ignore=shutil.ignore_patterns("*.pyc"))
            for file, text in mutant["texts"].items():
                (package / file).write_text(text)

            def run():
                sys.path.insert(0, folder)
                os.environ |= {"PYTHONPATH": folder, "NUMBA_CACHE_DIR": folder}
                return self._run(package, [mutant], lines, tell)

            code = in_fork(run, seconds=300 + 20 * sum(mutant["tests"].values()), log=self.log)
        if code != 0:
            tell(mutant, "killed by time" if code is None else "killed at import", "")


def _hash(texts):
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def prepare():
    """What all processes share: imports that take long, and hypothesis that repeats itself and keeps nothing."""
    import array_api_strict  # noqa: F401
    import hypothesis
    import mpmath  # noqa: F401
    import numba  # noqa: F401

    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]  # no time is spent on a smaller example
    options = {"max_examples": 15, "derandomize": True, "database": None, "deadline": None, "phases": phases}
    hypothesis.settings.register_profile("mutants", **options)
