"""Multiple-choice questions answered by the likelihood of their continuations (Sharma & Vu 2026, Table 7).

The score of a choice is its log-likelihood after the context, at the last exit of a run: summed ("raw") or per token
("length-normalized"). NLL, margin and probability are those of the length-normalized scores. The paper does not print
its formulas; these are ours.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from loopverify.arguments import IGNORE, check_count
from loopverify.errors import InputError
from loopverify.looped import Looped, unroll
from loopverify.measures.held_out import check_looped
from loopverify.measures.per_token import token_losses
from loopverify.measures.questions import Question
from loopverify.models.decoding import device_of
from loopverify.readonly import untouched

__all__ = ["Answer", "ChoiceScores", "score_choices"]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The likelihoods that a model gives to the choices of one question. A tie for the best choice counts as wrong."""

    task: str
    gold: int
    nlls: tuple[float, ...]
    """Negative log-likelihood of each choice, summed over its tokens, nats."""
    lengths: tuple[int, ...]
    """Number of tokens of each choice."""

    @property
    def right(self) -> bool:
        """Whether the gold choice alone has the largest summed log-likelihood."""
        return _lead([-nll for nll in self.nlls], self.gold) > 0

    @property
    def right_normalized(self) -> bool:
        """Whether the gold choice alone has the largest log-likelihood per token."""
        return self.margin > 0

    @property
    def candidate_nll(self) -> float:
        """Mean over all choices of the NLL per token, nats."""
        return -statistics.fmean(self._scores)

    @property
    def margin(self) -> float:
        """Log-likelihood per token of the gold choice minus that of the best other one, nats."""
        return _lead(self._scores, self.gold)

    @property
    def gold_probability(self) -> float:
        """Probability of the gold choice in a softmax over the log-likelihoods per token."""
        gold = self._scores[self.gold]
        return 1 / math.fsum(math.exp(min(score - gold, 700.0)) for score in self._scores)

    @property
    def _scores(self) -> list[float]:
        return [-nll / length for nll, length in zip(self.nlls, self.lengths, strict=True)]


@dataclass(frozen=True, kw_only=True)
class ChoiceScores:
    """The answers of a model to a set of questions."""

    model: str
    loops: int
    """K: the last exit of a run of K loops answers."""
    answers: tuple[Answer, ...]
    """In the order of the questions."""

    @property
    def accuracy(self) -> float:
        """Share of right answers by summed log-likelihood; macro: the mean over tasks."""
        return _macro(self.answers, [answer.right for answer in self.answers])

    @property
    def normalized_accuracy(self) -> float:
        """Share of right answers by log-likelihood per token; macro: the mean over tasks."""
        return _macro(self.answers, [answer.right_normalized for answer in self.answers])

    @property
    def candidate_nll(self) -> float:
        """Mean over questions of the NLL per token, averaged over choices, nats per token."""
        return statistics.fmean(answer.candidate_nll for answer in self.answers)

    @property
    def margin(self) -> float:
        """Mean over questions of gold minus best distractor, nats per token."""
        return statistics.fmean(answer.margin for answer in self.answers)

    @property
    def gold_probability(self) -> float:
        """Mean over questions of the probability of the gold choice."""
        return statistics.fmean(answer.gold_probability for answer in self.answers)


def score_choices(
    model: Looped,
    questions: Iterable[Question],
    loops: int | None = None,
    *,
    batch_size: int = 16,
    max_tokens: int | None = None,
    device: torch.device | str | None = None,
    seed: int = 0,
) -> ChoiceScores:
    """Score every choice of every question at the model's last exit.

    Only sequences of equal length share a batch: nothing is padded, so that a model need not support masks.

    Args:
        questions: see `read_questions`.
        loops: K; the trained loops when omitted.
        batch_size: the most sequences per run.
        max_tokens: the most tokens of context and choice; longer contexts lose their beginning.
        device: device of the tokens; that of the model's first parameter when omitted.

    Raises:
        InputError: there are no questions, a choice leaves no room for a context, or a token id is outside the
            vocabulary.
    """
    check_looped(model)
    questions = tuple(questions)
    if not questions:
        raise InputError("no questions; expected at least one")
    check_count("batch_size", batch_size, "an integer >= 1, the sequences per run")
    loops = model.trained_loops if loops is None else loops
    device = device_of(model) if device is None else device
    nlls = [[math.nan] * len(question.choices) for question in questions]
    for batch in _batches(list(_sequences(questions, max_tokens)), batch_size):
        with untouched(model, seed), torch.no_grad():
            values = _nlls(model, [(sequence, length) for *_, sequence, length in batch], loops, device)
        for (place, choice, *_), value in zip(batch, values, strict=True):
            nlls[place][choice] = value
    answers = tuple(
        Answer(task=q.task, gold=q.gold, nlls=tuple(found), lengths=tuple(map(len, q.choices)))
        for q, found in zip(questions, nlls, strict=True)
    )
    return ChoiceScores(model=model.name, loops=loops, answers=answers)


_Sequence = tuple[int, int, tuple[int, ...], int]
"""(index of the question, index of the choice, tokens of context and choice, number of tokens of the choice)."""


def _sequences(questions: Sequence[Question], max_tokens: int | None) -> Iterator[_Sequence]:
    for place, question in enumerate(questions):
        for choice, ids in enumerate(question.choices):
            if max_tokens is not None and len(ids) >= max_tokens:
                raise InputError(
                    f"choice {choice} of question {place} has {len(ids)} tokens; expected fewer than max_tokens = "
                    f"{max_tokens}, so that a token of the context is left"
                )
            whole = (*question.context, *ids)
            yield place, choice, whole if max_tokens is None else whole[-max_tokens:], len(ids)


def _batches(sequences: list[_Sequence], size: int) -> Iterator[list[_Sequence]]:
    by_length: dict[int, list[_Sequence]] = defaultdict(list)
    for sequence in sequences:
        by_length[len(sequence[2])].append(sequence)
    for length in sorted(by_length, reverse=True):  # longest first: what does not fit into memory fails at once
        for begin in range(0, len(by_length[length]), size):
            yield by_length[length][begin : begin + size]


def _nlls(
    model: Looped, batch: Sequence[tuple[tuple[int, ...], int]], loops: int, device: torch.device | str
) -> list[float]:
    """Negative log-likelihoods of the last `length` tokens of each (sequence, length)."""
    whole = torch.tensor([sequence for sequence, _ in batch], dtype=torch.int64, device=device)
    lengths = torch.tensor([length for _, length in batch], device=device)
    tokens, targets = whole[:, :-1], whole[:, 1:]
    T = tokens.shape[1]
    scored = torch.arange(T, device=device) >= T - lengths[:, None]
    logits = unroll(model, tokens, loops).logits(loops)
    nlls: list[float] = token_losses(logits, targets.where(scored, IGNORE)).double().sum(-1).tolist()
    return nlls


def _lead(scores: Sequence[float], gold: int) -> float:
    """The gold score minus the best other one."""
    return scores[gold] - max(score for place, score in enumerate(scores) if place != gold)


def _macro(answers: Sequence[Answer], right: Sequence[bool]) -> float:
    by_task: dict[str, list[bool]] = defaultdict(list)
    for answer, is_right in zip(answers, right, strict=True):
        by_task[answer.task].append(is_right)
    return statistics.fmean(statistics.fmean(task) for task in by_task.values())
