"""The Trio half of the application `publisher`: it reports, hands over and publishes.

Only the table of applications in `garlicfarm.node.node` names this room; the rest of the node sees
only `garlicfarm.application.Application`.
"""

from garlicfarm.node.publisher.application import PublisherApplication

__all__ = ["PublisherApplication"]
