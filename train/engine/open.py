"""Opening the examples of a run."""

from __future__ import annotations

from train.data import Examples, TaskExamples, TaskSpec, TextExamples, load_corpus
from train.specification import RunSpec
from train.store import RunStore

__all__ = ["open_examples"]


def open_examples(spec: RunSpec, store: RunStore) -> Examples:
    """The examples of a run; a text is tokenized unless its tokens are in the store's cache."""
    p = spec.preset
    if isinstance(p.data, TaskSpec):
        return TaskExamples(spec=p.data, batch=p.batch, held_out_count=p.eval_windows)
    corpus = load_corpus(p.data, store.root / "data")
    return TextExamples(corpus=corpus, length=p.seq_len, stride=p.stride, batch=p.batch)
