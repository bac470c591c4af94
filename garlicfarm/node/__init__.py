"""The Trio room: the tasks, timers and connections that drive the pure rooms.

`serve` runs a whole node from its configuration.
"""

from garlicfarm.node.node import APPLICATIONS, Node, check_applications, serve

__all__ = ["APPLICATIONS", "Node", "check_applications", "serve"]
