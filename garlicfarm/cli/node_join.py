"""`garlicfarm node join`: make the node that a token is for, and run it until it is a member."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from garlicfarm.cli.command_group import Command
from garlicfarm.cli.node_access import deadline
from garlicfarm.cli.options import ADMIN_URL, DIRECTORY, LISTEN, Options, shared_options
from garlicfarm.cli.say import say
from garlicfarm.regular_files import read_text

if TYPE_CHECKING:
    from garlicfarm.admin.contract import FarmView
    from garlicfarm.config import Config, FarmSection
    from garlicfarm.credentials.join_token import JoinToken
    from garlicfarm.net.handshake import Established

POLL_S = 0.1
RETRY_S = 1.0
PATIENCE_ELECTIONS = 4
"""For how many of the longest election timeouts a refusal that may pass is asked again."""

Show = Callable[[str, int, int | None], None]
"""The stage, its progress, and its end where that is known."""


@click.command(
    cls=Command, examples=["garlicfarm node join --token-file token --endpoint ssl://d.example:27150"]
)
@DIRECTORY
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
    required=True,
    help="File (mode 0600) with the token that `member token` made; - is stdin.",
)
@click.option(
    "--endpoint",
    metavar="URL",
    default="",
    help="The endpoint that others dial, such as ssl://d.example:27150.  [default: that of the first farm of "
    "the node here]",
)
@LISTEN
@ADMIN_URL
@shared_options("timeout", "verbosity")
def join(
    options: Options, directory: Path, token_file: Path, endpoint: str, listen: str, admin_url: str
) -> None:
    """Make a new node in DIRECTORY (default: here), and make it a member of a running farm.

    The node runs until the farm has brought it up to date and made it a member. After an interruption, the
    same command continues where it stopped. After a refusal it leaves nothing behind. An existing node, which
    must not run, joins another farm.
    """
    import time

    from garlicfarm.config import load
    from garlicfarm.credentials.join_token import check_expiry, decode_token
    from garlicfarm.setup.add_farm import add_joining_farm, remove_farm
    from garlicfarm.setup.provision import CONFIG_NAME, MemberPlan, create_joining_node

    token, file = decode_token(_read(token_file)), directory / CONFIG_NAME
    there = read_text(file) if file.exists() else ""
    before = load(file, os.environ) if there else None
    new = not directory.exists()
    resumed = before is not None and token.farm in [section.name for section in before.farm]
    if not resumed:
        check_expiry(token, time.time())
        if before is not None:
            if listen or admin_url:
                raise click.UsageError(
                    f"{file} says where this node listens: leave out --listen and --admin-url"
                )
            add_joining_farm(before, endpoint, token)
        elif not endpoint:
            raise click.UsageError("a new node needs an --endpoint")
        else:
            plan = MemberPlan(endpoint=endpoint, listen=listen, admin_url=admin_url)
            create_joining_node(directory, plan, token)
    config = load(file, os.environ)
    if resumed:
        _check_same(config, token, endpoint)

    def undo() -> None:
        if before is not None:
            remove_farm(before, token.farm, there)
        else:
            undo_node(directory, new)

    enrol(options, config, token, None if resumed else undo)
    say(
        f"node {token.id} is a member of the farm {token.farm}; delete the token, and run the node with: "
        f"garlicfarm node start --config {file}",
    )


def undo_node(directory: Path, new: bool) -> None:
    """Remove the node that was made in ``directory``, and that itself where it is ``new``."""
    from garlicfarm.setup.provision import remove_node

    remove_node(directory)
    if new:
        with suppress(OSError):  # another program put something into it
            directory.rmdir()


def enrol(options: Options, config: Config, token: JoinToken, undo: Callable[[], None] | None) -> None:
    """Run the node of ``config`` until it is a member of the farm that ``token`` is for. Where it is refused,
    and nothing of the farm has come to it, ``undo`` removes what was made for this."""
    import trio

    from garlicfarm import logs
    from garlicfarm.cli.node_start import level
    from garlicfarm.errors import GarlicFarmError

    log = logs.configured(level("warning", options.verbosity), config.log.format, sys.stderr)
    try:
        with log, join_progress() as show:
            trio.run(_join, config, token, options.timeout_s, show)
    except* GarlicFarmError:
        if undo is not None and _is_untouched(config, token):
            undo()
            say(f"the files made in {config.base_dir} were removed")
        raise
    except* (TimeoutError, KeyboardInterrupt):
        say("not a member yet; repeat the command, and it continues where it stopped")
        raise


def _read(token_file: Path) -> str:
    from garlicfarm.credentials.private_files import read_private_file

    return sys.stdin.read(1 << 20) if str(token_file) == "-" else read_private_file(token_file)


# Files


def _check_same(config: Config, token: JoinToken, endpoint: str) -> None:
    """The node that is there is the one that an interrupted join has made."""
    from garlicfarm.credentials.member_credentials import read_secret_file
    from garlicfarm.errors import ConfigError
    from garlicfarm.storage import read_genesis
    from garlicfarm.transport import Endpoint

    section = _section(config, token)
    there = Endpoint.parse(section.endpoint, section.default_transport)
    wanted = Endpoint.parse(endpoint, section.default_transport) if endpoint else there
    if config.node.id != token.id or read_genesis(_store(config, token)).farm_id != token.farm_id:
        raise ConfigError(
            [
                f"{config.path} belongs to another node than the token: nothing was overwritten, "
                "name a new directory"
            ]
        )
    if (there.scheme, there.host, there.port) != (wanted.scheme, wanted.host, wanted.port):
        raise ConfigError([f"{config.path} has the endpoint {there}: give that one, or name a new directory"])
    if token.farm_secret not in read_secret_file(section.secret_file):
        raise ConfigError(
            [f"the farm's secret was rotated since {config.path.parent} was made: remove it, and join again"]
        )


def _section(config: Config, token: JoinToken) -> FarmSection:
    return next(section for section in config.farm if section.name == token.farm)


def _store(config: Config, token: JoinToken) -> Path:
    return config.node.data_dir / "farms" / token.farm


def _is_untouched(config: Config, token: JoinToken) -> bool:
    """Nothing of the farm has come to this node, which therefore has not promised anything."""
    from contextlib import closing

    from garlicfarm.storage import LogStore

    with closing(LogStore.open(_store(config, token), farm=token.farm)) as store:
        return store.initial_state()[0].term == 0 and store.last_index() == 0


# Joining


async def _join(config: Config, token: JoinToken, timeout_s: float | None, show: Show) -> None:
    from functools import partial

    import trio

    from garlicfarm.cli.sign_of_life import sign_of_life
    from garlicfarm.errors import GarlicFarmError, Removed
    from garlicfarm.node import serve

    stage = "the node to start"

    def note(now: str, done: int, total: int | None) -> None:
        nonlocal stage
        stage = f"the farm: {now} {done} of {total}" if total else f"the farm: {now}"
        show(now, done, total)

    refused: GarlicFarmError | None = None
    shutdown = trio.Event()
    with deadline(timeout_s, f"node {token.id} is not a member of the farm {token.farm} yet"):
        is_shown = sys.stderr.isatty()  # by a bar that moves
        try:
            async with sign_of_life(lambda: stage, quiet=is_shown), trio.open_nursery() as nursery:
                node = await nursery.start(partial(serve, config, shutdown=shutdown))
                try:
                    await JoinAttempt(config, token, node.farms[token.farm], note).run()
                except GarlicFarmError as error:
                    refused = error
                shutdown.set()
        except* Removed:
            if refused is None:
                raise
    if refused is not None:
        raise refused


class JoinAttempt:
    """Has this node, which is running, made a member."""

    def __init__(self, config: Config, token: JoinToken, farm: FarmView, show: Show) -> None:
        self._config = config
        self._token = token
        self._farm = farm
        self._show = show
        self._last_index = 0  # the leader's, when it agreed
        self._far = (0, 0)  # the last index, and bytes of a snapshot
        self._since = 0.0  # when anything came in

    async def run(self) -> None:
        """Return when this node's committed Configuration names it. Raises why it does not come to that."""
        import time

        import trio

        from garlicfarm.client.joining import NotYet, ask_to_join
        from garlicfarm.credentials.join_token import check_expiry
        from garlicfarm.errors import LocalProtocolError
        from garlicfarm.transport import Endpoint
        from garlicfarm.wire.messages import ClusterServer

        section = _section(self._config, self._token)
        raft = section.raft
        patience_s = PATIENCE_ELECTIONS * raft.election_timeout_max_s
        answer_s = raft.election_timeout_max_s + 2 * raft.rpc_timeout_s
        connect, is_jraft = member_connector(self._config, self._token)
        endpoint = Endpoint.parse(section.endpoint, section.default_transport)
        # JRaft's own spelling; the scheme it does not read.
        said = str(Endpoint("tcp", endpoint.host, endpoint.port)) if is_jraft else section.endpoint
        server = ClusterServer(self._token.id, said)
        self._look()
        if self._far != (0, 0) and await self.is_member_within(RETRY_S):
            return  # since an earlier run, which was interrupted
        check_expiry(self._token, time.time())
        self._since = trio.current_time()
        while True:
            wait_s = RETRY_S
            try:
                self._last_index = await ask_to_join(
                    server, self._token.endpoints, connect, answer_s, raft.rpc_timeout_s, is_jraft=is_jraft
                )
                self._show("invited", 0, None)
                wait_s = answer_s
            except NotYet as error:
                if trio.current_time() - self._since > patience_s:
                    raise error.reason from None
                self._show(f"{error} (trying again)", 0, None)
            except LocalProtocolError:
                # It may be a member meanwhile, without having heard of it.
                if self._far == (0, 0) or trio.current_time() - self._since > patience_s:
                    raise
            if await self.is_member_within(wait_s):
                return

    async def is_member_within(self, wait_s: float) -> bool:
        """Whether this node becomes a member, as long as something comes in at least every ``wait_s``."""
        import trio

        begun = trio.current_time()
        while trio.current_time() < max(begun, self._since) + wait_s:
            if self._look():
                self._since = trio.current_time()
            body = self._farm.members()
            is_member = any(row["id"] == self._token.id for row in body["members"])
            if body["was_removed"]:
                await self._leave_again()
            if is_member:
                return True
            await trio.sleep(POLL_S)
        return False

    async def _leave_again(self) -> NoReturn:
        """The id was a member's before. A JRaft leader does not look at that, and counts this node in: have
        it removed again. Raises `LocalProtocolError`."""
        from garlicfarm.errors import GarlicFarmError, LocalProtocolError

        member, what = self._token.id, "it is removed again"
        try:
            await self._farm.change_member("remove", member, "", False, "")
        except GarlicFarmError as error:
            what = f"it may count as a member now, so have the leader remove it ({error})"
        raise LocalProtocolError(
            f"the id {member} was a member's before, and ids are used once; {what}: choose another --id, "
            f"with another directory than {self._config.base_dir}"
        )

    def _look(self) -> bool:
        """Show how far it is; whether that is farther than it was."""
        status, held = self._farm.status(), self._snapshot_bytes()
        index: int = status["last_index"]
        known = max(self._last_index, status["leader_commit"] or 0)  # 0: no leader has told yet
        if held:
            self._show("receiving a snapshot, bytes", held, None)
        elif index:
            self._show("catching up, entries", index, max(index, known) if known else None)
        far, self._far = self._far, (index, held)
        return far != self._far

    def _snapshot_bytes(self) -> int:
        """How much is there of a snapshot that is not whole."""
        from garlicfarm.storage import SNAPSHOTS

        sizes = [0]
        for part in (_store(self._config, self._token) / SNAPSHOTS).glob("*.part"):
            with suppress(FileNotFoundError):  # it is whole now, and was renamed
                sizes.append(part.stat().st_size)
        return max(sizes)


def member_connector(
    config: Config, token: JoinToken
) -> tuple[Callable[[str], Awaitable[Established]], bool]:
    """What opens a connection to a member, and whether that is without a handshake."""
    from functools import cache

    from garlicfarm.credentials.member_credentials import member_password
    from garlicfarm.extensions import LEADER_HINT
    from garlicfarm.http.digest import ChallengeCache
    from garlicfarm.net.handshake import DialCredentials, dial
    from garlicfarm.plugins import make_transport
    from garlicfarm.transport import Endpoint, Transport

    section = _section(config, token)
    default = section.default_transport

    @cache
    def transport(scheme: str) -> Transport:
        return make_transport(scheme, config.transport.get(scheme, {}), config.base_dir)

    credentials = DialCredentials(
        token.farm,
        str(token.id),
        member_password(token.farm_secret, token.farm_id, token.id),
        ChallengeCache(section.algorithms),
        token.farm_id,
        {LEADER_HINT: "1"},
    )

    async def connect(text: str) -> Established:
        endpoint = Endpoint.parse(text, default)
        return await dial(transport(endpoint.scheme), endpoint, credentials)

    return connect, not transport(default).handshake


# Progress


@contextmanager
def join_progress() -> Iterator[Show]:
    """A bar on a terminal, else a line for each stage."""
    if not sys.stderr.isatty():
        yield _Lines().show
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda stage, done, total: bar.update(
            task, description=escape(stage), completed=done, total=total
        )


class _Lines:
    """One line for each stage, and for each tenth of it."""

    def __init__(self) -> None:
        self._told: tuple[str, int] = ("", 0)

    def show(self, stage: str, done: int, total: int | None) -> None:
        told = (stage, 10 * done // total if total else 0)
        if told != self._told:
            self._told = told
            say(f"{stage} {done} of {total}" if total else stage)
