"""--fitness: an expression over metrics, whose value decides which epoch is the best.

    expression = term { ("+" | "-") term }
    term       = factor { ("*" | "/") factor }
    factor     = ("+" | "-") factor | number | metric | function | "(" expression ")"
    function   = ("min" | "max") "(" expression { "," expression } ")"
    metric     = name [ "[" class "]" ]

A class is its name up to the bracket, or a text in quotes, in which a backslash precedes quotes and
backslashes. The text is never executed.
"""

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from utils.printable import did_you_mean, excerpt, printable

DEFAULT = "0.1*AP50 + 0.9*AP"  # as YOLOv5's
_PRECISIONS = ("AP", "AP50", "AP75", "APs", "APm", "APl")
OF_CLASSES = (*_PRECISIONS, "AR1", "AR10", "AR100", "ARs", "ARm", "ARl")
METRICS = (*OF_CLASSES, "precision", "recall")
FUNCTIONS: dict[str, Callable[..., float]] = {"min": min, "max": max}
MAX_LENGTH = 500  # characters
MAX_DEPTH = 50  # of nested parentheses and signs
MAX_NAMED = 20  # classes in an error

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
      | (?P<name>[A-Za-z_]\w*)
      | (?P<symbol>[-+*/(),\[])
    )""",
    re.VERBOSE | re.ASCII,
)
_CLASS = re.compile(
    r"""\s*(?: (?P<quote>["'])(?P<quoted>(?:\\.|(?!(?P=quote))[^\\])*)(?P=quote)
             | (?P<plain>[^]["']+) )\s*\]""",
    re.VERBOSE | re.DOTALL,
)


class Node(Protocol):
    """A part of an expression."""

    def value(self, metrics: Mapping[str, Any]) -> float: ...

    def parts(self) -> Sequence["Node"]: ...


@dataclass(frozen=True)
class Number:
    """A number."""

    number: float

    def value(self, _: Mapping[str, Any]) -> float:
        return self.number

    def parts(self) -> Sequence[Node]:
        return ()


@dataclass(frozen=True)
class Metric:
    """A metric of all classes, or of one. column: in the text, from 1."""

    name: str
    class_name: str | None
    column: int

    def value(self, metrics: Mapping[str, Any]) -> float:
        """Return the metric; 0 if no object decides it, which is -1 in metrics.json."""
        numbers = metrics
        if self.class_name is not None:
            numbers = metrics["per_class"].get(self.class_name, {})
        number = float(numbers.get(self.name, 0.0))
        return number if number > 0 else 0.0

    def parts(self) -> Sequence[Node]:
        return ()


@dataclass(frozen=True)
class Operation:
    """Two expressions and one of + - * /."""

    symbol: str
    left: Node
    right: Node

    def value(self, metrics: Mapping[str, Any]) -> float:
        """Return the result; that of a division by 0 is 0."""
        left = self.left.value(metrics)
        right = self.right.value(metrics)
        if self.symbol == "+":
            return left + right
        if self.symbol == "-":
            return left - right
        if self.symbol == "*":
            return left * right
        return left / right if right else 0.0

    def parts(self) -> Sequence[Node]:
        return (self.left, self.right)


@dataclass(frozen=True)
class Function:
    """The smallest or the largest of some expressions."""

    name: str
    arguments: tuple[Node, ...]

    def value(self, metrics: Mapping[str, Any]) -> float:
        return FUNCTIONS[self.name](argument.value(metrics) for argument in self.arguments)

    def parts(self) -> Sequence[Node]:
        return self.arguments


@dataclass(frozen=True)
class Fitness:
    """An expression over the metrics of an evaluation."""

    root: Node

    def of(self, metrics: Mapping[str, Any]) -> float:
        """Return the fitness of an evaluation; higher is better.

        It is 0 if the numbers grow beyond what a float holds. metrics: as Evaluation.as_dict.

        >>> parse_fitness("").of({"AP": 0.5, "AP50": 1.0})
        0.55
        >>> per_class = {"a": {"AP": 0.5}, "b": {"AP": -1}}
        >>> parse_fitness("min(AP[a], AP[b])").of({"per_class": per_class})
        0.0
        """
        value = self.root.value(metrics)
        return value if math.isfinite(value) else 0.0

    def needs_only(self, names: Collection[str]) -> bool:
        """Return whether the metrics of these names, of all classes, are enough.

        >>> parse_fitness("AP50 + AP").needs_only(["AP", "AP50"])
        True
        >>> parse_fitness("AP75").needs_only(["AP"]), parse_fitness("AP[a]").needs_only(["AP"])
        (False, False)
        """
        found = list(_metrics_in(self.root))
        return all(one.class_name is None and one.name in names for one in found)

    def require_classes(self, names: Sequence[str]) -> None:
        """Raise ValueError if a class is not one of `names`."""
        for metric in _metrics_in(self.root):
            if metric.class_name is not None and metric.class_name not in names:
                listed = ", ".join(printable(name) for name in names[:MAX_NAMED])
                if len(names) > MAX_NAMED:
                    listed += f" and {len(names) - MAX_NAMED:,} more"
                near = did_you_mean(metric.class_name, names)
                _refuse(
                    metric.column,
                    f"unknown class '{excerpt(metric.class_name)}'{near}; classes are {listed}",
                )


def parse_fitness(text: str) -> Fitness:
    """Return the expression in a text; "" stands for DEFAULT.

    Raises ValueError, with the column, for anything but an expression of the grammar above over the
    names in METRICS.
    """
    if len(text) > MAX_LENGTH:
        raise ValueError(f"--fitness: longer than {MAX_LENGTH} characters")
    root = _Parser(text or DEFAULT).parse()
    if not any(_metrics_in(root)):
        raise ValueError(f"--fitness {printable(text)}: names no metric; {_allowed()}")
    return Fitness(root)


def _metrics_in(node: Node) -> Iterator[Metric]:
    if isinstance(node, Metric):
        yield node
    for part in node.parts():
        yield from _metrics_in(part)


def _allowed() -> str:
    """Return the end of a sentence that lists the names."""
    return f"metrics are {', '.join(METRICS)}, and those of a class, such as AP[person]"


def _refuse(column: int, problem: str) -> NoReturn:
    raise ValueError(f"--fitness column {column}: {problem}")


class _Parser:
    """A parser by recursive descent: a method for each rule of the grammar."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.kind = ""  # of the next token; "" at the end
        self.word = ""
        self.start = 0  # where it begins
        self.end = 0  # where it ends
        self.depth = 0
        self._advance()

    def parse(self) -> Node:
        """Return the expression that is all of the text."""
        root = self._expression()
        if self.kind:
            self._refuse("expected an operator (+ - * /) or the end")
        return root

    def _expression(self) -> Node:
        node = self._term()
        while self.word in ("+", "-"):
            symbol = self._take()
            node = Operation(symbol, node, self._term())
        return node

    def _term(self) -> Node:
        node = self._factor()
        while self.word in ("*", "/"):
            symbol = self._take()
            node = Operation(symbol, node, self._factor())
        return node

    def _factor(self) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self._refuse(f"nested more than {MAX_DEPTH} deep")
        node = self._operand()
        self.depth -= 1
        return node

    def _operand(self) -> Node:
        if self.word in ("+", "-"):
            symbol = self._take()
            return Operation(symbol, Number(0.0), self._factor())
        if self.word == "(":
            self._take()
            node = self._expression()
            self._expect(")")
            return node
        if self.kind == "number":
            return self._number()
        if self.word in FUNCTIONS:
            return self._function()
        if self.kind == "name":
            return self._metric()
        return self._refuse("expected a number, a metric or (")

    def _number(self) -> Node:
        number = float(self.word)
        if not math.isfinite(number):
            self._refuse("expected a smaller number")
        self._take()
        return Number(number)

    def _function(self) -> Node:
        name = self._take()
        self._expect("(")
        arguments = [self._expression()]
        while self.word == ",":
            self._take()
            arguments.append(self._expression())
        self._expect(")")
        return Function(name, tuple(arguments))

    def _metric(self) -> Node:
        name = self.word
        column = self.start + 1
        if name not in METRICS:
            near = did_you_mean(name, (*METRICS, *FUNCTIONS))
            _refuse(column, f"unknown metric '{excerpt(name)}'{near}; {_allowed()}")
        self._take()
        if self.word != "[":
            return Metric(name, None, column)
        if name not in OF_CLASSES:
            names = ", ".join(OF_CLASSES)
            _refuse(column, f"'{name}' is not known for each class; those of a class are {names}")
        return Metric(name, self._class_name(), column)

    def _class_name(self) -> str:
        """Take a class and its closing bracket; the opening one is the next token."""
        column = self.end + 1
        match = _CLASS.match(self.text, self.end)
        if match is None:
            _refuse(column, 'expected the name of a class and ], such as [person] or ["a ]"]')
        self.end = match.end()
        self._advance()

        if match["quoted"] is not None:
            return re.sub(r"\\(.)", r"\1", match["quoted"], flags=re.DOTALL)
        return match["plain"].strip()

    # ---- tokens

    def _take(self) -> str:
        """Return the next token, and go to the one after it."""
        token = self.word
        self._advance()
        return token

    def _expect(self, symbol: str) -> None:
        if self.word != symbol:
            self._refuse(f"expected {symbol}")
        self._take()

    def _advance(self) -> None:
        match = _TOKEN.match(self.text, self.end)
        if match is None:
            rest = self.text[self.end :]
            self.start = self.end + len(rest) - len(rest.lstrip())
            self.kind = ""
            self.word = ""
            if rest.strip():
                shown = excerpt(rest.strip()[0])
                _refuse(self.start + 1, f"'{shown}' is not part of an expression; {_allowed()}")
            return
        self.kind = str(match.lastgroup)
        self.word = match[self.kind]
        self.start = match.start(self.kind)
        self.end = match.end()

    def _refuse(self, problem: str) -> NoReturn:
        found = f"'{excerpt(self.word)}'" if self.kind else "the end"
        _refuse(self.start + 1, f"found {found}, {problem}")
