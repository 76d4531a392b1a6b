"""Make mutants, find the tests that execute their lines, and run these tests on each mutant.

cosmic-ray's operators make the mutants; coverage says which tests execute which lines. A mutant is tested with a copy
of the package, in a process of its own, in which pytest runs the tests that execute the changed lines, the fastest
first, up to the first that fails. Array libraries are imported once, in the process from which the others are forked.
"""

import ast
import difflib
import hashlib
import importlib
import io
import json
import multiprocessing
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path

import coverage
import hypothesis
import pytest
from cosmic_ray.ast import get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.provider import OperatorProvider

TESTS = Path(__file__).resolve().parents[1]
# Where what is measured is kept, by default.
FOLDER = TESTS.parent / ".nox/mutants"
# Tests with the marker "slow" start processes, which do not have the changed functions.
OPTIONS = [
    *("-q", "-m", "not slow and not long", "-p", "no:cacheprovider", "-p", "no:xdist", "--doctest-modules"),
    *(f"--config-file={TESTS.parent / 'pyproject.toml'}", f"--rootdir={TESTS.parent}"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # hypothesis is imported already
]
# Without effect on results (decorators only cache; small numbers and names are one object each), or with an argument
# of its own.
LEFT_OUT = (
    *("RemoveDecorator", "VariableReplacer", "VariableInserter"),
    *(f"ReplaceComparisonOperator_{names}" for names in ("Eq_Is", "Is_Eq", "NotEq_IsNot", "IsNot_NotEq")),
)
# Modules that a compiler reads, and those of them that write machine code when a function is compiled.
COMPILED = re.compile(r"^(?:import|from) (numba|triton)\b", re.M)
MACHINE_CODE = re.compile(r"^(?:import|from) llvmlite\b", re.M)
EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"  # git's name of a folder without files
TICK = 0.004  # seconds: some systems count the time of a process in such steps, and give 0 to a fast test
AT_IMPORT = ""  # the name of what runs a line in place of a test
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload([__name__, "numba", "torch", "jax.numpy", "array_api_strict"])


def options_of(tests):
    """The libraries and folders that pytest is told to run for files of tests."""
    folders = {test.parent.name for test in tests if TESTS in test.parents}  # others have doctests
    names = folders - {"core"} | ({"numpy", "strict"} if "core" in folders else set())
    return [f"--xp={name}" for name in sorted(names)]  # a library named twice would have its tests under other names


def nodes_in(node):
    """A node and all nodes in it, in the order in which cosmic-ray counts occurrences."""
    yield node
    for child in getattr(node, "children", ()):
        yield from nodes_in(child)


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
    nodes, spans, places = [*nodes_in(get_ast(source))], [*left_out(source)], defaultdict(list)
    for name, operator in operators.items():
        found = (start for node in nodes for start, _ in operator.mutation_positions(node))
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


class Plugin:
    """For pytest: examples are the same each time, and none is searched that is smaller than one that fails."""

    @pytest.hookimpl(trylast=True)  # the tests of triton load a profile with fewer examples for all
    def pytest_configure(self):
        phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
        options = {"max_examples": 15, "derandomize": True, "database": None, "deadline": None, "phases": phases}
        hypothesis.settings.register_profile("mutants", **options)
        hypothesis.settings.load_profile("mutants")


class Measured(Plugin):
    """The seconds of each test, which tests do not pass, and which lines of some files of a package each executes."""

    def __init__(self, package, files):
        self.package, self.seconds, self.failed = package, {}, set()
        include = [f"{package}/{file}" for file in files]
        self.coverage = coverage.Coverage(data_file=None, config_file=False, include=include, messages=False)
        self.coverage.set_option("run:disable_warnings", ["no-data-collected", "module-not-measured"])
        self.coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        name = name_of(item, self.package)
        self.coverage.switch_context(name)
        start = time.process_time()
        try:
            return (yield)
        finally:
            self.seconds[name] = time.process_time() - start
            self.coverage.switch_context(AT_IMPORT)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item):
        report = yield
        if report.outcome != "passed":
            self.failed.add(name_of(item, self.package))
        return report

    def found(self):
        """What `Lines` reads, as JSON, of the tests that pass."""
        self.coverage.stop()
        names = [AT_IMPORT, *(name for name in self.seconds if name not in self.failed)]
        numbers, data, lines = {name: number for number, name in enumerate(names)}, self.coverage.get_data(), {}
        for file in data.measured_files():
            tests_of_lines = data.contexts_by_lineno(file).items()
            own = {line: [numbers[name] for name in found if name in numbers] for line, found in tests_of_lines}
            lines[os.path.relpath(file, self.package)] = own
        return json.dumps({"tests": names, "seconds": [self.seconds.get(name, 0.0) for name in names], "lines": lines})


class Chosen(Plugin):
    """Only these tests run, in this order, each for a limited time."""

    def __init__(self, package, seconds):
        self.package, self.seconds, self.ran, self.killer = package, seconds, [], None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        items[:] = [item for item in items if name_of(item, self.package) in self.seconds]
        items.sort(key=lambda item: [*self.seconds].index(name_of(item, self.package)))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item):
        self.ran.append(name_of(item, self.package))
        limit = 30 + 10 * self.seconds[self.ran[-1]]  # it may also compile
        signal.setitimer(signal.ITIMER_PROF, limit)
        signal.setitimer(signal.ITIMER_REAL, 10 * limit)  # of a test that waits, and uses no time of the processor

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.killer = self.ran[-1]


def name_of(item, package):
    """The name of a test; that of a doctest is the same in each copy of the package."""
    if not item.path.is_relative_to(package):
        return item.nodeid
    return f"{item.path.relative_to(package)}::{item.nodeid.partition('::')[2]}"


def run_task(result, package, files, seconds=None, measured=("*",), to=None):
    """Measure files of tests, for some files of the package, or run some of their tests, whose seconds are given.

    The result that is sent: the code of pytest, the test that failed and those that ran, or what was printed.
    """
    resource.setrlimit(resource.RLIMIT_DATA, (8 << 30, 8 << 30))
    sys.dont_write_bytecode = True
    if seconds is not None:
        sys.path.insert(0, str(package.parent))
        os.environ["PYTHONPATH"] = str(package.parent)  # for processes that tests start
        importlib.import_module("numba").config.CACHE_DIR = str(package.parent / "numba")
    plugin = Measured(package, measured) if seconds is None else Chosen(package, seconds)
    with redirect_stdout(io.StringIO()) as printed:
        importlib.import_module("rope_xp")  # as before other tests: it decides where pytest finds some doctests
        code = pytest.main([*OPTIONS, *["-x"] * (seconds is not None), *options_of(map(Path, files)), *files], [plugin])
    if seconds is None:
        Path(to).write_text(plugin.found())
        result.send(printed.getvalue())
    else:
        result.send((code, plugin.killer, plugin.ran))


def in_process(**task):
    """What `run_task` sends from a process of its own, or None, and how the process ended: None after a time limit."""
    receiver, sender = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=run_task, args=(sender,), kwargs=task)
    process.start()
    sender.close()
    limit = 3000 if task.get("seconds") is None else 600 + 100 * sum(task["seconds"].values())
    if not receiver.poll(limit):
        process.kill()
        process.join()
        return None, None
    try:
        result = receiver.recv()
    except EOFError:  # the process has ended before
        result = None
    process.join()
    return result, process.exitcode


def outcome_of(**task):
    """Whether tests notice a mutant, the test that fails, and those that ran."""
    result, ended = in_process(**task)
    code, killer, ran = result or (None, None, [])  # a mutant may end the process before it sends
    if killer is not None:
        return "killed", killer, ran
    if ended in (None, -signal.SIGPROF, -signal.SIGALRM):
        return "killed by time", None, ran
    if ended < 0:
        return "killed by a crash", None, ran
    # A change in a table may leave no test.
    survived = code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    return "survived" if survived else "killed at import", None, ran


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


class Bench:
    """The package, and a folder for what is measured of it, for results, and for copies of the package."""

    def __init__(self, package, folder):
        self.package, self.folder = package, folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        texts = {str(path.relative_to(package)): path.read_text() for path in sorted(package.rglob("*.py"))}
        self.sources, self.compiled = _hash(texts.values()), defaultdict(list)
        for file, text in texts.items():
            if compiler := COMPILED.search(text):
                self.compiled[compiler[1]].append(file)
        self.results = self.folder / "results.jsonl"
        self.copies = [self.folder / f"copy-{number}" for number in range(os.cpu_count())]  # with numba's cache of each
        for folder in self.copies:
            shutil.rmtree(folder / "rope_xp", ignore_errors=True)
            shutil.copytree(package, folder / "rope_xp", ignore=shutil.ignore_patterns("*.pyc"))

    def measure(self, tests, files=("*",)):
        """The lines of files of tests, measured where no earlier run has for the same files of the package: one file
        of tests for each processor at a time. The fewer files of the package are asked for, the faster it is."""

        def measured(test):
            key = _hash([self.sources, test.read_text(), *sorted(files)])
            file = self.folder / f"{test.parent.name}-{test.stem}-{key}.json"
            if not file.exists():
                printed, ended = in_process(package=self.package, files=[str(test)], measured=files, to=file)
                if not file.exists():
                    sys.exit(f"{test}: pytest did not run; the process ended with {ended}:\n{printed}")
                print(f"measured: {test}", file=sys.stderr)
            return file

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return Lines(dict(zip(tests, pool.map(measured, tests))))

    def test(self, mutants, lines, budget):
        """Test mutants: their outcomes. What an earlier run has killed by a test is not tested again."""
        versions = set(lines.version_of_test.values())
        known = {name for name, each in self._outcomes().items() if each["by"] and each["version"] in versions}
        tested = [mutant for mutant in mutants if mutant["name"] not in known]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda mutant: self._test(mutant, self.tests_of(mutant, lines, budget), lines), tested))
        found = self._outcomes()
        results = [found[each["name"]] for each in mutants]
        if killers := {each["by"] for each in results if each["by"]}:
            self._test({"name": "no mistake", "texts": {}}, lines.fast(killers, float("inf")), lines)
            if (found := self._outcomes()["no mistake"])["outcome"] != "survived":
                sys.exit(f"the tests that fail with a mistake must pass without one; got {found}")
        return results

    def tests_of(self, mutant, lines, budget):
        """The tests that run with a mutant, and their seconds."""
        names, others, is_table = set(), set(), False
        for file, text in mutant["texts"].items():
            source = (self.package / file).read_text()
            found, at_import = lines.of(source, file, lines_that_differ(source, text))
            compiler = COMPILED.search(source)
            if compiler and MACHINE_CODE.search(source):
                # Coverage sees such a line only in the test that compiles first, and in none if numba's cache has the
                # machine code: all tests of kernels count that the same compiler makes.
                found = set().union(*map(lines.of_file, self.compiled[compiler[1]]))
            names |= found
            if at_import or compiler:  # what runs at the import may matter in any test of the file
                others |= lines.of_file(file)
            is_table |= at_import
        # A row of a table matters in few of the tests that read the table.
        budget *= 6 if is_table else 1
        tests = lines.fast(names, budget)
        return tests | lines.fast(others - names, budget - sum(tests.values()))

    def _test(self, mutant, tests, lines):
        """Test one mutant with a copy of the package that no other one has."""
        folder = self.copies.pop()
        for file, text in mutant["texts"].items():
            (folder / "rope_xp" / file).write_text(text)
        # Where Triton's interpreter is loaded, its kernel also runs in the tests of other folders.
        of_triton = {name: tests[name] for name in tests if Path(lines.file_of_test[name]).parent.name == "triton"}
        others = {name: tests[name] for name in tests if name not in of_triton}
        outcome, killer = "survived", None
        for each in filter(None, (others, of_triton)):
            if outcome == "survived":
                files = {lines.file_of_test[name].replace(str(self.package), str(folder / "rope_xp")) for name in each}
                outcome, killer, ran = outcome_of(package=folder / "rope_xp", files=sorted(files), seconds=each)
                if not mutant["texts"] and outcome == "survived" and len(ran) < len(each):
                    sys.exit(f"tests that were measured must be found again; got {set(each) - set(ran)}")
        found = {name: mutant[name] for name in ("name", "file", "line", "before", "after") if name in mutant}
        version = lines.version_of_test.get(killer)
        found |= {"outcome": outcome, "by": killer, "version": version, "sources": self.sources}
        with open(self.results, "a") as file:
            file.write(json.dumps(found) + "\n")
        print(f"{outcome:17} {mutant['name']}  {mutant.get('after', '')}", file=sys.stderr)
        for file in mutant["texts"]:
            shutil.copy2(self.package / file, folder / "rope_xp" / file)  # with its time, for numba's cache
        self.copies.append(folder)

    def _outcomes(self):
        """The last outcome of each mutant of these sources."""
        lines = self.results.read_text().splitlines() if self.results.exists() else []
        return {each["name"]: each for line in lines if (each := json.loads(line))["sources"] == self.sources}


def _hash(texts):
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]
