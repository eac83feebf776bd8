"""Search for hyper-parameters and flags of train.py with Optuna.

    # 50 trainings, each of 20 epochs
    python -m training.tune --space space.yaml --trials 50 \\
        --data mydata.yaml --epochs 20

The flags of train.py, without --resume and --evolve, are those of each
training. A second process with the same command, now or later, works on the
same study until all trials are done.
"""

if __name__ == "__main__":
    from utils.startup import prepare_script

    prepare_script()

import sys
from collections.abc import Sequence

from training.settings.config import TrainConfig, flag, require
from training.tune.flags import TuneFlags, read_tune_flags
from utils.distributed import Launch, distributed_session
from utils.terminal import quiet_output, run_and_exit

PROJECT = "runs/tune"
NOT_HERE = ("resume", "evolve", "resume_evolve")


def parse_args(arguments: Sequence[str] | None = None) -> tuple[TuneFlags, TrainConfig, Launch]:
    """Return the flags of the search, those of its trainings, and those of processes."""
    own, rest = read_tune_flags(__doc__, arguments)

    import train  # takes seconds

    flags, launch = train.parse_args(["--project", PROJECT, *rest])
    for name in NOT_HERE:
        is_given = name in flags.given
        require(not is_given, f"{flag(name)}: to continue, give the same command again")
    require(
        launch.spawn is None,
        "--spawn: start the processes of each training with "
        "python -m torch.distributed.run --nproc_per_node N -m training.tune",
    )
    return own, flags, launch


def hide_storage(storage: str) -> None:
    """Remove a URL, in which there may be a password, from the words that W&B records."""
    if "://" in storage:
        sys.argv = [word.replace(storage, "***") for word in sys.argv]


def main(arguments: Sequence[str] | None = None) -> None:
    """Search as the command line says."""
    with distributed_session() as connect:
        own, flags, launch = parse_args(arguments)
        hide_storage(own.storage)

        import train
        from training.tune.run import tune

        with quiet_output(launch.quiet):
            tune(own, flags, connect(launch), train.main)


if __name__ == "__main__":
    run_and_exit(main)
