"""Makes a directory of Java I2P routers for the tests, from Java I2P's public source.

    python -m tools.java_i2p SOURCE DIRECTORY

SOURCE is a checkout of Java I2P (https://github.com/i2p/i2p.i2p; 2.7.0 was tried). It compiles, without ant,
what routers of a private network need: core, router, streaming, I2PTunnel without its web pages, SAM and
I2PControl; and a class of ours. It needs a JDK of 11 or later, and libservlet-api-java and libjetty9-java of
Debian.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
JARS = Path("/usr/share/java")
JETTY = ("http", "io", "security", "server", "servlet", "util")
SERVLETS = ("servlet-api", *(f"jetty9-{each}" for each in JETTY))

# I2PControl names one class of a service wrapper, for restarts, which no test asks for.
WRAPPER = """\
package org.tanukisoftware.wrapper;
public class WrapperManager { public static void signalStopped(int code) {} }
"""


class Part(NamedTuple):
    """One jar: its name, where its source is, and what of that is left out."""

    name: str
    source: str
    without: str = ""


class Patch(NamedTuple):
    """What is wrong in a file on private networks only."""

    file: str
    wrong: str
    right: str


PATCHES = (
    # A LeaseSet is not looked up through an outbound tunnel without hops, which only they have: a floodfill's
    # RouterInfo is sought in the client's own store, which has none.
    Patch(
        "router/java/src/net/i2p/router/networkdb/kademlia/IterativeSearchJob.java",
        "if (_facade.lookupLocallyWithoutValidation(peer) == null)",
        "if (ctx.netDb().lookupLocallyWithoutValidation(peer) == null)",
    ),
    # What is read from disk before the peer manager stands is no floodfill until it changes: of a few files,
    # sometimes all.
    Patch(
        "router/java/src/net/i2p/router/startup/BootCommSystemJob.java",
        "startupDb();\n        getContext().jobQueue().addJob(new BootPeerManagerJob(getContext()));",
        "new BootPeerManagerJob(getContext()).runJob();\n        startupDb();",
    ),
)


PARTS = (
    Part("i2p", "core/java/src"),
    Part("router", "router/java/src"),
    Part("mstreaming", "apps/ministreaming/java/src"),
    Part("streaming", "apps/streaming/java/src"),
    Part("i2ptunnel", "apps/i2ptunnel/java/src", "net/i2p/i2ptunnel/web"),
    Part("sam", "apps/sam/java/src", "net/i2p/sam/client"),
    Part("i2pcontrol", "apps/i2pcontrol/java"),
)


def compile_(sources: list[Path], library: Path, classes: Path, *options: str) -> None:
    """Raises `subprocess.CalledProcessError` where the compiler refuses it, which says why."""
    with tempfile.NamedTemporaryFile("w", suffix=".list") as names:
        names.writelines(f"{source}\n" for source in sources)
        names.flush()
        quiet = ("-nowarn", "-Xlint:none", "-proc:none", "-g", "-encoding", "UTF-8")
        command = ["javac", *quiet, "-cp", f"{library}/*", "-d", str(classes), *options, f"@{names.name}"]
        subprocess.run(command, check=True)


def pack(classes: Path, jar: Path) -> None:
    subprocess.run(["jar", "--create", "--file", str(jar), "-C", str(classes), "."], check=True)


def make(source: Path, library: Path, work: Path) -> None:
    """Compile from ``source`` into jars in ``library``."""
    for jar in SERVLETS:
        shutil.copy(JARS / f"{jar}.jar", library)
    wrapper = work / "WrapperManager.java"
    wrapper.write_text(WRAPPER)
    compile_([wrapper], library, work / "wrapper", "--release", "11")
    pack(work / "wrapper", library / "wrapper.jar")
    own = ROOT / "tests" / "java" / "OwnAddress.java"
    compile_([own], library, work / "own", "--add-exports", "java.base/sun.nio.ch=ALL-UNNAMED")
    pack(work / "own", library / "own-address.jar")
    for part in PARTS:
        folder = source / part.source
        files = [
            each
            for each in sorted(folder.rglob("*.java"))
            if each.name != "package-info.java"
            and not (part.without and each.is_relative_to(folder / part.without))
        ]
        for patch in PATCHES:
            if source / patch.file in files:
                text = (source / patch.file).read_text(encoding="utf-8")
                if patch.wrong not in text and patch.right not in text:
                    print(f"{patch.file} is not the file that was patched: see PATCHES", file=sys.stderr)
                patched = work / Path(patch.file).name
                patched.write_text(text.replace(patch.wrong, patch.right), encoding="utf-8")
                files[files.index(source / patch.file)] = patched
        classes = work / part.name
        compile_(files, library, classes, "--release", "11")
        for each in folder.rglob(
            "*.properties"
        ):  # gnu.getopt, which the router starts with, needs its messages
            target = classes / each.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(each, target)
        pack(classes, library / f"{part.name}.jar")
        print(f"{part.name}.jar: {len(files)} files", flush=True)


def main(source: Path, directory: Path) -> None:
    missing = [each for each in ("javac", "jar") if shutil.which(each) is None]
    absent = [str(JARS / f"{each}.jar") for each in SERVLETS if not (JARS / f"{each}.jar").exists()]
    if missing or absent:
        sys.exit(
            f"{', '.join(missing + absent)} not found: as root, apt-get install --no-install-recommends "
            "openjdk-17-jdk-headless libservlet-api-java libjetty9-java"
        )
    if not (source / PARTS[0].source).is_dir():
        sys.exit(f"{source} is no checkout of Java I2P: there is no {PARTS[0].source}")
    library = directory / "lib"
    library.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as work:
        make(source, library, Path(work))
    print(f"Use it: make test-java JAVA_I2P={os.path.relpath(directory)}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
