"""Append to a farm's log and read it back: replicated_log.py ADMIN_URL PIN USER PASSWORD_FILE"""

import sys
from pathlib import Path

import trio

from garlicfarm.client import AdminClient, open_farm_client


async def main(url: str, pin: str, user: str, password: str) -> None:
    async with AdminClient([url], user=user, password=password, pin=pin) as admin:
        status = await admin.status("farm")
        endpoints = {member["id"]: member["endpoint"] for member in status["members"]}
        async with open_farm_client(endpoints, farm="farm", user=user, password=password) as farm:
            index, term = await farm.post([b"hello", b"from Python"])
        print(f"committed up to index {index}, in term {term}")
        page, _ = await admin.page("farm", after=index - 2, wait_s=10)
        for entry in page.entries:
            print(entry.index, repr(entry.value.decode()))


if __name__ == "__main__":
    url, pin, user, password_file = sys.argv[1:]
    trio.run(main, url, pin, user, Path(password_file).read_text().strip())
