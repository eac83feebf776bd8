"""How a script ends: 0 done, 1 a fault, 2 the user's input, in one sentence."""

import os
import sys
import traceback
from collections.abc import Callable


def stops_with_a_sentence(run: Callable[[], object]) -> int:
    """The exit code of `run`. A ValueError is a refusal of the user's input: its text is all that is shown.

    Set KESTREL_TRACEBACK=1 to see where it was raised. Any other exception keeps its traceback and ends with 1.
    """
    try:
        run()
    except ValueError as error:
        if os.environ.get("KESTREL_TRACEBACK"):
            traceback.print_exc()
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0
