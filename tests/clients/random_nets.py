"""Random nets of one to eight operators or blocks, as exporters write them: by opset, rank and open axes.

PYTHONPATH=tests:tests/support python -m clients.random_nets CLIENT [FIRST [COUNT]]    shows what is not right
"""

import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from cases import Arrays
from running import run

import rnn_lowering as rl
from clients.driving import drive, judge
from clients.growing_nets import FLOAT, RandomNet, Step, UnfitError, info_of, model_of
from clients.random_blocks import BLOCKS
from clients.random_steps import STEPS


def net_of(seed: int, blocks: Sequence[Step] = BLOCKS) -> tuple[onnx.ModelProto, list[Arrays]]:
    """Return a net, of steps and some blocks, and its inputs at one size or, with open axes, at two."""
    net = RandomNet(seed)
    behind_gru, rank = net.chance(0.3), int(net.pick((1, 2, 3, 3, 4, 4)))
    sizes = [int(net.pick((1, 2, 3, 4, 5, 6))) for _ in range(3 if behind_gru else rank)]
    free = range(2 if behind_gru else rank)
    opened = (
        [] if net.chance(0.4) else sorted(map(int, net.rng.choice(free, net.pick((1, len(free))), replace=False)))
    )
    first = [net.pick((3, 4, 5)) if n in opened else size for n, size in enumerate(sizes)]
    second = [size + 2 if n in opened else size for n, size in enumerate(first)]
    net.values["x"] = net.numbers(*first), net.numbers(*second)
    last = _gru(net) if behind_gru else "x"
    wanted = net.pick((1, 1, 2, 3, 4, 6, 8) if blocks else (1, 1, 2, 3))
    for _ in range(40):
        state = len(net.nodes), len(net.constants)
        try:
            last = net.pick(blocks if blocks and net.chance(0.4) else STEPS)(net, last)
        except UnfitError:
            del net.nodes[state[0] :], net.constants[state[1] :]
            continue
        wanted -= 1
        if not wanted:
            break
    last = net.add("Cast", last, to=FLOAT) if last == "x" or net.values[last][0].dtype == bool else last
    last = last if net.values[last][0].ndim else net.by_axes("Unsqueeze", last, [0])
    given = [last, *(_earlier(net, last) if blocks and net.chance(0.2) else [])]
    outputs = [info_of(name, net.values[name][0], net.open_axes(name)) for name in given]
    model = model_of(net.nodes, [info_of("x", net.values["x"][0], opened)], outputs, net.constants, net.opset)
    return model, [{"x": array} for array in net.values["x"][: 2 if opened else 1]]


def _earlier(net: RandomNet, last: str) -> list[str]:
    """Return another value that the model returns too."""
    computed = [name for node in net.nodes for name in node.output if name[0] == "v" and name != last]
    floats = [name for name in computed if net.values[name][0].dtype == np.float32]
    return [net.pick(floats)] if floats else []


def _gru(net: RandomNet) -> str:
    weights = [net.constant(net.numbers(1, 9, size) / 2) for size in (net.shape("x")[2], 3)]
    Y = net.add("GRU", "x", *weights, outputs=2, hidden_size=3)
    return net.by_axes("Squeeze", Y, [1]) if net.chance(0.7) else Y


def measured(
    client: Any, seeds: Iterable[int], folder: Path, blocks: Sequence[Step] = BLOCKS
) -> Iterator[tuple[int, str, str]]:
    """Yield what becomes of each net in a client: an outcome of `judge` or "refused", and what is said about it."""
    jobs, expected = {}, {}
    for seed in seeds:
        model, feeds = net_of(seed, blocks)
        try:
            lowered = rl.lower(model, target=client)
        except rl.UnsupportedError as error:
            yield seed, "refused", str(error)
            continue
        for n, feed in enumerate(feeds):
            jobs[f"{seed} {n}"], expected[f"{seed} {n}"] = (lowered, feed), run(model, feed)
    for name, got in drive(client, jobs, folder, seconds=20).items():
        yield int(name.split()[0]), *judge(got, expected[name])


def main(client: str, first: int = 0, count: int = 300) -> None:
    outcomes = Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        for seed, outcome, said in measured(client, range(first, first + count), Path(folder)):
            outcomes[outcome] += 1
            if outcome != "right":
                print(seed, outcome, "-".join(node.op_type for node in net_of(seed)[0].graph.node), said[:200])
    print(dict(outcomes))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
