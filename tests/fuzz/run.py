"""The fuzzer: inputs for `targets`, guided by coverage (atheris) or drawn by Hypothesis.

Atheris starts from the seeds, and goes on from inputs that reach new code. Where it is not installed,
Hypothesis changes the seeds, without that guide, and shrinks what it finds. The time is divided among the
targets, each in a process of its own. First a target with a planted defect shows that this fuzzer finds one.

An input that raises is kept in ``findings/TARGET``, from where `test_fuzz` replays it::

    python -m tests.fuzz.run --minutes 10
    python -m tests.fuzz.run --replay tests/fuzz/findings/wire/…

Exit 0: nothing was found; 1: something was, and it says what, or the planted defect was not.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

FINDINGS = Path(__file__).parent / "findings"
INSTRUMENTED = ["garlicfarm", "h11", "tomllib"]
PLANTED = "planted"
PLANTED_S = 600.0
"""Some hundred inputs find it; the time is for a fuzzer that never does."""
HANGS_S = 120
FOUND = 77
"""How a process that has found something ends."""
RAISED = "=== Uncaught Python exception"
COUNTED = "stat::number_of_executed_units:"
COUNT = re.compile(rf"^{COUNTED}\s*(\d+)", re.MULTILINE)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="for all targets together")
    parser.add_argument("--targets", nargs="+", help="only these")
    parser.add_argument("--engine", choices=("atheris", "hypothesis"))
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(31))
    parser.add_argument("--replay", type=Path, help="run the target that its directory names, once")
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--found", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.replay is not None:
        target(options.replay.parent.name).run(options.replay.read_bytes())
        print("it raises nothing")
        return 0
    if options.engine is None:
        options.engine = "atheris" if importlib.util.find_spec("atheris") else "hypothesis"
    if options.found is not None:
        (name,) = options.targets
        run = with_atheris if options.engine == "atheris" else with_hypothesis
        return run(name, options.seconds, options.seed, options.found)
    return run_all(options)


def target(name: str) -> Any:
    """The target of that name. Not imported before, so that atheris can instrument what it imports."""
    targets = importlib.import_module("tests.fuzz.targets")
    return targets.planted if name == PLANTED else targets.TARGETS[name]


def run_all(options: argparse.Namespace) -> int:
    known = list(importlib.import_module("tests.fuzz.targets").TARGETS)
    names = options.targets or known
    if not set(names) <= set(known):
        print(f"fuzz: the targets are {', '.join(known)}")
        return 1
    how = {"atheris": "atheris, guided by coverage", "hypothesis": "Hypothesis, as atheris is not installed"}
    if options.engine == "hypothesis" and importlib.util.find_spec("atheris"):
        how["hypothesis"] = "Hypothesis"
    print(f"fuzz: {how[options.engine]}; seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="garlicfarm-fuzz-") as scratch:
        code, report, output = run_child(PLANTED, PLANTED_S, options, Path(scratch))
        print(f"{PLANTED:9} {report.partition(';')[0]}", flush=True)
        if code != FOUND:
            print(f"{output[-8000:]}\nfuzz: the planted defect was not found: this fuzzer finds nothing")
            return 1
    seconds = 60 * options.minutes / len(names)
    broken = []
    for name in names:
        code, report, output = run_child(name, seconds, options, FINDINGS / name)
        print(f"{name:9} {report}", flush=True)
        if code:
            print(output[max(0, output.find(RAISED)) :][-8000:], flush=True)
            broken.append(name)
    print(f"fuzz: findings in {', '.join(broken)}" if broken else "fuzz: nothing was found")
    return 1 if broken else 0


def run_child(name: str, seconds: float, options: argparse.Namespace, found: Path) -> tuple[int, str, str]:
    """Fuzz one target; how it ended, that in a line, and all that it wrote."""
    before = set(found.glob("*"))
    arguments = ["--targets", name, "--engine", options.engine, "--seed", options.seed, "--seconds", seconds]
    command = [sys.executable, "-m", __spec__.name, *map(str, arguments), "--found", str(found)]
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="garlicfarm-fuzz-") as scratch:  # libFuzzer cleans nothing up
        environment = os.environ | {"TMPDIR": scratch}
        child = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, check=False
        )
    output = child.stdout.decode(errors="replace")
    took_s = time.monotonic() - begun
    counted = COUNT.search(output)
    report = f"{counted[1] if counted else '?':>9} executions, {took_s:5.1f} s"
    new = sorted(set(found.glob("*")) - before)
    if child.returncode:
        report += f"; exit {child.returncode}"
    if new:
        report += f"; found {new[0]}; once more: {sys.executable} -m {__spec__.name} --replay {new[0]}"
    return child.returncode, report, output


def with_atheris(name: str, seconds: float, seed: int, found: Path) -> int:
    """Does not return: libFuzzer ends the process."""
    import atheris

    with atheris.instrument_imports(include=INSTRUMENTED):
        chosen = target(name)
    found.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="garlicfarm-corpus-") as corpus:
        for number, data in enumerate(chosen.seeds()):
            (Path(corpus) / f"{number:05}").write_bytes(data)
        for path in sorted((FINDINGS / name).glob("*")):
            (Path(corpus) / path.name).write_bytes(path.read_bytes())
        flags = {
            "max_total_time": max(1, round(seconds)),
            "seed": seed or 1,
            "artifact_prefix": f"{found}/",
            "timeout": HANGS_S,
            "print_final_stats": 1,
        }
        atheris.Setup(
            [sys.argv[0], *(f"-{flag}={value}" for flag, value in flags.items()), corpus], chosen.run
        )
        atheris.Fuzz()
    return 0


def with_hypothesis(name: str, seconds: float, seed: int, found: Path) -> int:
    """Fuzz for so long, or until there is a finding, which is shrunk."""
    chosen, runs, error, begun = target(name), 0, None, time.monotonic()
    while error is None and time.monotonic() < begun + seconds:
        tried, failing, error = examples(chosen.run, chosen.seeds(), seed + runs)
        runs += tried
    print(f"{COUNTED} {runs}")
    if error is None:
        return 0
    found.mkdir(parents=True, exist_ok=True)
    (found / f"crash-{sha256(failing).hexdigest()[:40]}").write_bytes(failing)
    print(RAISED, "".join(traceback.format_exception(error)), sep="\n")
    return FOUND


def examples(
    run: Callable[[bytes], None], seeds: list[bytes], seed: int, count: int = 1000
) -> tuple[int, bytes, Exception | None]:
    """How many of ``count`` inputs were tried; the smallest that raised, and what it raised."""
    import hypothesis
    from hypothesis import strategies as st

    change = st.tuples(st.integers(0, 1 << 16), st.integers(0, 8), st.binary(max_size=8))
    inputs = st.one_of(
        st.binary(max_size=200),
        st.tuples(st.sampled_from(seeds), st.lists(change, max_size=6)).map(lambda drawn: changed(*drawn)),
    )
    tried, failing = 0, b""

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(inputs)
    def try_one(data: bytes) -> None:
        nonlocal tried, failing
        tried += 1
        try:
            run(data)
        except Exception:
            failing = data  # the last one is the smallest
            raise

    try:
        try_one()
    except Exception as error:  # noqa: BLE001 - whatever a target raises is the finding
        return tried, failing, error
    return tried, b"", None


def changed(data: bytes, changes: list[tuple[int, int, bytes]]) -> bytes:
    """``data`` with bytes replaced: (place, how many, by what)."""
    for place, length, by in changes:
        at = place % (len(data) + 1)
        data = data[:at] + by + data[at + length :]
    return data


if __name__ == "__main__":
    sys.exit(main())
