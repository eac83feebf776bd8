"""The layers by their name in model tables. To add a layer, add a line to LAYERS."""

from models.blocks.base import Layer
from models.blocks.convolutions import Conv, PlainConv, SeparableConv
from models.blocks.cross_stage import C2PSA, C3, Bottleneck, C2f, C3k2, SeparableC3
from models.blocks.csp_next import CSPNeXt
from models.blocks.joining import Concat
from models.blocks.level import Level
from models.blocks.normalization import Normalize
from models.blocks.reparameterized import ELAN, RepConv, RepNCSP, RepNCSPELAN
from models.blocks.resizing import (
    SPP,
    SPPF,
    AConv,
    ADown,
    EnlargeAndAdd,
    MaxPool,
    Upsample,
    ZeroPad,
)
from models.blocks.timm_backbone import TimmBackbone
from models.blocks.torchvision_backbone import TorchvisionBackbone

LAYERS: dict[str, type[Layer]] = {
    "Conv": Conv,
    "SeparableConv": SeparableConv,
    "Bottleneck": Bottleneck,
    "C3": C3,
    "SeparableC3": SeparableC3,
    "CSPNeXt": CSPNeXt,
    "C2f": C2f,
    "C3k2": C3k2,
    "C2PSA": C2PSA,
    "RepConv": RepConv,
    "RepNCSP": RepNCSP,
    "ELAN": ELAN,
    "RepNCSPELAN": RepNCSPELAN,
    "SPP": SPP,
    "SPPF": SPPF,
    "AConv": AConv,
    "ADown": ADown,
    "Concat": Concat,
    "CBFuse": EnlargeAndAdd,
    "TorchvisionBackbone": TorchvisionBackbone,
    "TimmBackbone": TimmBackbone,
    "Level": Level,
    "Normalize": Normalize,
    "nn.Conv2d": PlainConv,
    "nn.Upsample": Upsample,
    "nn.MaxPool2d": MaxPool,
    "nn.ZeroPad2d": ZeroPad,
}
