"""Training data: text (sources, the paper's tokenizer, windows of a token stream) and instances of tasks."""

from __future__ import annotations

from train.data.corpus import Corpus, DataSpec, load_corpus
from train.data.examples import Examples, TextExamples
from train.data.instances import TaskExamples, TaskSpec
from train.data.shards import Tokens
from train.data.text import Document, Documents
from train.data.tokenizer import Tokenizer
from train.data.windows import Windows

__all__ = [
    "Corpus",
    "DataSpec",
    "Document",
    "Documents",
    "Examples",
    "TaskExamples",
    "TaskSpec",
    "TextExamples",
    "Tokenizer",
    "Tokens",
    "Windows",
    "load_corpus",
]
