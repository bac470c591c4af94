"""The chaos test: a farm of real nodes, one fault after the other, and nothing promised may be broken.

Each node is a process on a host of its own (`tun_network`), with a disk (`powerloss`) and a wall clock
(`launch`) of its own. A client posts all the time and notes what it is told. Faults (`faults`) strike one
at a time; after each one heals, an entry has to be committed, all nodes have to show the same log with
all that was acknowledged, each once and where it was acknowledged, and serve the hash chain of just that
log. In the end the same is checked in what the nodes leave on their disks, and whether what the client did
and was shown by linearizable reads is linearizable (`linearizable`).

The seed decides which faults strike for how long, and whom (by role); how fast the machine is, it cannot.

Everything happens in user, mount, network and process namespaces of its own, which end with it however
it ends. Exit 0: all promises were kept, or this machine cannot have the namespaces; 1: one was broken,
and the last lines say which. With ``--mutant`` one has to be broken: else this test could not find it.
"""

from __future__ import annotations

import argparse
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import trio

from garlicfarm.lab import tun_network
from garlicfarm.lab.line_server import startup_error
from tests.chaos import chaos_mutants
from tests.chaos.chaos_farm import ChaosFarm, Plan, chaos_farm, count
from tests.chaos.faults import KINDS, draw
from tests.crash import powerloss
from tests.crash.crash_checks import Violation, leaves

NODES = 5
INTERRUPTED = 130
END_S = 20.0
NAMESPACES = ("--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="only these")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    parser.add_argument(
        "--mutant", choices=sorted(chaos_mutants.MUTANTS), default="-", help="what the nodes do wrong"
    )
    parser.add_argument("--must-run", default="", help="netns, fuse: fail without (blanks between them)")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside is not None:
        return run_inside(options)
    return run_sandbox([*sys.argv[1:], "--seed", str(options.seed)], options.must_run)


def run_sandbox(arguments: list[str], must_run: str) -> int:
    """Run this program once more, in namespaces of its own. The exit code."""
    ways = [["unshare", "--map-root-user", *NAMESPACES], ["unshare", *NAMESPACES]]
    reasons = [startup_error([*way, "true"]) for way in ways]
    if all(reasons):
        print(f"chaos: skipped, all kinds of faults ({', '.join(KINDS)}): no namespaces: {reasons[0]}")
        return 1 if must_run else 0
    way = ways[reasons.index(None)]
    directory = tempfile.mkdtemp(prefix="garlicfarm-chaos-")
    command = [*way, sys.executable, "-m", __spec__.name, *arguments, "--inside", directory]
    interrupted = False

    def end(*_: object) -> None:
        nonlocal interrupted
        if not interrupted:
            interrupted = True
            assert child.stdin is not None
            child.stdin.close()  # which tells the inside to end in order
            signal.alarm(round(END_S))

    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as child:
        signal.signal(signal.SIGALRM, lambda *_: child.kill())  # and with it everything inside
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, end)
        code = child.wait()
        signal.alarm(0)
    if interrupted:
        code = INTERRUPTED
    if code in (0, INTERRUPTED) or not os.listdir(directory):
        shutil.rmtree(directory)
    else:
        print(f"what the nodes wrote, and the client's journal: {directory}")
    return code if code >= 0 else 1


def run_inside(options: argparse.Namespace) -> int:
    for number in (signal.SIGINT, signal.SIGTERM):  # the outside says when to end, by the end of stdin
        signal.signal(number, lambda *_: None)
    lacks = {"netns": tun_network.why_unavailable(), "fuse": powerloss.why_unavailable(())}
    kinds = [kind for kind in options.kinds if not lacks.get(KINDS[kind].needs)]
    for needs, reason in lacks.items():
        if reason:
            skipped = [kind for kind in options.kinds if KINDS[kind].needs == needs]
            print(f"chaos: skipped {', '.join(skipped) or 'none'}: {reason}", flush=True)
    if any(lacks[needs] for needs in options.must_run.split()):
        return 1
    if not kinds:
        return 0
    if lacks["netns"]:
        tun_network.raise_loopback()
    plan = Plan(
        nodes=options.nodes,
        seed=options.seed,
        networked=not lacks["netns"],
        forgetful=not lacks["fuse"],
        mutant=options.mutant,
    )
    again = f"make chaos FAULTS={options.faults} SEED={options.seed}"
    if kinds != list(KINDS) or options.nodes != NODES:
        again = shlex.join([sys.executable, "-m", __spec__.name, *sys.argv[1 : sys.argv.index("--inside")]])
    print(f"chaos: {options.nodes} nodes, {options.faults} faults, seed {options.seed}", flush=True)
    broken: list[BaseException] = []
    ended = trio.CancelScope()
    try:
        trio.run(_run, plan, draw(kinds, options.faults, options.seed), options.inside, ended)
        if not ended.cancel_called:
            left = _left_processes()
            if left:
                raise Violation(f"processes are left: {left}")
    except* (Violation, trio.TooSlowError) as group:
        broken += leaves(group)
    for error in broken:
        print(f"chaos: a promise was broken: {error or 'it took too long'}", flush=True)
    if ended.cancel_called:
        return INTERRUPTED
    if plan.mutant != "-":
        shown = any(chaos_mutants.SHOWN_BY.get(plan.mutant, "") in str(error) for error in broken)
        print(f"chaos: {'that is what the mutant is for' if shown else 'the mutant was not found out'}")
        return 0 if shown else 1
    if broken:
        print(f"chaos: once more: {again}", flush=True)
    return 1 if broken else 0


async def _run(plan: Plan, drawn: list[str], directory: Path, ended: trio.CancelScope) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_until_told, ended)
        with ended, trio.fail_after(180 + 15 * len(drawn)):
            begun = trio.current_time()
            recoveries = []
            async with chaos_farm(plan, directory) as farm:
                for number, kind in enumerate(drawn, 1):
                    acks, what = farm.acks, "while it struck"
                    place = f"[{number:3}/{len(drawn)}] {trio.current_time() - begun:5.1f} s  {kind:14}"
                    try:
                        what = await KINDS[kind].strike(farm, random.Random(f"{plan.seed} {number}"))
                        recoveries.append(await farm.recover())
                    except* Violation:
                        print(f"{place} {what}; a promise was broken", flush=True)
                        raise
                    print(
                        f"{place} {what}; {farm.acks - acks} acknowledged, "
                        f"again after {recoveries[-1]:.1f} s, term {farm.term}",
                        flush=True,
                    )
            _summarize(farm, drawn, recoveries, trio.current_time() - begun)
        nursery.cancel_scope.cancel()


def _summarize(farm: ChaosFarm, drawn: list[str], recoveries: list[float], took_s: float) -> None:
    figures = ", ".join(f"{number} {what}" for what, number in farm.figures.items())
    longest = max(recoveries, default=0.0)
    print(f"chaos: {len(drawn)} faults in {took_s:.0f} s: {count(drawn)}")
    print(f"chaos: all promises were kept: {figures}, {longest:.1f} s at most from healing to a commit")


async def _until_told(ended: trio.CancelScope) -> None:
    async with trio.lowlevel.FdStream(os.dup(0)) as stdin:
        await stdin.receive_some(1)
    ended.cancel()


def _left_processes() -> list[str]:
    """What is left in this process namespace beside this process, which is its first one."""
    deadline = time.monotonic() + 2.0
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        left = [path for path in Path("/proc").iterdir() if path.name.isdecimal() and path.name != "1"]
        if not left or time.monotonic() > deadline:
            return [(path / "cmdline").read_text().replace("\0", " ") for path in left]
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())
