"""A user's own file of models, sound and faulty, which a test finds in its current folder."""

import dataclasses
import functools

import torch

from loopverify import Looped
from loopverify.models import LoopedTransformer, TransformerConfig


def transformer(**options):
    torch.manual_seed(0)
    return LoopedTransformer(TransformerConfig(vocab_size=31, d_model=16, layers=1, d_ff=32, **options))


def hidden():
    return transformer()


def raw():
    return transformer(readout="raw")


def boundary():
    return transformer(inter_loop_norm="own")


def no_vocabulary():
    view = transformer().looped()
    return Looped(embed=view.embed, step=view.step, readout=view.readout, trained_loops=2, name="closures")


def in_place():
    view = hidden().looped()

    def step(state, context, loop):
        state += 1.0
        return view.step(state, context, loop)

    return Looped(embed=view.embed, step=step, readout=view.readout, trained_loops=2, vocab_size=31)


def uneven():
    view = hidden().looped()

    def readout(state, context, loop, loops):
        return loop * view.readout(state, context, loop, loops)

    return Looped(embed=view.embed, step=view.step, readout=readout, trained_loops=2, vocab_size=31)


def wants_arguments(size):
    return hidden()


def raises():
    raise RuntimeError("no [weights] here")


def raises_without_a_word():
    raise ValueError()


raises_in_c_without_a_word = functools.partial(next, iter(()))


def exits_without_a_word():
    raise SystemExit


def step_without_a_word():
    view = hidden().looped()

    def step(state, context, loop):
        raise AssertionError

    return Looped(embed=view.embed, step=step, readout=view.readout, trained_loops=2)


def last_token():
    view = hidden().looped()
    return dataclasses.replace(view, readout=lambda *at: view.readout(*at)[:, -1])


def mute():
    return dataclasses.replace(hidden().looped(), readout=lambda *at: None, vocab_size=None)


def too_many_words():
    return dataclasses.replace(hidden().looped(), vocab_size=99)


def no_words():
    return dataclasses.replace(hidden().looped(), vocab_size=0)


def words():
    view = hidden().looped()
    return dataclasses.replace(view, name=":smile: [bold]x[/bold]")


def broken_step():
    view = hidden().looped()

    def step(state, context, loop):
        return state @ torch.zeros(3, 3)

    return Looped(embed=view.embed, step=step, readout=view.readout, trained_loops=2)


number = 7
