"""Trackers write what they are given, resume cleanly, and say what they lack."""

from __future__ import annotations

import json
import math
import sys
import types

import pytest

from rlvlm.errors import ConfigError, RegistryError
from rlvlm.tracking.recorder import Recorder
from rlvlm.tracking.rundir import RunDir, read_metrics
from rlvlm.tracking.trackers import TRACKERS, flatten, register_tracker


@pytest.fixture
def run(tmp_path):
    return RunDir.create(tmp_path / "run")


def record(run, trackers, steps=(1, 2, 3), stage="rlvr", start=0, config=None):
    with Recorder(run, trackers=trackers, show=False, config=config) as recorder:
        recorder.begin(stage, total=max(steps), start=start)
        for step in steps:
            recorder.log(step, {"mean/reward": step / 10})


def test_jsonl_holds_one_object_a_step_with_times(run):
    with Recorder(run, show=False) as recorder:
        recorder.begin("rlvr", total=2)
        with recorder.phase("update"):
            pass
        full = recorder.log(1, {"mean/reward": 0.5, "max/ratio": math.inf})
    (line,) = list(read_metrics(run.metrics))
    assert line["stage"] == "rlvr"
    assert line["step"] == 1
    assert line["mean/reward"] == 0.5
    assert line["max/ratio"] is None
    assert line["time/update"] == full["time/update"]
    assert line["memory/update"] > 0
    assert recorder.seconds == {"update": full["time/update"]}


def test_jsonl_after_a_resume_has_each_step_once(run):
    record(run, ["jsonl"], stage="warmup")
    record(run, ["jsonl"], steps=(1, 2, 3, 4, 5))
    record(run, ["jsonl"], steps=(4, 5, 6), start=3)
    lines = [(line["stage"], line["step"]) for line in read_metrics(run.metrics)]
    assert lines == [("warmup", 1), ("warmup", 2), ("warmup", 3), *[("rlvr", step) for step in range(1, 7)]]


def test_jsonl_line_is_on_disk_before_the_run_ends(run):
    recorder = Recorder(run, show=False)
    recorder.begin("rlvr", total=9)
    recorder.log(1, {"x": 1.0})
    assert json.loads(run.metrics.read_text())["x"] == 1.0
    recorder.close()
    recorder.close()  # twice is fine


def test_tensorboard_events_hold_the_scalars(run):
    record(run, [{"name": "tensorboard", "folder": "tb"}])
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run.path / "tb"), size_guidance={"tensors": 0})
    events.Reload()
    tag = "rlvr/mean/reward"
    assert tag in events.Tags()["tensors"]
    assert [event.step for event in events.Tensors(tag)] == [1, 2, 3]
    assert events.Tensors(tag)[2].tensor_proto.float_val[0] == pytest.approx(0.3)


class FakeRun:
    def __init__(self, log):
        self.log, self.finish = lambda values: log.append(values), lambda: log.append("finish")


def test_wandb_gets_an_axis_of_steps_for_each_stage(run, monkeypatch):
    log, opened = [], {}

    def init(**options):
        opened.update(options)
        return FakeRun(log)

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    record(run, [{"name": "wandb", "mode": "offline", "project": "counts"}], steps=(1, 2), config={"seed": 3})
    assert log == [{"rlvr/mean/reward": 0.1, "rlvr/step": 1}, {"rlvr/mean/reward": 0.2, "rlvr/step": 2}, "finish"]
    assert (opened["project"], opened["mode"], opened["config"]) == ("counts", "offline", {"seed": 3})


def test_every_job_of_every_sweep_is_a_wandb_run_of_its_own_with_the_runs_name(tmp_path, monkeypatch):
    opened = []

    def init(**options):
        opened.append(options)
        return FakeRun([])

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    folders = [tmp_path / "first" / "0", tmp_path / "first" / "1", tmp_path / "second" / "0", tmp_path / "first" / "0"]
    for folder in folders:
        with Recorder(RunDir.create(folder), trackers=["wandb"], show=False) as recorder:
            recorder.begin("rl", total=1)
            recorder.log(1, {"x": 1.0})
    ids = [options["id"] for options in opened]
    assert len(set(ids)) == 3
    assert ids[3] == ids[0], "a resumed run goes on"
    assert [options["name"] for options in opened] == ["first/0", "first/1", "second/0", "first/0"]


def test_trackio_and_mlflow_get_every_step(run, monkeypatch):
    log = []
    trackio = types.SimpleNamespace(
        init=lambda **options: log.append(options["project"]),
        log=lambda values, step: log.append((step, values)),
        finish=lambda: log.append("finish"),
    )
    monkeypatch.setitem(sys.modules, "trackio", trackio)
    record(run, ["trackio"], steps=(1,))
    assert log == ["rlvlm", (1, {"rlvr/mean/reward": 0.1}), "finish"]

    calls = []

    class Client:
        def __init__(self, tracking_uri):
            calls.append(tracking_uri)

        def get_experiment_by_name(self, name):
            return None

        def create_experiment(self, name):
            return "7"

        def create_run(self, experiment, run_name):
            return types.SimpleNamespace(info=types.SimpleNamespace(run_id="r"))

        def log_param(self, run_id, key, value):
            calls.append((key, value))

        def log_metric(self, run_id, key, value, step):
            calls.append((key, value, step))

        def set_terminated(self, run_id):
            calls.append("end")

    monkeypatch.setitem(sys.modules, "mlflow", types.SimpleNamespace(MlflowClient=Client))
    record(run, ["mlflow"], steps=(1,), config={"actor": {"epochs": 2}})
    assert calls[0].startswith("sqlite:///")
    assert calls[1:] == [("actor.epochs", "2"), ("rlvr/mean/reward", 0.1, 1), "end"]


def test_a_tracker_whose_package_is_missing_says_what_to_install(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"tracker 'wandb' needs the package 'wandb'.*rlvlm\[trackers\]"):
        record(run, ["wandb"])


def test_a_users_own_tracker_reads_by_name_and_typos_are_errors(run):
    seen = []

    @register_tracker("seen-by-test")
    def keep(step: int, metrics: dict[str, float], *, factor: float = 1.0) -> None:
        seen.append((step, metrics["mean/reward"] * factor))

    record(run, [{"name": "seen-by-test", "factor": 10.0}], steps=(1,))
    assert seen == [(1, 1.0)]
    with pytest.raises(RegistryError, match="no option 'factr' .did you mean 'factor'"):
        record(run, [{"name": "seen-by-test", "factr": 10.0}])
    with pytest.raises(RegistryError, match="no tracker called 'jsnl' .did you mean 'jsonl'"):
        record(run, ["jsnl"])

    @register_tracker("reads-too-much")
    def wrong(stp: int) -> None: ...

    with pytest.raises(RegistryError, match="reads 'stp'.*did you mean 'step'"):
        TRACKERS.build("reads-too-much")


def test_flatten_keeps_empty_mappings_and_lists_as_values():
    assert flatten({"a": {"b": 1, "c": {}}, "d": [1]}) == {"a.b": 1, "a.c": {}, "d": [1]}
