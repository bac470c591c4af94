"""What a node makes of the master destination's keys before it starts."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from garlicfarm.config import Config, PublisherSection, load
from garlicfarm.credentials.destination_keys import create_keys, write_bundle
from garlicfarm.errors import ConfigError
from garlicfarm.i2p.encoding import encode
from garlicfarm.i2p.keys import DestinationKeys, make_bundle
from garlicfarm.node.publisher import PublisherApplication
from garlicfarm.setup.provision import FarmPlan, MemberPlan, create_node


def configured(directory: Path, master: DestinationKeys, key_file: Path) -> Config:
    """The configuration of node 1."""
    plan = FarmPlan(application="publisher", master=encode(master.destination), master_key_file=key_file)
    member = MemberPlan(endpoint="ssl://127.0.0.1:1", router={"plugin": "simulated"})
    create_node(directory / "node", 1, member, plan)
    return load(directory / "node" / "garlicfarm.toml", {})


def check(config: Config) -> None:
    PublisherApplication("farm").check_configuration(config.farm[0], config)


def bundle_in(path: Path, master: DestinationKeys, node: int, expires_s: int) -> Path:
    bundle = make_bundle(master, bytes(32), node=node, expires_s=expires_s, now_ms=0, hops=3, quantity=2)
    write_bundle(path, bundle)
    return path


def test_node_with_the_long_term_key_or_its_own_bundle_may_start_though_that_has_expired(
    tmp_path: Path,
) -> None:
    master = create_keys(tmp_path / "key")
    check(configured(tmp_path / "a", master, tmp_path / "key"))
    check(configured(tmp_path / "b", master, bundle_in(tmp_path / "good", master, 1, 2**32 - 1)))
    check(configured(tmp_path / "c", master, bundle_in(tmp_path / "old", master, 1, 1_700_000_000)))


def test_node_with_the_bundle_of_another_node_or_destination_is_refused(tmp_path: Path) -> None:
    master, other = create_keys(tmp_path / "key"), create_keys(tmp_path / "other")
    with pytest.raises(ConfigError, match="is the bundle of node 2, and this is node 1"):
        check(configured(tmp_path / "a", master, bundle_in(tmp_path / "2", master, 2, 2**32 - 1)))
    with pytest.raises(ConfigError, match="does not hold the key of"):
        check(configured(tmp_path / "b", master, bundle_in(tmp_path / "1", other, 1, 2**32 - 1)))
    with pytest.raises(ConfigError, match="does not hold the key of"):
        check(configured(tmp_path / "c", master, tmp_path / "other"))


def test_destination_is_published_once_on_a_node(tmp_path: Path) -> None:
    """i2pd may crash when a destination is opened twice."""
    master = create_keys(tmp_path / "key")
    create_keys(tmp_path / "service")
    config = configured(tmp_path / "a", master, tmp_path / "key")
    table = PublisherSection(plugin="sam", options={"keys": str(tmp_path / "service")})
    one = msgspec.structs.replace(config.farm[0], publisher=(table,))
    two = msgspec.structs.replace(one, name="two")
    check(msgspec.structs.replace(config, farm=(one,)))
    with pytest.raises(ConfigError, match=r"^farms farm and two both publish [a-z2-7]{52}\.b32\.i2p$"):
        check(msgspec.structs.replace(config, farm=(one, two)))
    twice = msgspec.structs.replace(one, publisher=(table, table))
    with pytest.raises(ConfigError, match=r"^farm farm: two publishers publish the same destination$"):
        check(msgspec.structs.replace(config, farm=(twice,)))
