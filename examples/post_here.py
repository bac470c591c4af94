"""Append to the log of a farm, on the machine of one of its nodes: post_here.py garlicfarm.toml"""

import sys

import trio

from garlicfarm.client import from_config


async def main(config: str) -> None:
    async with from_config(config) as client:
        index, term = await client.post("farm", b"hello from this machine")
        print(f"committed at index {index}, in term {term}")


if __name__ == "__main__":
    trio.run(main, sys.argv[1])
