"""A net that PyTorch exports into memory, lowered there for a target and saved: in_memory.py TARGET FILE."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from nets_of_text import TEXT
from torch import nn

from rnn_lowering import LowerRecurrentPass

if __name__ == "__main__":
    target: Any = sys.argv[1]
    path = Path(sys.argv[2])
    torch.manual_seed(0)
    net: nn.Module = TEXT["tagger"].make().eval()
    tokens = [torch.randint(0, 20, (2 + n, 12 + 8 * n)) for n in range(2)]
    axes = ({0: "batch", 1: "time"},)
    program = torch.onnx.export(net, (tokens[0],), dynamo=True, input_names=["tokens"], dynamic_shapes=(axes,))
    assert program is not None
    assert LowerRecurrentPass(target=target)(program.model).modified
    program.save(path)
    arrays = {f"{n} in tokens": given.numpy() for n, given in enumerate(tokens)}
    with torch.no_grad():
        arrays |= {f"{n} out 0": net(given).numpy() for n, given in enumerate(tokens)}
    np.savez(path.with_suffix(".npz"), **arrays)
