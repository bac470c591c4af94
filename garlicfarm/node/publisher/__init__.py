"""The half of the application `publisher` that runs on Trio: it reports, hands over and publishes.

Only the table of applications in `garlicfarm.node.node` names this room; the rest of the node knows
`garlicfarm.application.Application` alone.
"""

from garlicfarm.node.publisher.application import PublisherService

__all__ = ["PublisherService"]
