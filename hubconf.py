"""torch.hub's entry point: load a trained model without importing from the checkout.

    model = torch.hub.load("path/to/kestrel", "custom", path="best.pt", source="local")
    result = model("street.jpg")

torch.hub executes this file, so use source="local" with a checkout that you trust. For the
arguments see models.load.
"""

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from models import LoadedDetector

# torch.hub checks that these can be imported
dependencies = ["torch", "torchvision", "cv2", "numpy", "yaml"]

ROOT = os.path.dirname(os.path.abspath(__file__))
PACKAGES = ("data", "models", "training", "utils")


def custom(path: str, **settings: Any) -> "LoadedDetector":
    """Return the detector in a checkpoint or exported model; settings: as for models.load.

    The checkout stays in sys.path, because a process that receives the detector imports it again.

    Raises ImportError if the program has imported a module by the name of one of our packages.
    """
    _require_own_packages()
    if ROOT not in sys.path[1:]:  # torch.hub removes the first entry, its own, after this call
        sys.path.insert(1, ROOT)

    from models import load

    return load(path, **settings)


def _require_own_packages() -> None:
    for name in PACKAGES:
        module = sys.modules.get(name)
        if module is None:
            continue
        file = getattr(module, "__file__", None)
        places = [file] if file else list(getattr(module, "__path__", []))
        if not any(place.startswith(ROOT) for place in places):
            raise ImportError(
                f"Kestrel's package {name} has the name of a module that this program has imported "
                f"({', '.join(places)}): rename that, or load the detector in another process"
            )
