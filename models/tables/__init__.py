"""Model tables: YAML files of rows [from, number, module, args], found, checked and resolved.

A table describes a family of models or one model. Both have `backbone` and `head`, the rows, and
`anchors` if a row uses them. A family also has `scales: {s: [depth, width, max channels]}`, and one
model `depth_multiple`, `width_multiple` and `max_channels`. The max channels, a limit before width
multiplies them, may be left out. `{scale}` in a text argument of a family's row, such as
`"resnet{scale}"`, is the name of the scale.

Optional entries are the same for all models of a table. `batch_norm: {eps: 1.0e-5, momentum: 0.1}`
is that of all its batch normalizations, but for those of other libraries' backbones; the default is
0.001 and 0.03. `channel_multiple: 1`: scaled channels are rounded up to a multiple of it; the
default is 8. `letterbox: top_left`: the model takes images at the top left of the canvas; the
default is the center. `auxiliary`: rows that only training computes, after those of `head`; the
last one is a second head. `class_groups: [2, 1]`: the last row of `head` stands for one head for
each group of classes (models/heads/joined.py); only checkpoints have such a table. `distillation:
{channels: [64, 128, 256]}`: in training the model also returns its maps, projected to so many
channels, those of a teacher; 0 for a level that the teacher does not have. Training adds it.

A resolved table describes one model and also has `nc`, `ch` and `source`: plain values that a
checkpoint can store and that `Detector` is built from.
"""
