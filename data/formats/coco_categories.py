"""The categories of a COCO JSON: their names, ids, and the parents that are no classes."""

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from data.formats.json_files import whole_number
from utils.printable import excerpt, printable


class Categories(NamedTuple):
    """The categories of a COCO JSON."""

    names: dict[int, str]  # by id
    # of categories without annotations that other categories name as theirs: Roboflow lists the
    # name of the whole data set so
    unused_parents: frozenset[str]

    @property
    def listed(self) -> tuple[str, ...]:
        """All names, in the order of their ids."""
        return tuple(self.names[category_id] for category_id in sorted(self.names))

    def ids_of_classes(self, class_by_id: dict[int, int], num_classes: int) -> list[int]:
        """Return the id of each class; of one without a category, an id that no category has."""
        ids = {class_index: category_id for category_id, class_index in class_by_id.items()}
        first_unused = max([0, *self.names]) + 1
        return [ids.get(index, first_unused + index) for index in range(num_classes)]


def read_categories(file: Path, document: dict[str, list]) -> Categories:
    """Return the categories of a JSON, without a parent that has the name of its only class.

    Raises ValueError for any error, since it could give every box a wrong class.
    """
    entries = document["categories"]
    annotations = [entry for entry in document["annotations"] if isinstance(entry, dict)]
    used = {whole_number(entry.get("category_id")) for entry in annotations}

    names: dict[int, str] = {}
    id_of: dict[str, int] = {}  # of each name
    children = Counter(map(_supercategory, entries))  # the number of each name
    is_parent = {}  # whether each category is the parent of another
    for position, entry in enumerate(entries):
        where = f"{printable(file)} categories[{position}]"
        category_id, name = _id_and_name(entry, where)
        of_others = children[name] - (_supercategory(entry) == name)
        is_repeated = category_id in names
        is_parent[category_id] = of_others > 0

        same_name = id_of.get(name)
        is_pair = same_name is not None and is_parent[category_id] != is_parent[same_name]
        if is_repeated or (same_name is not None and not is_pair):
            raise ValueError(f"{where}: id {category_id} or name '{excerpt(name)}' appears twice")
        if same_name is not None:
            kept = _only_used(category_id, same_name, used, is_parent)
            if kept is None:
                problem = f"ids {same_name} and {category_id} are both '{excerpt(name)}'"
                raise ValueError(f"{where}: {problem}, and both have annotations")
            names.pop(same_name)
            category_id = kept
        names[category_id] = name
        id_of[name] = category_id

    groups = {_supercategory(entry) for entry in entries if _supercategory(entry) != entry["name"]}
    unused = {name for category_id, name in names.items() if category_id not in used}
    return Categories(names, frozenset(unused & groups))


def _only_used(
    category_id: int, other_id: int, used: set[int | None], is_parent: dict[int, bool]
) -> int | None:
    """Return which of a parent and its child counts: that with annotations, None if both have some.

    Without any it is the child.
    """
    if category_id in used and other_id in used:
        return None
    for candidate in (category_id, other_id):
        if candidate in used:
            return candidate
    return other_id if is_parent[category_id] else category_id


def _supercategory(entry: Any) -> str:
    """Return the name of the category that one belongs to, "" if there is none."""
    parent = entry.get("supercategory") if isinstance(entry, dict) else None
    return parent if isinstance(parent, str) else ""


def _id_and_name(entry: Any, where: str) -> tuple[int, str]:
    """Return the id and the name of a category. Raises ValueError; where: its place."""
    fields = entry if isinstance(entry, dict) else {}
    category_id = whole_number(fields.get("id"))
    name = fields.get("name")
    if category_id is None or not isinstance(name, str):
        raise ValueError(f"{where} must have a whole number 'id' and a text 'name'")
    if not name:
        raise ValueError(f"{where}: 'name' is empty: name the class, or remove the category")
    return category_id, name
