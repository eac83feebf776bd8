"""What is said of a source most of whose objects are marked as regions to ignore."""

from utils.printable import counted

COCO_TITLE = "COCO JSON"
MANY_CROWDS = 0.1  # of the objects of a COCO JSON; COCO's own files have 0.01
HOW_TO_USE_CROWDS = (
    "iscrowd 1, as CVAT writes it for masks that were painted or found by SAM; to train on them, "
    'replace "iscrowd": 1 by "iscrowd": 0 in the file'
)


def ignored_text(title: str, ignored: int, objects: int) -> str:
    """Return a sentence if a source has suspiciously many objects that are ignored, else "".

    Those are all of them, or of a COCO JSON a tenth: other formats mark many objects on purpose,
    such as the difficult ones of Pascal VOC.

    Args:
        title: of the format.
        ignored: the number of objects that are ignored.
        objects: the number of all.

    >>> ignored_text("Pascal VOC", 2, 2)
    '2 of 2 objects marked as ignored: neither learned nor counted as missed'
    >>> ignored_text("Pascal VOC", 1, 2), ignored_text("COCO JSON", 1, 100)
    ('', '')
    """
    is_coco = title == COCO_TITLE
    is_many = is_coco and ignored >= MANY_CROWDS * objects
    if not ignored or not (is_many or ignored == objects):
        return ""
    said = (
        f"{ignored:,} of {counted(objects, 'object')} marked as ignored: neither "
        "learned nor counted as missed"
    )
    return f"{said}. They have {HOW_TO_USE_CROWDS}" if is_coco else said
