"""The configuration of a node: one TOML file, overridden by the environment, checked as a whole.

``load`` converts every field by itself, so that one `ConfigError` names everything that is wrong.
Layers, the later one wins: default, preset (``node.preset``, for ``[farm.raft]`` alone), file,
environment. How a variable is named: `garlicfarm.config.environment`.
"""

from __future__ import annotations

from garlicfarm.config.files import find_config, load
from garlicfarm.config.model import (
    AdminSection,
    Config,
    FarmSection,
    LeafSection,
    ListenerSection,
    LogSection,
    MetaSection,
    NodeSection,
    Origin,
    RaftSection,
    RetentionSection,
)

__all__ = [
    "AdminSection",
    "Config",
    "FarmSection",
    "LeafSection",
    "ListenerSection",
    "LogSection",
    "MetaSection",
    "NodeSection",
    "Origin",
    "RaftSection",
    "RetentionSection",
    "find_config",
    "load",
]
