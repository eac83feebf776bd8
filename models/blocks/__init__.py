"""The layers of the model tables: maps [B, C, H, W] -> maps.

base.py says what a layer is, registry.py lists the layers by their name in tables.
"""

from models.blocks.backbone import Backbone
from models.blocks.base import Layer, Stack
from models.blocks.convolutions import Conv, SeparableConv
from models.blocks.level import Level
from models.blocks.registry import LAYERS

__all__ = ["LAYERS", "Backbone", "Conv", "Layer", "Level", "SeparableConv", "Stack"]
