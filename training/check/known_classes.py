"""Which classes of a data set a model knows, by name."""

import shlex
from dataclasses import dataclass

import numpy as np

from data.check.findings import NOTE, Finding
from data.splits import Dataset, class_names
from models.backends import Backend
from models.backends.combined import MergedClasses
from models.loading import LoadedModel, combine, join_names
from utils.command_line.class_choice import class_ids, is_number
from utils.printable import printable

SHOWN_NAMES = 20


@dataclass(frozen=True)
class KnownClasses:
    """The C classes of the data that a model knows.

    numbers: int64 [C], of the classes in the data, ascending. names: of the outputs of the
    backend, one for each class, or a single one if the model has all classes as one. others: the
    names of the classes that the model does not know.
    """

    numbers: np.ndarray
    names: list[str]
    others: list[str]

    def outputs_of(self, classes: np.ndarray) -> np.ndarray:
        """Return the output of the backend for labels of these classes, int64; -1 if not known."""
        place = np.searchsorted(self.numbers, classes)
        place = np.minimum(place, len(self.numbers) - 1)
        is_known = self.numbers[place] == classes
        output = place if len(self.names) == len(self.numbers) else np.zeros_like(place)
        return np.where(is_known, output, -1)

    def findings(self) -> list[Finding]:
        """Return a note that names the classes that the model does not know, if any."""
        if not self.others:
            return []
        names = join_names(self.others, SHOWN_NAMES)
        title = f"that the model does not know, which are not compared: {names}"
        advice = "to compare them too, give a model that was trained with them"
        return [Finding("classes-not-known", NOTE, "class", title, len(self.others), advice)]


def match_known_classes(
    path: str, model: LoadedModel, dataset: Dataset
) -> tuple[Backend, KnownClasses]:
    """Return a backend with the classes of the data that a model knows, and which they are.

    Raises ValueError, with the model's path, if it knows none, or two of its classes have the same
    name.
    """
    all_names = list(dataset.names)
    title = str(dataset.file)
    known = _known_classes(path, model, dataset)
    others = [name for number, name in enumerate(all_names) if number not in known]
    numbers = np.array(known, np.int64)
    if model.single_class:
        merged = MergedClasses(combine([path], [model], None, title, augment=False))
        return merged, KnownClasses(numbers, class_names(all_names, single=True), others)

    names = [all_names[number] for number in known]
    backend = combine([path], [model], names, title, augment=False, among=model.names)
    return backend, KnownClasses(numbers, names, others)


def _known_classes(path: str, model: LoadedModel, dataset: Dataset) -> list[int]:
    """Return the numbers of the classes of the data that the model knows, ascending.

    Raises ValueError if there are none.
    """
    names = dataset.names
    if not model.single_class:
        known = [number for number, name in enumerate(names) if name in model.names]
        trained_on: tuple[str, ...] = model.names
    elif model.chosen_classes:
        trained_on = model.chosen_classes
        present = [word for word in trained_on if is_number(word) or word in names]
        known = sorted(set(class_ids(present, names, dataset.spec.title)))
    else:
        return list(range(len(names)))

    if not known:
        hint = ""
        if all(map(is_number, names)) and len(names) <= len(trained_on):
            # Classes that are called by their numbers: their names were a flag of the training.
            hint = f"; give the names: --names {printable(shlex.join(trained_on))}"
        raise ValueError(
            f"{printable(path)} does not fit {printable(dataset.file)}: the model's classes are "
            f"{join_names(trained_on)}, those of the data {join_names(names)}, and none is in "
            f"both{hint}"
        )
    return known
