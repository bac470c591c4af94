"""A router plugin: figures from a JSON file that another program keeps up to date."""

import json

import msgspec
import trio

from garlicfarm.errors import NotSupported, RouterError
from garlicfarm.router import Bandwidth, DestinationStatus, RemoteStatus, Router, RouterStatus


class FileRouterConfig(msgspec.Struct, forbid_unknown_fields=True):
    path: str


class FileRouter(Router):
    Config = FileRouterConfig

    async def get_local_router_status(self) -> RouterStatus:
        path = trio.Path(self.base_dir / self.config.path)
        try:
            figures = json.loads(await path.read_text())
            limit, used = figures["limit"], figures["used"]
            return RouterStatus(  # omit unknown figures, never invent them
                uptime=figures["uptime_s"] * 1000,
                configured_bandwidth=Bandwidth(in_=limit[0], out=limit[1]),
                current_bandwidth=Bandwidth(in_=used[0], out=used[1]),
            )
        except (OSError, ValueError, KeyError) as error:
            raise RouterError(f"{path} has no figures: {error}") from error

    async def get_local_leaf_status(self, leaf: bytes) -> DestinationStatus:
        raise NotSupported("the file has no figures of destinations")

    async def get_remote_measured_status(self, master_or_leaf: bytes) -> RemoteStatus | None:
        raise NotSupported("the file has no figures of others")
