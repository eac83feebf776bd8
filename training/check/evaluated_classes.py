"""Which classes of a data set a model is evaluated on: the rule of val.py and export.py."""

from collections.abc import Sequence

from data.splits import Dataset
from models.export.metadata import ExportedModel
from models.loading import LoadedModel
from utils.log import Say, say_nothing
from utils.printable import counted, printable


def choose_evaluated_classes(
    dataset: Dataset,
    path: str,
    model: LoadedModel | ExportedModel,
    given: Sequence[str] = (),
    *,
    known_only: bool = False,
    say: Say = say_nothing,
) -> None:
    """Choose the classes of a data set that are evaluated, with others of the model in front.

    Call it before `Dataset.read`.

    Args:
        dataset: whose classes are chosen.
        path: the file of the model.
        model: what the file says of its classes.
        given: of --classes; without them, the classes that the model was trained on.
        known_only: leave out classes that the model does not know, also if it was not trained with
            --classes.
        say: receives a line about classes of the model without labels, and about a choice that is
            ambiguous.

    Raises ValueError if the data do not have a class.
    """
    if given:
        dataset.choose_classes(given, say=say)
    else:
        chosen = _trained_choice(model, dataset.spec.names, known_only=known_only)
        dataset.choose_classes(chosen, f"{printable(path)} was trained with --classes")

    before = classes_before(model.names, dataset.own_names, dataset.spec.names)
    if before:
        dataset.prepend_classes(before)
        say(f"{dataset.file} has no labels of {counted(len(before), 'class')} of the model")


def _trained_choice(
    model: LoadedModel | ExportedModel, names: Sequence[str], *, known_only: bool
) -> Sequence[int | str]:
    """Return which classes of data to use, by number or name; () for all.

    They are those that were chosen for the training. That of --add-classes chose the new ones only,
    so that they are all those that the model has.

    names: of all classes of the data. known_only: as in `choose_evaluated_classes`.
    """
    has_added = 0 < len(model.chosen_classes) < len(model.names)
    all_known = has_added or (known_only and not model.single_class)
    if not all_known:
        return model.chosen_classes
    known = [number for number, name in enumerate(names) if name in model.names]
    return known if len(known) < len(names) else ()


def classes_before(
    model_names: Sequence[str], names: Sequence[str], known: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return the classes of a model before `names`, if these are its last ones; else ().

    So are the classes of data with which --add-classes has trained it. known: all classes of the
    data, if `names` are some of them; they must not have any of the others.

    >>> classes_before(["a", "b", "c"], ["b", "c"]), classes_before(["a", "b"], ["a", "b"])
    (('a',), ())
    """
    first = len(model_names) - len(names)
    before = tuple(model_names[: max(first, 0)])
    is_end = list(model_names[len(before) :]) == list(names)
    return before if is_end and not set(before) & set(known) else ()
