"""Time that the report counts as waiting for a slow rank."""

import json

from engine.tests.monitor.test_node import MakeRun
from train_anywhere.monitor.heartbeat import Heartbeat
from train_anywhere.monitor.live import Times, slowest_rank_wait
from train_anywhere.runs.attempts import STARTED


def test_the_slowest_rank_against_the_middle_one_of_this_attempt_s_nodes(make_run: MakeRun) -> None:
    _, run = make_run()
    run.monitor.mkdir()
    work = {"node1": [(10.0, 2.0), (11.0, 2.0)], "node2": [(30.0, 2.0)], "node9": [(500.0, 0.0)]}
    for host, ranks in work.items():
        content = {"host": host, "ranks": [{"own": own, "data": data} for own, data in ranks]}
        (run.monitor / f"ranks-{host}.json").write_text(json.dumps(content))
    (run.monitor / "ranks-node3.json").write_text('{"host": "node3", "ranks": 5}')
    assert slowest_rank_wait(run, {"node1", "node2", "node3"}) == 19.0  # node9 was another attempt's
    assert slowest_rank_wait(run, {"node2"}) == 0.0


def test_the_time_before_this_process_is_of_the_job(make_run: MakeRun) -> None:
    _, run = make_run()
    assert Times(run, Heartbeat(), {})()["before"] == 0.0
    assert Times(run, Heartbeat(), {STARTED: "1000000000"})()["before"] > 1e8
    assert Times(run, Heartbeat(), {STARTED: "now"})()["before"] == 0.0
