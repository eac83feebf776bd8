"""Albumentations: whether the installed release can be used, and its transforms from a file.

Albumentations is an optional package under the MIT license, up to 2.0.8. Its successor
AlbumentationsX has the same module name and the AGPL, so the name of the distribution is looked at
before anything is imported.
"""

import inspect
import warnings
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any

from data.augment.transforms.file import Plain
from data.augment.transforms.names import BOX_TRANSFORMS
from utils.optional_packages import import_optional
from utils.printable import did_you_mean, one_line, printable
from utils.requirements import release

OLDEST, NEWEST = "1.4.24", "2.0.8"
SUCCESSOR = "albumentationsx"
PURPOSE = "--augmentations"
HOW_TO_INSTALL = "docs/augmentations.md says how to install it beside OpenCV"


def import_albumentations() -> ModuleType:
    """Return the module. Raises ValueError if it is missing or is another release than allowed."""
    if _installed(SUCCESSOR):
        raise ValueError(
            f"{PURPOSE} needs Albumentations {OLDEST} to {NEWEST} (MIT license), but "
            f"{SUCCESSOR} is installed, which has the AGPL: pip uninstall {SUCCESSOR}; "
            f"{HOW_TO_INSTALL}"
        )
    found = _installed("albumentations")
    if found and not release(OLDEST) <= release(found) <= release(NEWEST):
        raise ValueError(
            f"{PURPOSE} needs Albumentations {OLDEST} to {NEWEST}, not {printable(found)}; "
            f"{HOW_TO_INSTALL}"
        )
    return import_optional("albumentations", PURPOSE, HOW_TO_INSTALL)


def _installed(distribution: str) -> str:
    """Return the version of an installed distribution, "" if it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def build_transform(
    albumentations: ModuleType, name: str, arguments: Mapping[str, Plain]
) -> tuple[Any, list[str]]:
    """Return a transform, and what the library warns of.

    name: one that `check_name` accepts, and no group.

    Raises ValueError if this release has no such transform, or the library refuses the arguments.
    """
    kind = vars(albumentations).get(name)
    base = albumentations.ImageOnlyTransform
    if name in BOX_TRANSFORMS:
        base = albumentations.DualTransform
    if not (inspect.isclass(kind) and issubclass(kind, base)):
        raise ValueError(f"Albumentations {albumentations.__version__} has no {name}")

    known = [argument for argument in inspect.signature(kind).parameters if argument != "strict"]
    for argument in arguments:
        if argument not in known:
            near = did_you_mean(argument, known)
            raise ValueError(
                f"{name} has no argument '{printable(argument)}'{near}; it has {', '.join(known)}"
            )

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            transform = kind(**arguments, **_strict(kind))
        except Exception as error:
            raise ValueError(f"{name}: {_reason(error)}") from None
    return transform, [one_line(entry.message) for entry in caught if _concerns(entry, arguments)]


def _concerns(entry: warnings.WarningMessage, arguments: Mapping[str, Plain]) -> bool:
    """Whether a warning is about what the file says, not about the library's own code."""
    if "pydantic" in entry.filename:
        return False
    is_deprecation = issubclass(entry.category, DeprecationWarning)
    return not is_deprecation or any(name in str(entry.message) for name in arguments)


def _strict(kind: type) -> dict[str, bool]:
    """Return the argument that has an invalid value refused, if the class knows it.

    Without it, 2.0 replaces some invalid values by its defaults, with a warning.
    """
    schema = vars(kind).get("InitSchema")
    fields = getattr(schema, "model_fields", {})
    return {"strict": True} if "strict" in fields else {}


def _reason(error: Exception) -> str:
    """Return why the library refuses arguments: of pydantic's errors, argument and message."""
    for source in (error, error.__cause__):
        listed = getattr(source, "errors", None)
        if callable(listed):
            parts = []
            for entry in listed():
                argument = ".".join(str(part) for part in entry["loc"][:1])
                message = str(entry["msg"]).removeprefix("Value error, ")
                parts.append(f"{argument}: {message}" if argument else message)
            return one_line("; ".join(dict.fromkeys(parts)))
    return one_line(error) or type(error).__name__


def boxes_processor(albumentations: ModuleType, min_visibility: float) -> Any:
    """Return what tells transforms that cover parts of an image when a box is dropped.

    min_visibility: the share of a box that must stay visible.
    """
    params = albumentations.BboxParams(format="albumentations", min_visibility=min_visibility)
    from albumentations.core.bbox_utils import BboxProcessor

    return BboxProcessor(params)
