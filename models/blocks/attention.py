"""Self-attention between the cells of a map."""

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from models.blocks.base import Layer
from models.blocks.convolutions import Conv, LinearConv

HEAD_CHANNELS = 64  # of a head's values; its queries and keys have half of them


class Attention(Layer):
    """Multi-head self-attention of C channels between the cells of a map.

    Its position encoding is a depthwise 3x3 convolution of the values.

    Raises ValueError for fewer than 64 channels, or a number that the heads do not divide.

    Source: YOLOv10, arXiv 2405.14458, section 3.2; attention arXiv 1706.03762, equation 1.
    """

    scales_width = False

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.out_channels = channels
        self.heads = channels // HEAD_CHANNELS
        if self.heads < 1 or channels % self.heads:
            raise ValueError(
                f"self-attention needs {HEAD_CHANNELS} channels per head, got {channels} channels"
            )

        # channels of a head's values; its queries have as many as its keys
        self.values = channels // self.heads
        self.keys = self.values // 2
        self.qkv = LinearConv(channels, self.heads * (2 * self.keys + self.values), 1)
        self.proj = LinearConv(channels, channels, 1)
        self.pe = LinearConv(channels, channels, 3, groups=channels)

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[2:]

        # Queries, keys and values of each head, one column per cell.
        parts = self.qkv(x).unflatten(1, (self.heads, -1))
        parts = parts.flatten(3)  # [B, heads, 2 * keys + values, H * W]
        queries, keys, values = parts.split([self.keys, self.keys, self.values], 2)

        # Equation 1: softmax(Q K^T / sqrt(d_k)) V.  [B, heads, values, H * W]
        attended = scaled_dot_product_attention(queries.mT, keys.mT, values.mT).mT

        # The heads side by side, as maps of the values' channels.  [B, C, H, W]
        attended = attended.flatten(1, 2).unflatten(2, (height, width))
        values = values.flatten(1, 2).unflatten(2, (height, width))
        return self.proj(attended + self.pe(values))


class AttentionBlock(Layer):
    """Self-attention, then two 1x1 convolutions through twice the channels.

    The input of each is added to its output.
    """

    scales_width = False

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.out_channels = channels
        self.attn = Attention(channels)
        self.ffn = nn.Sequential(
            Conv(channels, 2 * channels, 1), LinearConv(2 * channels, channels, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(x)
        return x + self.ffn(x)
