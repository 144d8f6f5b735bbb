"""The default optimizers of swarms."""

from __future__ import annotations

from distro_node.node.create.manifest_file import OptimizerTable
from distro_node.protocol.wire.manifest import OptimizerSpec

OPTIMIZERS = {"signs": OptimizerSpec(), "default": OptimizerTable().spec()}
"""`default`: without audits; `signs`: with audits, and all swarms from before scaled steps."""
