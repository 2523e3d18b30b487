"""The answer to one sequence, in plain Python, from its tokens as the documentation of its task defines them."""

from __future__ import annotations

from loopverify.tasks import Circuit, Hops, Paragg


def hops(task: Hops, tokens: list[int]) -> tuple[int, int, list[int]]:
    """(answer, d, the symbols that the walk visits)."""
    n = task.symbols
    *pairs, question = tokens
    pointers = dict(divmod(pair - n, n) for pair in pairs)
    assert sorted(pointers) == list(range(n)), "every symbol points somewhere, once"
    start, d = divmod(question - n - n * n, task.depth)
    walk = [start]
    for _ in range(d + 1):
        walk.append(pointers[walk[-1]])
    return walk[-1], d + 1, walk


GATES = (
    lambda a, b: a and b,
    lambda a, b: a or b,
    lambda a, b: a != b,
    lambda a, b: not (a and b),
    lambda a, b: not (a or b),
    lambda a, b: a == b,
)


def circuit(task: Circuit, tokens: list[int]) -> tuple[int, int, set[int]]:
    """(answer, d, how many gates are on the paths from the questioned gate to the inputs)."""
    w = task.width
    inputs, gates, question = tokens[:w], tokens[w:-1], tokens[-1]
    assert [(token - 2) // 2 for token in inputs] == list(range(w))
    d, asked = divmod(question - 2 - 2 * w - 6 * w * w, w)

    def value(level: int, wire: int) -> tuple[bool, set[int]]:
        if level == 0:
            return bool((inputs[wire] - 2) % 2), {0}
        gate, wires = divmod(gates[(level - 1) * w + wire] - 2 - 2 * w, w * w)
        (a, one), (b, other) = (value(level - 1, below) for below in divmod(wires, w))
        assert wires // w != wires % w, "a gate reads two wires"
        return bool(GATES[gate](a, b)), {1 + length for length in one | other}

    found, lengths = value(d + 1, asked)
    return int(found), d + 1, lengths


def paragg(task: Paragg, tokens: list[int]) -> tuple[int, int, list[list[int]]]:
    """(answer, d, the symbols that each walk visits)."""
    n, w = task.symbols, task.width
    assert len(tokens) == 2 * n + w + 1
    pointers = dict(divmod(token - 2, n) for token in tokens[:n])
    bits = dict(divmod(token - 2 - n * n, 2) for token in tokens[n : 2 * n])
    assert sorted(pointers) == sorted(bits) == list(range(n))
    starts = [token - 2 - n * n - 2 * n for token in tokens[2 * n : -1]]
    d = tokens[-1] - (2 + n * n + 3 * n) + 1
    walks = []
    for start in starts:
        walks.append([start])
        for _ in range(d):
            walks[-1].append(pointers[walks[-1][-1]])
    return sum(bits[walk[-1]] for walk in walks) % 2, d, walks
