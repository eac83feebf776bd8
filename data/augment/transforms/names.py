"""Which classes of Albumentations a file may name, and why the others are refused.

These are the classes of its releases from 1.4.24 to 2.0.8. A test compares the lists with what is
installed: pixel transforms, and those that transform boxes too.
"""

from utils.printable import did_you_mean, excerpt


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# They change pixels only.
PIXEL_TRANSFORMS = _names(
    """
    AdditiveNoise AdvancedBlur AutoContrast Blur CLAHE ChannelDropout ChannelShuffle
    ChromaticAberration ColorJitter Defocus Downscale Emboss Equalize FancyPCA GaussNoise
    GaussianBlur GlassBlur HEStain HueSaturationValue ISONoise Illumination ImageCompression
    InvertImg MedianBlur MotionBlur MultiplicativeNoise PlanckianJitter PlasmaBrightnessContrast
    PlasmaShadow Posterize RGBShift RandomBrightnessContrast RandomFog RandomGamma RandomGravel
    RandomRain RandomShadow RandomSnow RandomSunFlare RandomToneCurve RingingOvershoot
    SaltAndPepper Sharpen ShotNoise Solarize Spatter Superpixels ToGray ToSepia UnsharpMask ZoomBlur
    """
)

# They change pixels and boxes.
BOX_TRANSFORMS = _names(
    """
    Affine AtLeastOneBBoxRandomCrop BBoxSafeRandomCrop CenterCrop CoarseDropout
    ConstrainedCoarseDropout Crop CropAndPad D4 ElasticTransform Erasing GridDistortion GridDropout
    GridElasticDeform HorizontalFlip Morphological NoOp OpticalDistortion Perspective
    PiecewiseAffine PixelDropout RandomCrop RandomCropFromBorders RandomGridShuffle
    RandomResizedCrop RandomRotate90 RandomSizedBBoxSafeCrop RandomSizedCrop Rotate SafeRotate
    ShiftScaleRotate SquareSymmetry ThinPlateSpline Transpose VerticalFlip XYMasking
    """
)

# Of these, they cover parts of the image: boxes stay as they are, or are dropped.
COVERING = _names(
    "CoarseDropout ConstrainedCoarseDropout Erasing GridDropout PixelDropout XYMasking"
)
# Its boxes are wrong where two of them touch, and its pixels move by a few pixels only.
BOXES_STAY = frozenset({"Morphological"})

# They hold a list of transforms.
ONE_OF, SOME_OF, SEQUENTIAL, COMPOSE = "OneOf", "SomeOf", "Sequential", "Compose"
GROUPS = (ONE_OF, SOME_OF, SEQUENTIAL, COMPOSE)

_WHY_REFUSED = {
    "it changes the size of the image, which is that of --img; Affine zooms": (
        "LongestMaxSize Pad PadIfNeeded RandomScale Resize SmallestMaxSize"
    ),
    "it needs masks, which samples do not have": "CropNonEmptyMaskIfExists MaskDropout",
    "it reads other images or files": (
        "FDA HistogramMatching PixelDistributionAdaptation TemplateTransform TextImage"
    ),
    "it needs data of each image that samples do not have": "OverlayElements RandomCropNearBBox",
    "mosaic and mixup are in the --hyp file": "MixUp Mosaic",
    "the result must be an image of 8-bit RGB, which train.py normalizes": (
        "FromFloat Normalize ToFloat ToRGB ToTensor3D ToTensorV2"
    ),
    "it runs functions, and a file is data": "Lambda",
    "it is for volumes": (
        "CenterCrop3D CoarseDropout3D CubicSymmetry Pad3D PadIfNeeded3D RandomCrop3D"
    ),
    "it is for spectrograms": "FrequencyMasking TimeMasking TimeReverse",
    f"the groups are {', '.join(GROUPS)}": (
        "OneOrOther RandomOrder ReplayCompose SelectiveChannelTransform"
    ),
}
REFUSED = {name: why for why, names in _WHY_REFUSED.items() for name in _names(names)}


def check_name(name: str) -> None:
    """Raise ValueError for a name that is not that of an allowed transform or a group."""
    known = PIXEL_TRANSFORMS | BOX_TRANSFORMS | {*GROUPS}
    if name in known:
        return
    if name in REFUSED:
        raise ValueError(f"{name} is not allowed: {REFUSED[name]}")
    raise ValueError(
        f"'{excerpt(name)}' is not a transform of Albumentations that can be used"
        f"{did_you_mean(name, known)}; docs/augmentations.md lists them"
    )
