import pytest

from pyg_topomask.run.advise.candidates import Candidate
from pyg_topomask.run.advise.graph_statistics import GraphStatistics
from pyg_topomask.run.advise.prediction import Prediction
from pyg_topomask.run.advise.ranking import Advice, add_reasons, percent, ranked, slowdown
from pyg_topomask.run.advise.stopwatch import Seconds

GRAPHS = GraphStatistics(
    1, (9, 9, 9), (18, 18, 18), 2.0, 2, 0.0, (4, 4), (0.25, 0.25, 0.25, 0.25), 1, True, None, 3, None
)


def line(name, seconds=None, problem="", mask=None):
    cost = None if seconds is None else Prediction(Seconds(seconds, seconds), Seconds(), 1.0, 1.0, bool(problem))
    attention = "" if name == "none" else name.partition(":")[0]
    return Advice(Candidate(name, attention, mask, ()), prediction=cost, problem=problem)


def test_what_fits_is_ordered_by_time_and_the_rest_follows():
    lines = [line("SAN", problem="no"), line("KMIP", 9.0, "a batch"), line("GRF", 3.0), line("none", 1.0)]
    found = ranked(lines, "wall")
    assert [one.candidate.name for one in found] == ["none", "GRF", "KMIP", "SAN"]
    assert [one.status for one in found] == ["fits", "fits", "too large", "not usable"]


def test_on_a_busy_machine_processor_time_counts():
    busy = [Prediction(Seconds(wall, own), Seconds(), None, 0.0, False) for wall, own in ((6.0, 3.0), (8.0, 2.0))]
    lines = [Advice(Candidate(name, name, None, ()), prediction=cost) for name, cost in zip("ab", busy)]
    assert slowdown(lines) == pytest.approx(3.0)
    assert [one.candidate.name for one in ranked(lines, "processor")] == ["b", "a"]
    assert slowdown([line("SAN", problem="no")]) == 1.0


def test_reasons_are_what_was_measured():
    lines = [line("none", 2.0), line("GRF", 3.0), line("Masked:heat", 8.0, mask="heat"), line("Own", 4.0)]
    add_reasons(lines, 3, GRAPHS, {"grf": 2}, {"features": 0.5, "grf": 1.0, "heat": None}, "wall")
    alone, grf, heat, own = (one.reasons for one in lines)
    assert alone == ["message passing alone: 3 hops, 75 % of connected pairs, one for each layer"]
    assert grf == [
        "1.5 × the time of message passing alone",
        "its mask covers 2 hops, 50 % of connected pairs",
        "its mask tells 100 % of pairs of graphs apart, features 50 %",
    ]
    assert heat == ["4.0 × the time of message passing alone", "weights nodes by diffusion along edges"]
    assert own == ["2.0 × the time of message passing alone"]


def test_a_mask_is_no_gain_if_features_tell_all_graphs_apart():
    lines = [line("GRF", 3.0)]
    add_reasons(lines, 3, GRAPHS, {}, {"features": 1.0, "grf": 1.0}, "wall")
    assert lines[0].reasons == []


@pytest.mark.parametrize(("share", "text"), [(1.0, "100 %"), (0.999999, "99.99 %"), (0.9951, "99.51 %"), (0.5, "50 %")])
def test_only_a_complete_share_is_100_percent(share, text):
    assert percent(share) == text
