"""The settings of a run in groups: one dataclass for each part of training that they configure."""

from data import Augmentation
from models.losses import LossGains
from training.schedule import Schedule
from training.settings.config import TrainConfig
from training.settings.hyperparameters import Hyp


def augmentation(hyp: Hyp) -> Augmentation:
    """Return the strengths and probabilities of augmentation."""
    return Augmentation(
        hsv_h=hyp.hsv_h,
        hsv_s=hyp.hsv_s,
        hsv_v=hyp.hsv_v,
        degrees=hyp.degrees,
        translate=hyp.translate,
        scale=hyp.scale,
        shear=hyp.shear,
        perspective=hyp.perspective,
        flipud=hyp.flipud,
        fliplr=hyp.fliplr,
        mosaic=hyp.mosaic,
        mixup=hyp.mixup,
        copy_paste=hyp.copy_paste,
    )


def loss_gains(
    hyp: Hyp,
    label_smoothing: float,
    class_weights: tuple[float, ...] = (),
    ignore_old: float = LossGains.ignore_old,
) -> LossGains:
    """Return the weights and settings of the loss terms. class_weights: of each class, () for 1."""
    return LossGains(
        box=hyp.box,
        obj=hyp.obj,
        cls=hyp.cls,
        obj_pw=hyp.obj_pw,
        cls_pw=hyp.cls_pw,
        anchor_t=hyp.anchor_t,
        fl_gamma=hyp.fl_gamma,
        label_smoothing=label_smoothing,
        class_weights=class_weights,
        ignore_old=ignore_old,
    )


def schedule(cfg: TrainConfig, hyp: Hyp, batches: int) -> Schedule:
    """Return the schedule of learning rate, momentum and accumulation.

    cfg: with the final batch size. batches: in the whole run.
    """
    return Schedule(
        total_batches=batches,
        epochs=cfg.epochs,
        batch_size=cfg.batch_size,
        nominal_batch=hyp.nominal_batch,
        lr0=hyp.lr0,
        lrf=hyp.lrf,
        cosine=cfg.cos_lr,
        momentum=hyp.momentum,
        warmup_epochs=hyp.warmup_epochs,
        warmup_momentum=hyp.warmup_momentum,
        warmup_bias_lr=hyp.warmup_bias_lr,
    )
