"""The Trio room: nurseries, timers and connections around the pure rooms.

`serve` runs a whole node from its configuration.
"""

from garlicfarm.node.node import APPLICATIONS, Node, serve

__all__ = ["APPLICATIONS", "Node", "serve"]
