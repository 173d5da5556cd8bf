#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants the defects of tests/mutants one by one and says which test of `make check` catches each.

tools/mutants.py BUILD [NN]...: all, or the ones with these numbers. The tree is copied to BUILD/tree and built there
without a defect; then every patch is applied, what changed is built, the tests that the patch names are run, after them
all others, and the patch is taken back. Prints a table and leaves it in BUILD/mutants.md; ends with 1 when a defect
survives.

A patch starts with two lines before its diff: `Defect:` what is wrong, and `Caught by:` tests that should see it,
separated by semicolons: `unit NAME` (a program of tests/unit), `model NAME` (of tests/model or tests/lanes), `check
SUITE` (of `ferry check`) or `script NAME` (tests/cli/test_NAME.sh).
"""
import filecmp
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PARTS = ["CMakeLists.txt", "Makefile", "cmake", "include", "src", "lm", "cli", "tests", "bench", "data", "examples",
         "python", "docs", "tools", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "NOTICE"]
LIMIT_S = 120       # of one program; a mutant may hang


class Tree:
    """A copy of the tree and its build folder."""

    def __init__(self, folder):
        self.path = folder / "tree"
        self.build = folder / "build"
        self.log = folder / "mutants.log"

    def copy(self):
        """Files that differ are copied, so that a second run builds only what changed."""
        wanted = set()
        for part in PARTS:
            top = ROOT / part
            files = [top] if top.is_file() else [p for p in top.rglob("*") if p.is_file()]
            wanted.update(f.relative_to(ROOT) for f in files)
        for old in [p for p in self.path.rglob("*") if p.is_file()]:
            if old.relative_to(self.path) not in wanted:
                old.unlink()
        for name in sorted(wanted):
            to = self.path / name
            if to.exists() and filecmp.cmp(ROOT / name, to, shallow=False):
                continue
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes((ROOT / name).read_bytes())
            to.chmod((ROOT / name).stat().st_mode)

    def run(self, command, limit_s=None, stop=None):
        """Exit code, or -1 after the limit or once a line of the output matches `stop`. Everything goes to the log."""
        with open(self.log, "ab") as log:
            log.write(f"\n$ {' '.join(map(str, command))}\n".encode())
            log.flush()
            start = log.tell()
            child = subprocess.Popen(command, cwd=self.path, stdout=log, stderr=subprocess.STDOUT,
                                     start_new_session=True)
            end = time.monotonic() + limit_s if limit_s else float("inf")
            while True:
                try:
                    return child.wait(timeout=0.2)
                except subprocess.TimeoutExpired:
                    pass
                with open(self.log, "rb") as text:
                    text.seek(start)
                    failed = stop and re.search(stop, text.read(), re.MULTILINE)
                if failed or time.monotonic() > end:
                    os.killpg(child.pid, signal.SIGKILL)
                    child.wait()
                    return -1

    def make(self, *targets):
        command = ["cmake", "--build", self.build, "-j", os.environ.get("JOBS", "2")]
        return self.run(command + ["--target", *targets] if targets else command)

    def ctest(self, name, limit_s):
        return self.run(["ctest", "--test-dir", self.build, "--output-on-failure", "-R", f"^{name}$"], limit_s)

    def patch(self, patch, *options):
        return self.run(["patch", "-p1", "--no-backup-if-mismatch", *options, "-i", patch])


def passes(tree, test):
    """True when the test finds nothing."""
    kind, name = test.split()
    if kind in ("unit", "model"):
        return tree.make(name) == 0 and tree.ctest(name, LIMIT_S) == 0
    if kind == "script":
        return tree.make() == 0 and tree.ctest(f"cli_{name}", 3 * LIMIT_S) == 0
    return tree.make("ferry") == 0 and tree.run([tree.build / "ferry", "check", "--suite", name], 3 * LIMIT_S,
                                                rb"^FAILED ") == 0


def all_tests(tree):
    """Every unit test, suite and script, the quick ones first."""
    units = sorted(p.stem for p in (tree.path / "tests" / "unit").glob("test_*.c"))
    scripts = sorted(f"script {p.stem[5:]}" for p in (tree.path / "tests" / "cli").glob("test_*.sh"))
    suites = ["cases", "bits", "life", "property", "memory", "alloc", "fault", "overlap"]
    models = ["model ticket_model", "model lane_model"]
    return [f"unit {u}" for u in units] + models + [f"check {s}" for s in suites] + scripts


def judge(tree, patch, first):
    """The test that caught it, or None."""
    for test in first + [t for t in all_tests(tree) if t not in first]:
        if not passes(tree, test):
            return test
    return None


def sound(tree, test, known={}):
    """True when the test passes without a defect; what fails anyway catches nothing. Each is asked once."""
    if test not in known:
        known[test] = passes(tree, test)
    return known[test]


def try_mutant(tree, patch):
    head = dict(re.findall(r"^([A-Z][a-z ]+): (.*)$", patch.read_text(), re.MULTILINE))
    first = [t.strip() for t in head["Caught by"].split(";")]
    start = time.monotonic()
    if tree.patch(patch) != 0:
        tree.copy()
        return head["Defect"], "does not apply", 0
    caught = judge(tree, patch, first)
    tree.patch(patch, "-R")
    seconds = time.monotonic() - start
    if caught and not sound(tree, caught):
        caught = f"**{caught} fails without it too**"
    return head["Defect"], caught or "**survived**", seconds


def main():
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):  # a shell's background would have them ignored
        signal.signal(number, signal.SIG_DFL)
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    patches = sorted((ROOT / "tests" / "mutants").glob("*.patch"))
    patches = [p for p in patches if len(sys.argv) == 2 or p.name.split("-")[0] in sys.argv[2:]]
    tree = Tree(folder)
    tree.log.write_text("")
    tree.copy()
    if tree.run(["cmake", "-S", ".", "-B", tree.build, "-DFERRY_CUDA=OFF"]) != 0 or tree.make() != 0:
        sys.exit(f"mutants: the tree does not build, see {tree.log}")
    table = ["| | defect | caught by |", "|---|---|---|"]
    bad = 0
    for patch in patches:
        defect, caught, seconds = try_mutant(tree, patch)
        caught = f"**{caught}**" if caught == "does not apply" else caught
        bad += caught[0] == "*"
        caught = f"`{caught}`" if re.match("(unit|model|check|script) ", caught) else caught
        table.append(f"| {patch.name.split('-')[0]} | {defect} | {caught} |")
        print(f"{patch.stem}: {caught} ({seconds:.0f} s)", flush=True)
    (folder / "mutants.md").write_text("\n".join(table) + "\n")
    print(f"{len(patches) - bad} of {len(patches)} defects caught, see {folder / 'mutants.md'}")
    sys.exit(bad > 0)


main()
