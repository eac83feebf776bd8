"""torch.hub's entry point: load a trained model without importing from the checkout.

    model = torch.hub.load("path/to/kestrel", "custom", path="best.pt", source="local")
    result = model("street.jpg")

torch.hub executes this file, so use source="local" with a checkout that you trust. For the
arguments see models.load.
"""

from typing import Any

from models import LoadedDetector, load

# torch.hub checks that these can be imported
dependencies = ["torch", "torchvision", "cv2", "numpy", "yaml"]


def custom(path: str, **settings: Any) -> LoadedDetector:
    """Return the detector in a checkpoint or exported model; settings: as for models.load."""
    return load(path, **settings)
