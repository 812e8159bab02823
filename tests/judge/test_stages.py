import json

from triage_monitor.judge.stages import Stage, Transition


def test_stage_names_are_the_published_ones() -> None:
    published = {"warming_up", "not_observable", "healthy", "drift", "pre_terminal", "terminal"}
    assert {stage.value for stage in Stage} == published


def test_transition_survives_json() -> None:
    evidence = {"q0.001_all": {"value": -3.1, "baseline": -1.5, "ratio": 3.1 / 1.5, "level": 1.5}}
    transition = Transition(120, 1, Stage.HEALTHY, Stage.DRIFT, "drift", "q0.001_all is out", evidence)
    assert Transition.from_dict(json.loads(json.dumps(transition.to_dict()))) == transition
