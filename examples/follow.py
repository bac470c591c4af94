"""Post an entry, then follow the farm, on the machine of a node: follow.py garlicfarm.toml"""

import sys

import trio

from garlicfarm.client import from_config


async def main(config: str) -> None:
    async with from_config(config) as client:
        index, term = await client.post("farm", b"hello from this machine")
        print(f"committed at index {index}, in term {term}")
        async with client.events("farm", after=index - 1) as events:
            async for event in events:
                print(event)


if __name__ == "__main__":
    trio.run(main, sys.argv[1])
