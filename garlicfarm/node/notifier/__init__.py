"""Notices of what happens in the farms of a node, for receivers that the operator names (``[[notify]]``).

`garlicfarm.node.notifier.notices` decides what to tell, and which member tells it; it is pure.
`garlicfarm.node.notifier.receivers` sends it, by HTTP or to a command. `Notifier` is the tasks between.
"""

from garlicfarm.node.notifier.notifier import Notifier

__all__ = ["Notifier"]
