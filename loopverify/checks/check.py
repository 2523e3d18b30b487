"""A check: one function of a subject to a finding, with its requirements and the traits that explain its failure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import wraps

from torch import nn

from loopverify.adapters import adapt
from loopverify.checks.preserving import preserved
from loopverify.checks.result import (
    CheckResult,
    ConformanceError,
    Finding,
    NotApplicableError,
    UnsoundRunError,
    first_failing,
)
from loopverify.checks.subject import SEED, Subject
from loopverify.checks.traits import TRAITS, known_traits
from loopverify.errors import GradientCutError, InPlaceStepError
from loopverify.looped import Looped

__all__ = ["Check", "check"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Check:
    """One property that a looped model should have. Calling it on a model raises when the property fails."""

    id: str
    catches: str
    """The fault that the check detects, in one line."""
    function: Callable[[Subject], Finding]
    needs: tuple[str, ...] = ()
    """Optional parts of `Looped` that the check requires; without them it is skipped."""
    decides: str | None = None
    """The trait that this check decides: if it is declared, a failure is explained, and a success contradicts it."""
    explained_by: frozenset[str] = frozenset()
    """Further traits that explain a failure."""
    presupposes: tuple[Check, ...] = ()
    """Checks for faults under which a message of this one would mislead: if one of them fails, this one is skipped and
    refers to it."""

    def run(self, model: Looped | nn.Module) -> CheckResult:
        """The result of the check on `model`, which is left unchanged. An exception inside it gives status 'error'.

        Raises:
            InputError: `model` is neither a `Looped` nor a module that `loopverify.adapt` recognizes.
        """
        looped = adapt(model)
        try:
            return self._examine(looped)
        except Exception as error:
            message = f"{type(error).__name__} inside the check: {error}"
            return CheckResult(id=self.id, model=looped.name, status="error", message=message, seed=SEED)

    def __call__(self, model: Looped | nn.Module) -> None:
        """Run the check for a test runner.

        Raises:
            InputError: as `run`.
            ConformanceError: the property does not hold.
            NotApplicableError: the check does not apply.
        """
        __tracebackhide__ = True  # pytest then shows the line of the test instead of this one
        result = self._examine(adapt(model))
        if result.status == "skipped":
            raise NotApplicableError(result.message)
        if result.status == "failed":
            raise ConformanceError(f"{result.id}: {result.message}", [result])

    def _examine(self, model: Looped) -> CheckResult:
        declared = known_traits(model.declares)
        missing = [need for need in self.needs if not getattr(model, need)]
        if missing:
            names = " and ".join(f"{name}=..." for name in missing)
            return self._skip(model, f"the model declares no {' and no '.join(missing)}; give Looped({names}) to check")
        with preserved(model, SEED):
            try:
                subject = Subject(model)
                self._require(subject)
                finding = self.function(subject)
            except NotApplicableError as skip:
                return self._skip(model, str(skip))
            except UnsoundRunError as error:
                return self._skip(model, f"no valid trajectory, see check {error.check}: {error}")
            except InPlaceStepError as error:
                return self._skip(model, f"no valid trajectory, see check state_memory: {error}")
            except GradientCutError as error:
                return self._skip(model, f"no gradient, see check state_gradient: {error}")
        return self._judge(finding, subject, declared)

    def _require(self, subject: Subject) -> None:
        for earlier in self.presupposes:
            try:
                finding = earlier.function(subject)
            except UnsoundRunError:
                raise
            except Exception:
                continue  # that check reports its own exception
            if not finding.held:
                raise NotApplicableError(f"not tested, see check {earlier.id}: {finding.message}")

    def _judge(self, finding: Finding, subject: Subject, declared: frozenset[str]) -> CheckResult:
        result = CheckResult(
            id=self.id,
            model=subject.model.name,
            status="passed" if finding.held else "failed",
            message=finding.message,
            value=finding.value,
            limit=finding.limit,
            unit=finding.unit,
            relation=finding.relation,
            dtype=str(subject.dtype).removeprefix("torch."),
            device=str(subject.device),
            seed=SEED,
        )
        explained = sorted(declared & (self.explained_by | {self.decides}))
        if not finding.held and explained:
            reason = f"declared '{explained[0]}' ({TRAITS[explained[0]]}), which explains it: {finding.message}"
            return replace(result, status="skipped", message=reason)
        if finding.held and self.decides in declared:
            contradiction = (
                f"the model declares '{self.decides}' ({TRAITS[self.decides]}) but does not show it: "
                f"{finding.message}. Likely cause: the declaration outlived the model it was written for. "
                f"Remedy: remove '{self.decides}' from declares."
            )
            return replace(result, status="failed", message=contradiction)
        return result

    def _skip(self, model: Looped, reason: str) -> CheckResult:
        return CheckResult(id=self.id, model=model.name, status="skipped", message=reason, seed=SEED)

    def __repr__(self) -> str:
        return f"<check {self.id}>"


def check(
    *,
    needs: tuple[str, ...] = (),
    decides: str | None = None,
    explained_by: tuple[str, ...] = (),
    presupposes: tuple[Check, ...] = (),
) -> Callable[[Callable[[Subject], Finding | Iterator[Finding]]], Check]:
    """Make a check from a function of a subject. Its name is the id, the first paragraph of its docstring the fault.

    The function returns its finding, or yields several: the first that does not hold is that of the check.
    """
    known_traits([*explained_by, *([decides] if decides else [])])

    def make(function: Callable[[Subject], Finding | Iterator[Finding]]) -> Check:
        @wraps(function)
        def find(subject: Subject) -> Finding:
            found = function(subject)
            return found if isinstance(found, Finding) else first_failing(found)

        catches = " ".join((function.__doc__ or "").strip().split("\n\n")[0].split())
        return Check(
            id=function.__name__,
            catches=catches,
            function=find,
            needs=needs,
            decides=decides,
            explained_by=frozenset(explained_by),
            presupposes=presupposes,
        )

    return make
