"""garlicfarm: a Trio cluster node for the Garlic Farm protocol (I2P proposal 150)."""

from garlicfarm._version import __version__, revision

__all__ = ["__version__", "revision"]
