"""Text for training: sources, the paper's tokenizer, and windows of a token stream."""

from __future__ import annotations

from train.data.corpus import Corpus, DataSpec, load_corpus
from train.data.shards import Tokens
from train.data.text import Document, Documents
from train.data.tokenizer import Tokenizer
from train.data.windows import Windows

__all__ = ["Corpus", "DataSpec", "Document", "Documents", "Tokenizer", "Tokens", "Windows", "load_corpus"]
