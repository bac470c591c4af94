"""The Trio room: the tasks, timers and connections that drive the pure rooms.

`serve` runs a whole node from its configuration.
"""

from garlicfarm.node.applications import check_applications, find_applications
from garlicfarm.node.node import Node, serve

__all__ = ["Node", "check_applications", "find_applications", "serve"]
