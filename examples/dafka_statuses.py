"""Print what is posted in a farm, from its topic: dafka_statuses.py TOPIC TOWER LISTEN KEY_FILE PEERS_FILE"""

import json
import sys
from typing import Any

import trio

from garlicfarm_plugin_dafka import FarmLog, MeshConfig, open_consumer


async def main(*words: str) -> None:
    topic, tower, listen, key_file, peers_file = words
    config = MeshConfig(towers=(tower,), listen=listen, key_file=key_file, peers_file=peers_file)
    farm_log = FarmLog()
    async with open_consumer(config, [topic]) as consumer:
        async for record in consumer:
            for entry in farm_log.add(record.content):
                if entry.value_type.name == "APPLICATION":
                    print(entry.index, told(json.loads(entry.value)), flush=True)


def told(document: dict[str, Any]) -> str:
    config, router = document.get("config", {}), document.get("router", {})
    if "admin" in config:
        return f"{config['admin']['by']!r} orders {config['admin']['action']!r}"
    if "note" in config:
        return f"{config['by']!r} notes {config['note']!r}"
    return f"member {document['id']}: {json.dumps(router)}"


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
