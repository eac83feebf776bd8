"""--batch-size -1: the largest batch of a run that fits in memory, by trial steps."""

import torch

from data import Images, trial_drawing
from data.labels import Labels
from data.multi_scale import MultiScale
from models import build_loss
from models.detector import Detector
from training.batch_size.autobatch import FinalTrial, choose_batch
from training.batch_size.trial_step import TrialStep
from training.distillation.distillation import Distillation
from training.global_batch import GlobalBatch
from training.settings.config import TrainConfig
from training.settings.groups import augmentation, loss_gains
from training.settings.hyperparameters import Hyp
from utils.distributed.precision import autocast_for, weights_dtype
from utils.distributed.torch_compile import mode_without_reuse
from utils.distributed.world import World
from utils.log import Say, say_nothing


def find_batch_size(
    cfg: TrainConfig,
    hyp: Hyp,
    model: Detector,
    labels: Labels,
    images: Images,
    *,
    distillation: Distillation,
    image_size: int,
    precision: torch.dtype,
    world: World,
    say: Say,
) -> int:
    """Return the largest global batch whose step stays within a share of the free memory.

    The trial steps are on images of the most pixels and boxes. On a GPU, the result is tried once
    more as the run will do it: with the compiled model, or with the convolutions that cuDNN finds
    fastest, some of which need much memory.

    Args:
        model: on this process's device; the trials use copies.
        labels, images: of the training split.
        distillation: what a teacher adds to the loss.
        image_size: in pixels, a multiple of the largest strides of the model and its teacher.
        precision: of the forward pass.
        say: logs the memory use.

    Raises ValueError as `choose_batch` does.
    """
    gains = loss_gains(hyp, cfg.label_smoothing, ignore_old=cfg.ignore_old)
    criterion = build_loss(model.head, gains, auxiliary=model.auxiliary_head)
    criterion = distillation.add_to(criterion, hyp.distillation)
    criterion.to(weights_dtype(precision))

    # The most that a batch of the run can hold: pixels and, in a mosaic, the boxes of four images.
    largest_side = image_size
    if cfg.multi_scale:
        largest_side = MultiScale.largest_side(image_size, distillation.stride)
    percentile = 95  # of the images, by their number of boxes
    boxes_per_image = 4 * labels.boxes_per_image(percentile) + 1
    step = TrialStep(
        model,
        criterion,
        autocast_for(precision, world.device),
        optimizer=cfg.optimizer,
        lr=hyp.lr0,
        momentum=hyp.momentum,
        image_size=largest_side,
        boxes_per_image=boxes_per_image,
        world=world,
        draw=trial_drawing(labels, images, image_size, augmentation(hyp), rect=cfg.rect),
    )

    def compiled_step(images_per_process: int) -> None:
        batch = GlobalBatch(images_per_process * world.size, world.size, nominal=hyp.nominal_batch)
        mode = mode_without_reuse(cfg.compile, batch.accumulate, world.device, say_nothing)
        step.compiled(images_per_process, mode)

    # What takes too long to be done in each trial. DataParallel's replicas are not compiled.
    check: FinalTrial | None = None
    if world.device.type == "cuda":
        if cfg.compile != "off" and not world.devices:
            check = FinalTrial("compiled", compiled_step)
        elif cfg.one_shape:
            check = FinalTrial("with the convolutions that cuDNN finds fastest", step.tuned)

    def smallest_of_all(number: int) -> int:
        return min(world.all_gather_object(number))

    size, sentence = choose_batch(
        step,
        smallest_of_all,
        device=world.device,
        images=len(labels),
        shares=max(world.size, len(world.devices)),  # processes, or devices of DataParallel
        local_processes=world.local_size,
        check=check,
    )
    say(sentence)
    return size
