"""The crash test: kills three real nodes under load, and checks that nothing acknowledged was lost.

Phases, each with a new farm and a client process of its own (`crash_client`):

* ``log``: application ``log``; the leader is killed (SIGKILL) again and again, sometimes others with it
  or instead of it, and all are started again;
* ``publisher``: the same with application ``publisher``, whose documents are posted again until acknowledged;
* ``power``: the power of all three goes at once, on storage that then forgets what was not synced
  (`powerloss`), which is what shows a missing fsync; a killed process alone never does. In the end
  with nodes that acknowledge before they sync (`mutant`): that has to fail.

Exit 0: all promises were kept; 1: one was broken, and the last line says which; 77: this machine cannot
run the phase.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import trio

from tests.crash import mutant, powerloss
from tests.crash.crash_checks import Violation, leaves
from tests.crash.crash_farm import Rounds, run_rounds

PHASES = ("log", "publisher", "power")
BROKEN = "a promise was broken"
SKIPPED = 77
INTERRUPTED = 130
NODE = ("-m", "garlicfarm", "node", "start")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=50, help="of the leader in the phase; in power, cuts")
    parser.add_argument("--acks", type=int, default=20_000, help="acknowledged entries, at least")
    parser.add_argument("--phase", choices=PHASES, help="only this one, and without mutants")
    parser.add_argument("--mutant", choices=sorted(mutant.MUTANTS), help="what the nodes do wrong")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    parser.add_argument("--must-run", choices=("", "fuse"), default="", help="fuse: fail without power cuts")
    parser.add_argument("--mounted", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    # As by Ctrl-C, so that no node is left behind; also in the background, where a shell ignores SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    if options.phase is None:
        return run_all(options.kills, options.acks, skipped_is_fine=not options.must_run)
    if options.phase == "power" and not options.mounted:
        reason = powerloss.why_unavailable()
        if reason is not None:
            print(f"power: skipped, {reason}")
            return SKIPPED
        os.execvp(
            "unshare", ["unshare", "-rm", sys.executable, "-m", __spec__.name, *sys.argv[1:], "--mounted"]
        )
    node = NODE if options.mutant is None else ("-m", mutant.__name__, options.mutant, "node", "start")
    rounds = Rounds(options.phase, options.kills, options.acks, options.seed, (sys.executable, *node))
    return run_phase(rounds, options.mutant)


def run_phase(rounds: Rounds, mutated: str | None) -> int:
    title = f"{rounds.phase}{f' with mutant {mutated}' if mutated else ''}, seed {rounds.seed}"
    directory = Path(tempfile.mkdtemp(prefix="garlicfarm-crash-"))
    broken: list[BaseException] = []
    interrupted = False
    try:
        report = trio.run(run_rounds, rounds, directory)
    except* Violation as group:
        broken += leaves(group)
    except* KeyboardInterrupt:
        interrupted = True
    if interrupted:
        shutil.rmtree(directory)
        return INTERRUPTED
    if not broken:
        print(f"{title}: all promises were kept: {report}", flush=True)
    if not broken or mutated:
        shutil.rmtree(directory)
    else:
        print(f"what the nodes wrote, and the client's journal: {directory}")
    for error in broken:
        print(f"{title}: {BROKEN}: {error}", flush=True)
    return 1 if broken else 0


def run_all(kills: int, acks: int, *, skipped_is_fine: bool) -> int:
    """All phases, and each mutant, which has to be found out. The exit code."""
    few = max(3, kills // 5)
    phases = [("log", kills, acks), ("publisher", few, acks // 40), ("power", few, acks // 10)]
    codes = [run_child("--phase", phase, "--kills", f"{n}", "--acks", f"{m}") for phase, n, m in phases]
    for name in sorted(mutant.MUTANTS):
        codes.append(
            run_child("--phase", "power", "--mutant", name, "--kills", "1", "--acks", "0", broken=True)
        )
    return 0 if all(code == 0 or (code == SKIPPED and skipped_is_fine) for code in codes) else 1


def run_child(*arguments: str, broken: bool = False) -> int:
    """Run one phase in a process of its own; 0 if it ended as it has to: with a broken promise, or
    without. `SKIPPED` where it cannot run."""
    command = [sys.executable, "-m", __spec__.name, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as child:
        assert child.stdout is not None
        seen = False
        try:
            for line in child.stdout:
                print(line, end="", flush=True)
                seen |= BROKEN in line
        except KeyboardInterrupt:
            child.terminate()
            child.wait()
            sys.exit(INTERRUPTED)
    if child.returncode == SKIPPED or not broken:
        return child.returncode
    print("that is what the mutant is for" if seen else "the mutant was not found out", flush=True)
    return 0 if seen else 1


if __name__ == "__main__":
    sys.exit(main())
