"""What swarms train with unless their founder says otherwise."""

from __future__ import annotations

from distro_node.node.create.manifest_file import OptimizerTable
from distro_node.protocol.wire.manifest import OptimizerSpec

OPTIMIZERS = {"signs": OptimizerSpec(), "default": OptimizerTable().spec()}
"""`default`: without checks; `signs`: with checks, and everybody before steps were scaled."""
