"""All loggers: a line for each. Their flags are `--NAME`, in train.py and val.py."""

from utils.loggers.base import Logger
from utils.loggers.mlflow_log import MlflowLogger
from utils.loggers.tensorboard_log import TensorBoardLogger
from utils.loggers.wandb_log import WandbLogger

LOGGERS: dict[str, type[Logger]] = {
    "tensorboard": TensorBoardLogger,
    "wandb": WandbLogger,
    "mlflow": MlflowLogger,
}


def check_loggers(names: tuple[str, ...]) -> None:
    """Raise ValueError for a name that is not a logger's."""
    for name in names:
        if name not in LOGGERS:
            raise ValueError(f"--loggers {name}: choose among {', '.join(LOGGERS)}")
