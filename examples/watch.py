"""Say what happens in a farm, as it happens: watch.py ADMIN_URL PIN USER PASSWORD_FILE"""

import json
import sys
from pathlib import Path

import trio

from garlicfarm.client import AdminClient, EntryEvent, HealthEvent, LeaderEvent


async def main(url: str, pin: str, user: str, password: str) -> None:
    async with (
        AdminClient([url], user=user, password=password, pin=pin) as admin,
        admin.events("farm", after=0) as events,
    ):
        async for event in events:
            match event:
                case EntryEvent(entry=entry):
                    print(entry.index, json.dumps(entry.value.decode(errors="replace")))
                case LeaderEvent(leader=leader, term=term):
                    print(f"leader {leader} in term {term}")
                case HealthEvent(health=health):
                    print(f"the farm is {health}")


if __name__ == "__main__":
    url, pin, user, password_file = sys.argv[1:]
    trio.run(main, url, pin, user, Path(password_file).read_text().strip())
