"""Figures: the data they draw, their labels, and SVG that lives inside a page."""

from __future__ import annotations

import math
import re
import sys
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from loopverify.claims import Run, one_study
from loopverify.errors import MissingDependencyError
from loopverify.report.chart import Chart, Line
from loopverify.report.charts import charts
from loopverify.report.figures import draw
from tests.loopverify.report.sample import STUDY, sample_histories, sample_run, sample_runs


def made(seeds: int = 3) -> dict[str, Chart]:
    runs = one_study(sample_runs(seeds))
    return {chart.name: chart for chart in charts(runs, sample_histories(runs))}


def line(chart: Chart, condition: str) -> Line:
    return next(line for line in chart.lines if line.condition == condition)


def test_lines_are_mean_least_and_largest_over_seeds() -> None:
    norms = line(made()["norm-by-loop"], "per_loop/raw")
    assert (norms.x, norms.n) == ((0, 1, 2, 3, 4), 3)
    assert (norms.low[-1], norms.mean[-1], norms.high[-1]) == pytest.approx((9.2, 9.66, 10.12))  # +0, 5, 10 percent
    exits = line(made()["ce-by-exit"], "terminal/rmsnorm")
    assert exits.x == (1, 2, 3, 4)
    assert (exits.low[0], exits.mean[0], exits.high[0]) == pytest.approx((3.034, 3.038, 3.042))
    training = line(made()["norm-in-training"], "per_loop/rmsnorm")
    assert (training.x[0], training.x[-1]) == (100, 1500)
    assert training.low[-1] == pytest.approx(3407)


def test_labels_carry_units() -> None:
    assert [(chart.y_label, chart.log) for chart in made().values()] == [
        ("‖H_k‖₂ (L2 over channels)", True),
        ("‖H_4‖₂ (L2 over channels)", True),
        ("CE(k) (nats per token)", False),
    ]


def test_cross_entropy_is_logarithmic_when_a_linear_axis_would_flatten_it() -> None:
    runs = [sample_run("per_loop/raw", 0), sample_run("terminal/raw", 0, ce_1=37.2)]
    assert next(chart for chart in charts(runs, {}) if chart.name == "ce-by-exit").log


def test_what_is_not_there_is_not_drawn() -> None:
    runs = sample_runs(1, ["per_loop/raw"])
    assert [chart.name for chart in charts(runs, {})] == ["norm-by-loop", "ce-by-exit"]
    assert [chart.name for chart in charts(runs, {runs[0].key: []})] == ["norm-by-loop", "ce-by-exit"]
    assert charts([], {}) == ()
    diverged = [sample_run("per_loop/raw", 0), sample_run("per_loop/raw", 1, norm_4=math.nan, norm_3=math.inf)]
    assert line(charts(diverged, {})[0], "per_loop/raw").high[-1] == pytest.approx(9.2)


@pytest.mark.parametrize("name", ["norm-by-loop", "norm-in-training", "ce-by-exit"])
def test_svg_is_labeled_and_takes_the_ink_of_the_page(name: str) -> None:
    chart = made()[name]
    svg = draw(chart, "tiny")
    root = ElementTree.fromstring(svg)
    assert root.attrib["aria-label"] == chart.title
    assert "width" not in root.attrib
    text = {"".join(node.itertext()).strip() for node in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {chart.x_label, chart.y_label, "preset tiny, n = 3 seeds", *STUDY} <= text
    assert "currentColor" in svg
    assert "#010203" not in svg
    assert "<metadata" not in svg
    assert svg == draw(chart, "tiny")


def measured_run(condition: str, seed: int) -> Run:
    """The run of a study, with what is measured after training: made-up numbers."""
    run = sample_run(condition, seed)
    swept = {f"sweep_ce@{x}": 3.0 + seed + float(x) for x in ("10", "0.1", "1", "3.16")}
    looped = {f"{kind}@{k}": (seed + 1) / k for kind in ("b", "angular_step") for k in range(30, 0, -1)}
    return replace(run, metrics=run.metrics | swept | looped | {"b@late": 9.0, "sweep_span": 1.0})


def test_what_was_measured_after_training_is_drawn_too() -> None:
    drawn = {chart.name: chart for chart in charts([measured_run("per_loop/raw", seed) for seed in (0, 1)], {})}
    assert list(drawn)[2:] == ["update-by-loop", "turning-by-loop", "ce-by-scale"]
    scale = line(drawn["ce-by-scale"], "per_loop/raw")
    assert scale.x == (0.1, 1, 3.16, 10)
    assert (scale.low, scale.high) == ((3.1, 4, 6.16, 13), (4.1, 5, 7.16, 14))
    update = line(drawn["update-by-loop"], "per_loop/raw")
    assert (update.x, update.mean[-1]) == (tuple(range(1, 31)), pytest.approx(0.05))
    svg = draw(drawn["ce-by-scale"], "tiny")
    assert ">0.1<" in svg
    assert ">10<" in svg


def test_every_seed_is_a_point_where_both_axes_are_measured() -> None:
    runs = [replace(run, metrics={**run.metrics, "r@4": 0.25}) for run in sample_runs(2, ["per_loop/raw"])]
    drawn = {chart.name: chart for chart in charts([*runs, *sample_runs(1, ["per_loop/rmsnorm"])], {})}
    (gap,) = drawn["gap-by-visibility"].lines
    # CE(1) - CE(4) = 2.233 - 2.188 of both seeds; what was not measured is no point.
    assert (gap.condition, gap.x, gap.mean, gap.n) == ("per_loop/raw", (0.25, 0.25), pytest.approx((0.045, 0.045)), 2)
    assert "perplexity-by-speed" not in drawn


def test_conditions_of_one_readout_look_different() -> None:
    names = ["per_loop/rmsnorm", "terminal/rmsnorm", "exit_weighted/rmsnorm", "per_loop+penalty/rmsnorm"]
    names += ["per_loop+latent/rmsnorm", "per_loop/rmsnorm/inter_loop_norm", "terminal/rmsnorm/damped"]
    styles = set()
    for name in names:
        one = Line(condition=name, n=1, x=(1.0, 2.0), mean=(1.0, 2.0), low=(1.0, 2.0), high=(1.0, 2.0))
        chart = Chart(name="one", title="t", x_label="x", y_label="y", log=False, whole_x=False, lines=(one,))
        path = re.search(r'style="(fill: none;[^"]*stroke-width: 1.8[^"]*)"', draw(chart, "tiny"))
        assert path is not None
        styles.add(path[1])
    assert len(styles) == len(names)


def test_ids_of_figures_do_not_meet_in_one_page() -> None:
    ids = [re.findall(r'\bid="([^"]+)"', draw(chart, "tiny")) for chart in made().values()]
    flat = [name for of_chart in ids for name in of_chart]
    assert len(flat) == len(set(flat))
    for chart in made().values():
        svg = draw(chart, "tiny")
        used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg))
        assert used
        assert used <= set(re.findall(r'\bid="([^"]+)"', svg))


def test_seeds_are_told_by_condition_where_they_differ() -> None:
    runs = one_study([*sample_runs(1, ["per_loop/raw"]), *sample_runs(3, ["per_loop/rmsnorm"])])
    svg = draw(charts(runs, {})[0], "tiny")
    assert "n by condition" in svg
    assert "per_loop/raw (n = 1)" in svg
    assert "per_loop/rmsnorm (n = 3)" in svg
    assert "n = 1 seed<" in draw(charts(sample_runs(1), {})[0], "tiny")


def test_names_are_escaped() -> None:
    odd = Line(condition="a<b>&c", n=1, x=(1.0,), mean=(1.0,), low=(1.0,), high=(1.0,))
    chart = Chart(name="odd", title='say "x" & <y>', x_label="x", y_label="y", log=True, whole_x=True, lines=(odd,))
    root = ElementTree.fromstring(draw(chart, "<tiny>"))
    assert root.attrib["aria-label"] == 'say "x" & <y>'
    assert "a<b>&c" in "".join(root.itertext())


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'loopverify\[report\]'"):
        draw(made()["ce-by-exit"], "tiny")
