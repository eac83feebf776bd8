# ruff: noqa: F401 - the imports are for type checkers
"""What a run is: settings, state, checkpoints, evaluation.

The names are imported when they are first used, so that the command line, which needs
`training.settings`, is parsed without the seconds that torch takes.
"""

from typing import TYPE_CHECKING

from utils.lazy_listing import lazy_listing

if TYPE_CHECKING:
    from training.averages.ema import EMA
    from training.batch_size.autobatch import memory_advice
    from training.batch_size.find import find_batch_size
    from training.check.evaluated_classes import choose_evaluated_classes
    from training.checkpoints.manager import CheckpointManager
    from training.checkpoints.preemption import SaveTrigger
    from training.checkpoints.status import RunStatus
    from training.compiled_loss import compile_loss
    from training.distillation.distillation import open_distillation
    from training.distillation.teacher_file import read_teacher
    from training.evaluation import (
        SplitPredictions,
        evaluate_best,
        evaluate_split,
        predict_split,
    )
    from training.freezing import freeze, set_training
    from training.global_batch import GlobalBatch
    from training.nonfinite import (
        NonFiniteError,
        NonFiniteGuard,
        describe_skipped,
        describe_skipped_in_epoch,
        describe_stuck,
        nan_if_nonfinite,
        refuse_mostly_skipped,
    )
    from training.progress import StepReports
    from training.report.facts import model_facts
    from training.report.training import TrainingReport
    from training.report.validation import write_validation_report
    from training.result_pictures import draw_results
    from training.results import next_steps
    from training.run import Run, open_run
    from training.schedule import Schedule
    from training.start import extended_model, place_model, start_model
    from training.state import TrainState, build_train_state
    from training.validation import EpochValidation

__all__, __getattr__ = lazy_listing(
    __name__,
    {
        "batch_size.autobatch": ["memory_advice"],
        "batch_size.find": ["find_batch_size"],
        "global_batch": ["GlobalBatch"],
        "checkpoints.manager": ["CheckpointManager"],
        "checkpoints.preemption": ["SaveTrigger"],
        "checkpoints.status": ["RunStatus"],
        "compiled_loss": ["compile_loss"],
        "distillation.distillation": ["open_distillation"],
        "distillation.teacher_file": ["read_teacher"],
        "averages.ema": ["EMA"],
        "check.evaluated_classes": ["choose_evaluated_classes"],
        "evaluation": ["SplitPredictions", "evaluate_best", "evaluate_split", "predict_split"],
        "freezing": ["freeze", "set_training"],
        "nonfinite": [
            "NonFiniteError",
            "NonFiniteGuard",
            "describe_skipped",
            "describe_skipped_in_epoch",
            "describe_stuck",
            "nan_if_nonfinite",
            "refuse_mostly_skipped",
        ],
        "progress": ["StepReports"],
        "report.facts": ["model_facts"],
        "report.training": ["TrainingReport"],
        "report.validation": ["write_validation_report"],
        "result_pictures": ["draw_results"],
        "results": ["next_steps"],
        "run": ["Run", "open_run"],
        "schedule": ["Schedule"],
        "start": ["extended_model", "place_model", "start_model"],
        "state": ["TrainState", "build_train_state"],
        "validation": ["EpochValidation"],
    },
)
