"""Runs real i2pd routers and, among them, the checks of real_i2pd_checks.py. Called by
test_real_i2pd.py in a network namespace: python real_i2pd_session.py DIRECTORY COUNT CHECK-ARGUMENTS…"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

import trio

from garlicfarm.lab.i2pd import i2pd_network
from garlicfarm.lab.i2pd_files import RouterPlan


async def main(directory: Path, count: int, arguments: list[str]) -> int:
    async with i2pd_network(directory, [RouterPlan()] * count, hops=1) as routers:
        environment = os.environ | {
            "I2PD_ROUTERS": json.dumps([asdict(each) for each in routers], default=str)
        }
        ended = await trio.run_process([sys.executable, *arguments], env=environment, check=False)
        return ended.returncode


if __name__ == "__main__":
    sys.exit(trio.run(main, Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
