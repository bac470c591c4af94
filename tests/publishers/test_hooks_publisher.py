"""The publisher ``hooks``, with real small scripts. Tests wait for them through FIFOs, never for seconds."""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from garlicfarm.errors import ConfigError, PublisherError
from garlicfarm.plugins import make_publisher
from garlicfarm.publisher import PublisherSite, PublishOrder
from garlicfarm.testing.publisher_suite import PublisherSuite
from garlicfarm_plugin_hooks import HooksConfig, HooksPublisher, process_group

NOTE = 'echo "$GARLICFARM_EVENT $GARLICFARM_DUE_INDEX" >>notes'

NODE = """
from pathlib import Path
import trio
from garlicfarm.publisher import PublishOrder, PublisherSite
from garlicfarm_plugin_hooks import HooksConfig, HooksPublisher
config = HooksConfig(on_publish=("./publish",), on_retire=("./retire",))
publisher = HooksPublisher(config, Path(), PublisherSite(farm="farm", node_id=3, directory=Path("site")))
trio.run(publisher.publish, PublishOrder(due_index=7, published_ms=1, expires_ms=2))
"""
"""The process of a node that publishes."""


def order(due_index: int, published_ms: int = 1_000, lease_set: bytes | None = None) -> PublishOrder:
    return PublishOrder(
        due_index=due_index, published_ms=published_ms, expires_ms=published_ms + 600, lease_set=lease_set
    )


class Place:
    """A directory with scripts, and what they note there."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.site = PublisherSite(farm="farm", node_id=3, directory=directory / "site")
        self.fifo = directory / "fifo"
        os.mkfifo(self.fifo)
        for name in ("publish", "retire", "start"):
            self.script(name, NOTE)

    def script(self, name: str, text: str) -> None:
        file = self.directory / name
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o700)

    def publisher(self, timeout_s: float = 30.0, on_start: tuple[str, ...] = ("./start",)) -> HooksPublisher:
        config = HooksConfig(
            on_publish=("./publish",), on_retire=("./retire",), on_start=on_start, timeout_s=timeout_s
        )
        return HooksPublisher(config, self.directory, self.site)

    @property
    def notes(self) -> list[str]:
        file = self.directory / "notes"
        return file.read_text().splitlines() if file.exists() else []

    async def told(self) -> str:
        """What a script writes to the FIFO, once it does."""
        return (await trio.to_thread.run_sync(self.fifo.read_text)).strip()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def watched() -> Iterator[list[int]]:
    """Descriptors of processes; readable once these have ended. Ends those that have not."""
    descriptors: list[int] = []
    yield descriptors
    for descriptor in descriptors:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        os.close(descriptor)


class TestHooksPublisher(PublisherSuite):
    @pytest.fixture
    def publisher(self, place: Place) -> HooksPublisher:
        return place.publisher()

    @pytest.fixture
    def unreachable_publisher(self, place: Place) -> HooksPublisher:
        place.script("publish", "exit 1")
        return place.publisher()


# What runs, and when


async def test_each_event_runs_its_command_once(place: Place) -> None:
    publisher = make_publisher(
        "hooks",
        {"on_publish": ["./publish"], "on_retire": ["./retire"], "on_start": ["./start"]},
        place.directory,
        place.site,
    )
    async with publisher:
        await publisher.standby()
        await publisher.standby()
        await publisher.publish(order(7))
        await publisher.publish(order(7))
        await publisher.publish(order(7, 2_000))
        await publisher.retire(None)
        await publisher.retire(None)
        await publisher.standby()
        await publisher.publish(order(9, 3_000))
    assert place.notes == ["start 0", "publish 7", "publish 7", "retire 7", "publish 9"]


async def test_standby_without_on_start_retires_what_an_earlier_process_left(place: Place) -> None:
    async with place.publisher() as killed:
        await killed.standby()
        await killed.publish(order(7))
    async with place.publisher(on_start=()) as publisher:
        await publisher.standby()
    assert place.notes == ["start 0", "publish 7", "retire 7"]


async def test_command_gets_its_arguments_and_a_clean_environment(place, monkeypatch):
    monkeypatch.setenv("SECRET", "of the node")
    place.script("publish", 'env >environment; cp "$GARLICFARM_LEASE_SET" given; pwd >>environment')
    async with place.publisher() as publisher:
        await publisher.standby()
        await publisher.publish(order(7, 1_000, b"signed"))
        lines = (place.directory / "environment").read_text().splitlines()
        assert (place.directory / "given").read_bytes() == b"signed"
        lease_set = place.directory / "site" / "lease-set"
        assert lease_set.stat().st_mode & 0o777 == 0o600
        await publisher.retire(None)
        assert not lease_set.exists()
    assert str(place.directory) == lines.pop()
    environment = dict(line.split("=", 1) for line in lines)
    run = environment.pop("GARLICFARM_RUN")
    assert len(bytes.fromhex(run)) == 8
    assert {name: value for name, value in environment.items() if name.startswith("GARLICFARM_")} == {
        "GARLICFARM_FARM": "farm",
        "GARLICFARM_NODE": "3",
        "GARLICFARM_EVENT": "publish",
        "GARLICFARM_DUE_INDEX": "7",
        "GARLICFARM_PUBLISHED_MS": "1000",
        "GARLICFARM_EXPIRES_MS": "1600",
        "GARLICFARM_LEASE_SET": str(lease_set),
    }
    of_the_shell = {"PWD", "OLDPWD", "SHLVL", "_"}
    assert {name for name in environment if not name.startswith("GARLICFARM_")} - of_the_shell <= {
        "PATH",
        "HOME",
        "LANG",
    }


async def test_order_without_a_lease_set_names_no_file_of_an_earlier_one(place: Place) -> None:
    place.script("publish", 'echo "${GARLICFARM_LEASE_SET-none}" >>notes')
    async with place.publisher() as publisher:
        await publisher.publish(order(7, 1_000, b"signed"))
        await publisher.publish(order(7, 2_000))
    assert place.notes == [str(place.directory / "site" / "lease-set"), "none"]
    assert not (place.directory / "site" / "lease-set").exists()


# The fencing token


async def test_due_index_survives_a_restart_and_never_falls(place: Place) -> None:
    async with place.publisher() as killed:
        await killed.publish(order(9))
    async with place.publisher() as publisher:
        await publisher.standby()
        with pytest.raises(PublisherError, match=r"8, is below 9, .* remove .*/site/due-index"):
            await publisher.publish(order(8, 5_000))
        await publisher.publish(order(10))
    assert place.notes == ["publish 9", "start 9", "publish 10"]


async def test_due_index_is_kept_before_the_command_runs(place: Place) -> None:
    place.script("publish", "cat site/due-index >>notes; exit 1")
    async with place.publisher() as publisher:
        with pytest.raises(PublisherError):
            await publisher.publish(order(9))
    assert place.notes == ["9"]


async def test_directory_that_cannot_be_written_keeps_from_publishing_alone(place: Place) -> None:
    async with place.publisher() as publisher:
        (place.directory / "site").write_text("a file")
        with pytest.raises(PublisherError, match="site cannot be written"):
            await publisher.publish(order(9))
        await publisher.retire(None)  # a full disk must not keep a node publishing
    assert place.notes == ["retire 0"]


# Commands that fail


async def test_disk_that_hangs_keeps_from_publishing_anew_and_not_from_retiring(place, monkeypatch):
    works = threading.Event()
    publisher = place.publisher()
    try:
        async with publisher:
            await publisher.standby()
            await publisher.publish(order(7))
            monkeypatch.setattr("garlicfarm_plugin_hooks.replace_file", lambda *_: works.wait())
            monkeypatch.setattr(Path, "unlink", lambda *_, **__: works.wait())
            with trio.move_on_after(0.1) as lease:
                await publisher.publish(order(8))
            assert lease.cancelled_caught
            with trio.fail_after(240):
                await publisher.retire(None)
            assert place.notes == ["start 0", "publish 7", "retire 7"]
            assert not (await publisher.status()).is_publishing
    finally:
        works.set()


async def test_failed_command_is_told_with_its_last_words_and_runs_again(place: Place) -> None:
    place.script("publish", f"{NOTE}; printf 'no \\033route\\nto\\377 host\\n' >&2; exit 3")
    async with place.publisher() as publisher:
        await publisher.standby()
        sentence = "on_publish ended with status 3: no route to\N{REPLACEMENT CHARACTER} host"
        with pytest.raises(PublisherError) as caught:
            await publisher.publish(order(7))
        assert str(caught.value) == sentence
        status = await publisher.status()
        assert (status.is_publishing, status.problems) == (False, (sentence,))
        place.script("publish", NOTE)
        await publisher.publish(order(7))
        status = await publisher.status()
        assert (status.is_publishing, status.problems) == (True, ())
        await publisher.retire(None)
    assert place.notes == ["start 0", "publish 7", "publish 7", "retire 7"]


async def test_failed_retirement_is_repeated_and_publishes_until_it_succeeds(place: Place) -> None:
    place.script("retire", f"{NOTE}; exit 1")
    async with place.publisher() as publisher:
        await publisher.publish(order(7))
        with pytest.raises(PublisherError, match="on_retire ended with status 1"):
            await publisher.retire(None)
        assert (await publisher.status()).is_publishing
        place.script("retire", NOTE)
        await publisher.retire(None)
        assert not (await publisher.status()).is_publishing
    assert place.notes == ["publish 7", "retire 7", "retire 7"]


async def test_command_ended_by_a_signal_is_told_so(place: Place) -> None:
    place.script("publish", "kill -SEGV $$")
    async with place.publisher() as publisher:
        with pytest.raises(PublisherError, match="on_publish was ended by signal 11"):
            await publisher.publish(order(7))


async def test_program_removed_while_the_node_runs_is_a_publisher_error(place: Place) -> None:
    async with place.publisher() as publisher:
        (place.directory / "publish").unlink()
        with pytest.raises(PublisherError, match="publish cannot be started: No such file or directory"):
            await publisher.publish(order(7))


async def test_megabytes_of_output_leave_the_last_words(place: Place) -> None:
    place.script("publish", "head -c 5000000 /dev/zero; head -c 2000000 /dev/zero >&2; echo last >&2; exit 1")
    async with place.publisher() as publisher:
        with pytest.raises(PublisherError) as caught:
            await publisher.publish(order(7))
    assert str(caught.value) == "on_publish ended with status 1: last"


async def test_last_words_are_at_most_4_kib(place: Place) -> None:
    place.script("publish", "head -c 100000 /dev/zero | tr '\\0' x >&2; exit 1")
    async with place.publisher() as publisher:
        with pytest.raises(PublisherError) as caught:
            await publisher.publish(order(7))
    assert str(caught.value) == "on_publish ended with status 1: " + "x" * 4096


# Commands that hang or fork


async def test_command_that_hangs_is_killed_with_its_group_at_the_deadline(place, watched, mock_clock):
    place.script("publish", "sleep 1000 & echo working >&2; echo $! >fifo; wait")
    async with place.publisher() as publisher:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_fails, publisher, r"did not end within 30 s and was killed: working")
            watched.append(os.pidfd_open(int(await place.told())))
            mock_clock.jump(30)
        await trio.lowlevel.wait_readable(watched[0])


async def test_command_that_ignores_sigterm_is_killed_after_a_second(place, watched, mock_clock):
    child = "sh -c 'trap \"\" TERM; echo $$ >fifo; exec sleep 1000'"
    place.script("publish", f'trap "echo told >fifo" TERM; {child} & while :; do wait; done')
    async with place.publisher() as publisher, trio.open_nursery() as nursery:
        nursery.start_soon(_fails, publisher, "was killed")
        watched.append(os.pidfd_open(int(await place.told())))
        mock_clock.jump(30)
        assert await place.told() == "told"
        await wait_all_tasks_blocked()
        mock_clock.jump(1)
        await trio.lowlevel.wait_readable(watched[0])


async def test_cancelled_command_is_killed_with_its_group_before_the_call_ends(place, watched):
    place.script("publish", "sleep 1000 & echo $! >fifo; wait")
    async with place.publisher() as publisher:
        await publisher.standby()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publisher.publish, order(7))
            watched.append(os.pidfd_open(int(await place.told())))
            nursery.cancel_scope.cancel()
        await trio.lowlevel.wait_readable(watched[0])
        await publisher.retire(None)
    assert place.notes == ["start 0", "retire 7"]


async def test_process_left_in_the_background_ends_with_its_command(place: Place, watched: list[int]) -> None:
    os.mkfifo(place.directory / "go")
    place.script("publish", "sleep 1000 & echo $! >fifo; read line <go")
    async with place.publisher() as publisher:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publisher.publish, order(7))
            watched.append(os.pidfd_open(int(await place.told())))
            await trio.to_thread.run_sync((place.directory / "go").write_text, "\n")
        assert (await publisher.status()).is_publishing
        await trio.lowlevel.wait_readable(watched[0])


async def test_process_that_leaves_the_group_delays_nothing(place: Place, watched: list[int]) -> None:
    """It holds stderr, whose end must not be waited for."""
    place.script("publish", "setsid sh -c 'echo $$ >fifo; exec sleep 1000' & read line <go")
    os.mkfifo(place.directory / "go")
    async with place.publisher() as publisher, trio.open_nursery() as nursery:
        nursery.start_soon(publisher.publish, order(7))
        watched.append(os.pidfd_open(int(await place.told())))
        await trio.to_thread.run_sync((place.directory / "go").write_text, "\n")


async def test_two_calls_at_once_run_their_commands_in_turn(place: Place) -> None:
    place.script("publish", "echo begin >>notes; cat fifo; echo end >>notes")
    async with place.publisher() as publisher, trio.open_nursery() as nursery:
        nursery.start_soon(publisher.publish, order(7))
        await wait_all_tasks_blocked()
        nursery.start_soon(publisher.retire, None)
        await trio.to_thread.run_sync(place.fifo.write_text, "go on\n")
    assert place.notes == ["begin", "end", "retire 7"]


async def test_process_that_cannot_be_killed_lets_no_other_command_start(place, watched, monkeypatch):
    def refuse(group: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "killpg", refuse)  # as for a command that runs as another user
    monkeypatch.setattr(process_group, "KILL_AFTER_S", 0.01)
    place.script("publish", "echo $$ >fifo; exec sleep 1000")
    async with place.publisher() as publisher:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publisher.publish, order(7))
            pid = int(await place.told())
            watched.append(os.pidfd_open(pid))
            nursery.cancel_scope.cancel()
        with pytest.raises(PublisherError, match=f"process {pid} of an earlier command still runs"):
            await publisher.retire(None)
        signal.pidfd_send_signal(watched[0], signal.SIGKILL)
        await trio.lowlevel.wait_readable(watched[0])
        await publisher.retire(None)
    assert place.notes == ["retire 7"]


async def test_command_of_a_killed_node_is_killed_before_the_next_one(place, watched):
    place.script("publish", "sleep 1000 & echo $$ $! >fifo; wait")
    node = await trio.lowlevel.open_process([sys.executable, "-c", NODE], cwd=place.directory)
    watched += [os.pidfd_open(int(pid)) for pid in (await place.told()).split()]
    node.kill()
    await node.wait()
    assert not _has_ended(watched[0])
    async with place.publisher() as publisher:
        await publisher.standby()
    for descriptor in watched:
        await trio.lowlevel.wait_readable(descriptor)
    assert place.notes == ["start 7"]


async def test_process_that_a_finished_command_left_outside_its_group_outlives_the_node(place, watched):
    os.mkfifo(place.directory / "go")
    place.script("publish", "setsid sh -c 'echo $$ >fifo; exec sleep 1000' & read line <go")
    async with place.publisher() as publisher, trio.open_nursery() as nursery:
        nursery.start_soon(publisher.publish, order(7))
        watched.append(os.pidfd_open(int(await place.told())))
        await trio.to_thread.run_sync((place.directory / "go").write_text, "\n")
    async with place.publisher() as next_process:
        await next_process.standby()
    assert not _has_ended(watched[0])
    assert place.notes == ["start 7"]


# The guide

GUIDE = (Path(__file__).parents[2] / "docs/howto/publish.md").read_text(encoding="utf-8")


async def test_hook_of_the_guide_keeps_a_flag_while_it_is_published(place: Place) -> None:
    script = GUIDE.partition("```sh\n#!/bin/sh\n")[2].partition("```")[0]
    assert "/run/garlicfarm/active" in script
    for name in ("publish", "retire", "start"):
        place.script(name, script.replace("/run/garlicfarm/active", "active"))
    flag = place.directory / "active"
    flag.write_text("left by an earlier process")
    async with place.publisher() as publisher:
        await publisher.standby()
        assert not flag.exists()
        await publisher.publish(order(7))
        assert flag.read_text() == "7\n"
        await publisher.retire(None)
        assert not flag.exists()


async def test_variables_of_each_command_are_those_of_the_guide(place: Place) -> None:
    for name in ("publish", "retire", "start"):
        place.script(name, f"env | sed -n 's/^\\(GARLICFARM_[A-Z_]*\\)=.*/\\1/p' >{name}.txt")
    async with place.publisher() as publisher:
        await publisher.standby()
        await publisher.publish(order(7, 1_000, b"signed"))
        await publisher.retire(None)
    rows = dict(re.findall(r"^\| `(GARLICFARM_\w+)` \|.*\| (\S+) \|$", GUIDE, re.MULTILINE))
    for name in ("publish", "retire", "start"):
        documented = {variable for variable, given_to in rows.items() if given_to in ("all", f"`on_{name}`")}
        assert set((place.directory / f"{name}.txt").read_text().split()) == documented


# Configuration


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({"on_retire": ["./retire"]}, "on_publish is missing"),
        ({"on_publish": ["./publish"]}, "on_retire is missing"),
        ({"on_publish": [], "on_retire": ["./retire"]}, "on_publish: Expected `array` of length >= 1"),
        ({"on_publish": "./publish", "on_retire": ["./retire"]}, "on_publish: Expected `array`"),
        ({"on_publish": ["./absent"], "on_retire": ["./retire"]}, "'./absent' is missing or not executable"),
        ({"on_publish": ["./plain"], "on_retire": ["./retire"]}, "'./plain' is missing or not executable"),
        ({"on_publish": ["no-such-program"], "on_retire": ["./retire"]}, "'no-such-program' is missing"),
        ({"on_publish": [""], "on_retire": ["./retire"]}, "'' is missing or not executable"),
        ({"on_publish": ["true", "a\0b"], "on_retire": ["true"]}, "an argument holds a NUL"),
        ({"on_publish": ["true"], "on_retire": ["true"], "on_start": ["./absent"]}, "on_start: './absent'"),
        (
            {"on_publish": ["true"], "on_retire": ["true"], "timeout_s": 0},
            "timeout_s: Expected `float` >= 0.1",
        ),
        ({"on_publish": ["true"], "on_retire": ["true"], "on_publis": []}, "did you mean 'on_publish'"),
    ],
)
def test_configuration_that_cannot_work_is_refused(place: Place, table: dict, problem: str) -> None:
    (place.directory / "plain").write_text("not executable")
    with pytest.raises(ConfigError) as caught:
        make_publisher("hooks", table, place.directory, place.site)
    assert problem in str(caught.value)


@pytest.mark.parametrize("text", ["", "nine", "\xff"])
def test_damaged_due_index_is_refused(place: Place, text: str) -> None:
    (place.directory / "site").mkdir()
    (place.directory / "site" / "due-index").write_text(text, encoding="latin-1")
    with pytest.raises(ConfigError, match=r"due-index is damaged: .*; remove it"):
        place.publisher()


async def test_name_without_a_slash_is_found_in_path(place: Place) -> None:
    config = HooksConfig(on_publish=("true",), on_retire=("true",))
    async with HooksPublisher(config, place.directory, place.site) as publisher:
        await publisher.standby()
        await publisher.publish(order(1))


async def _fails(publisher: HooksPublisher, sentence: str) -> None:
    with pytest.raises(PublisherError, match=sentence):
        await publisher.publish(order(7))


def _has_ended(process: int) -> bool:
    return select.select([process], [], [], 0)[0] != []
