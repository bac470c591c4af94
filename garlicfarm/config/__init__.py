"""The configuration of a node: one TOML file, overridden by the environment, checked as a whole.

``load`` converts every field by itself, so that one `ConfigError` names all problems. Layers, later ones win:
default, preset (``node.preset``, for ``[farm.raft]`` only), file, environment. Names of variables:
`garlicfarm.config.environment`.
"""

from __future__ import annotations

from garlicfarm.config.files import find_config, load
from garlicfarm.config.model import (
    Config,
    FarmSection,
    FeedSection,
    ListenerSection,
    MetaSection,
    PublisherSection,
    RaftSection,
    RetentionSection,
)

__all__ = [
    "Config",
    "FarmSection",
    "FeedSection",
    "ListenerSection",
    "MetaSection",
    "PublisherSection",
    "RaftSection",
    "RetentionSection",
    "find_config",
    "load",
]
