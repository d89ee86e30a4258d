"""A mask as a notebook shows it: a small picture of its matrix, made without any library."""

import struct
import zlib
from base64 import b64encode
from html import escape

import torch
from torch import Tensor

MOST_NODES, MOST_HEADS = 512, 4
"""Size of the largest mask that is drawn, and the heads that are drawn of it."""


def as_html(description: str, matrices: Tensor) -> str:
    """Pictures of matrices ``[H, N, N]`` below a description: blue is positive, red negative, the darker the larger.

    Colours change with the square root, so that weights between nodes stay visible next to those on themselves.
    """
    largest = matrices.abs().amax()
    style = "width:240px;image-rendering:pixelated;border:1px solid #999;margin:2px"
    made = f"<code>{escape(description)}</code>, largest entry {largest:.3g} (dark); negative entries are red<br>"
    for number, matrix in enumerate(matrices[:MOST_HEADS]):
        png = b64encode(_png(matrix / largest.clamp_min(torch.finfo(matrix.dtype).tiny))).decode()
        made += f'<img alt="head {number}" title="head {number}" style="{style}" src="data:image/png;base64,{png}">\n'
    return made


def _png(matrix: Tensor) -> bytes:
    """A picture of a matrix with entries from −1 to 1, one pixel for each."""
    dark = 255 * matrix.abs().sqrt()
    colours = torch.stack([255 - dark * (matrix > 0), 255 - 0.7 * dark, 255 - dark * (matrix < 0)], dim=2).byte()
    rows = b"".join(b"\0" + bytes(row.flatten().tolist()) for row in colours)  # each begins with "no filter"
    height, width = matrix.shape
    head = struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0)  # 8 bits, RGB
    chunks = (b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
