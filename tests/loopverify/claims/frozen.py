"""Every claim as it was before its first run: metric, relation, limit, unit and alpha, in frozen.json.

$ python -m tests.loopverify.claims.frozen     # freezes claims that are new; what is frozen it leaves as it is
"""

from __future__ import annotations

import json
from pathlib import Path

from loopverify.claims import CLAIMS, Claim

FILE = Path(__file__).with_suffix(".json")
Frozen = dict[str, list[str | float]]


def frozen() -> Frozen:
    found: Frozen = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def as_frozen(claim: Claim) -> list[str | float]:
    return [claim.metric, claim.form.relation, claim.form.limit, claim.unit, claim.alpha]


def freeze_new() -> None:
    rows = {claim.id: as_frozen(claim) for claim in CLAIMS.values()} | frozen()
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(row, ensure_ascii=False)}" for name, row in rows.items())
    FILE.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    freeze_new()
