"""The registry: what a signature says, options and their messages, plug-ins."""

from __future__ import annotations

import pickle
from typing import Literal

import pytest
import torch

from rlvlm.cli.parts import MODULES, registry_of
from rlvlm.errors import RegistryError
from rlvlm.registry import KINDS, Option, Registry, _type_hints, load_plugins

Form = Literal["token", "sequence"]


@pytest.fixture
def registry():
    known = {"logp", "prox_logp", "advantages", "values"}
    yield Registry("loss", "test_losses", readable=lambda: known, traits={"scope": "token"})
    KINDS.pop("test_losses", None)


def test_the_signature_says_what_a_function_reads_and_its_options(registry):
    @registry.register("clip", scope="sequence")
    def clip(logp, advantages, values=None, *, clip_low: float = 0.2, clip_high: float):
        """Clips.

        More.
        """
        return logp, advantages, values, clip_low, clip_high

    entry = registry.get("clip")
    assert (entry.needs, entry.optional) == (("logp", "advantages"), ("values",))
    assert entry.options["clip_high"].default is Option.REQUIRED
    assert entry.traits == {"scope": "sequence"}
    assert registry.describe() == [("clip", "Clips.")]
    part = registry.build({"name": "clip", "clip_high": 0.3})
    assert part({"logp": 1, "advantages": 2, "prox_logp": 9}) == (1, 2, None, 0.2, 0.3)
    assert part({"logp": 1, "advantages": 2, "values": 5}) == (1, 2, 5, 0.2, 0.3)
    assert clip(1, 2, clip_high=1.0) == (1, 2, None, 0.2, 1.0), "the decorator returns the function unchanged"


def test_a_class_takes_options_in_init_and_reads_in_call(registry):
    @registry.register("stateful")
    class Stateful:
        def __init__(self, start: int = 3) -> None:
            self.count = start

        def __call__(self, logp):
            self.count += 1
            return logp + self.count

        def state_dict(self):
            return {"count": self.count}

        def load_state_dict(self, state):
            self.count = state["count"]

    part, other = registry.build({"name": "stateful", "start": 10}), registry.build("stateful")
    assert part.needs == ("logp",)
    assert part({"logp": 1}) == 12
    other.load_state_dict(part.state_dict())
    assert other({"logp": 0}) == 12


def test_wrong_names_and_options_get_one_sentence_with_the_nearest(registry):
    @registry.register("clip")
    def clip(logp, *, clip_high: float = 0.2, mode: Literal["a", "b"] = "a", n: int = 1, cap: float | None = None):
        return clip_high

    with pytest.raises(RegistryError, match=r"no loss called 'clp' \(did you mean 'clip'\?\)"):
        registry.build("clp")
    with pytest.raises(RegistryError, match=r"'clip' has no option 'clip_hgih' \(did you mean 'clip_high'\?\)"):
        registry.build({"name": "clip", "clip_hgih": 0.3})
    with pytest.raises(RegistryError, match=r"option 'clip_high' of loss 'clip' takes float, got 'high'"):
        registry.build({"name": "clip", "clip_high": "high"})
    with pytest.raises(RegistryError, match=r"option 'mode' .*Literal\['a', 'b'\], got 'c'"):
        registry.build({"name": "clip", "mode": "c"})
    with pytest.raises(RegistryError, match="option 'n' .*int, got True"):
        registry.build({"name": "clip", "n": True})
    assert registry.build({"name": "clip", "cap": None, "clip_high": 1}).options == {"cap": None, "clip_high": 1}
    with pytest.raises(RegistryError, match="a name or a mapping with 'name', got 3"):
        registry.build(3)
    with pytest.raises(RegistryError, match=r"reads 'logp', which is not at hand \(did you mean 'logpp'\?\)"):
        registry.build("clip")({"logpp": 1})


def test_a_part_that_reads_an_unknown_field_is_refused_when_it_is_built(registry):
    @registry.register("odd")
    def odd(logp, advantage):
        return logp

    with pytest.raises(RegistryError, match=r"reads 'advantage', which .*did you mean 'advantages'"):
        registry.build("odd")


def test_signatures_that_name_nothing_are_refused(registry):
    with pytest.raises(RegistryError, match=r"parameter '\*\*kwargs', which names nothing"):
        registry.register("loose")(lambda logp, **kwargs: logp)
    with pytest.raises(RegistryError, match="class without __call__"):
        registry.register("inert")(type("Inert", (), {}))
    with pytest.raises(RegistryError, match=r"declares 'scop', .*did you mean 'scope'"):
        registry.register("clip", scop="token")


def test_a_name_is_taken_once_unless_overridden(registry):
    registry.register("same")(lambda logp: 1)

    def second(logp):
        return 2

    with pytest.raises(RegistryError, match="'same' is registered already by .*override=True"):
        registry.register("same")(second)
    registry.register("same", override=True)(second)
    assert registry.build("same")({"logp": 0}) == 2


def test_plugin_files_load_once_and_their_functions_can_be_pickled(registry, tmp_path):
    file = tmp_path / "my_parts.py"
    file.write_text(
        "from rlvlm.registry import KINDS\n"
        "COUNT = []\n"
        "@KINDS['test_losses'].register('mine')\n"
        "def mine(logp, *, gain: float = 2.0):\n    return logp * gain\n"
    )
    first, again = load_plugins([file])[0], load_plugins([str(file)])[0]
    assert first is again
    assert registry.build({"name": "mine", "gain": 3.0})({"logp": 2}) == 6.0
    assert pickle.loads(pickle.dumps(first.mine)) is first.mine
    with pytest.raises(RegistryError, match=r"plugin file '.*nowhere\.py' does not exist"):
        load_plugins([tmp_path / "nowhere.py"])
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0\n")
    with pytest.raises(RegistryError, match=r"broken\.py' failed to load: ZeroDivisionError: division by zero"):
        load_plugins([broken])
    with pytest.raises(RegistryError, match="plugin 'no_such_module' can't be imported"):
        load_plugins(["no_such_module"])


class _Point:
    def __init__(self, name, load):
        self.name, self.value, self.load = name, f"pkg:{name}", load


def test_entry_points_are_read_lazily_and_a_broken_one_is_named(registry, monkeypatch):
    calls = []

    def good():
        calls.append(1)
        return lambda logp: logp

    def bad():
        raise ImportError("no such thing")

    points = [_Point("outside", good), _Point("broken", bad)]
    monkeypatch.setattr("rlvlm.registry.entry_points", lambda group: points if group == "rlvlm.test_losses" else [])
    assert registry.names() == ["broken", "outside"]
    assert calls == []
    assert registry.build("outside")({"logp": 4}) == 4
    with pytest.raises(
        RegistryError, match=r"'broken' of package entry point 'pkg:broken' failed to load: ImportError"
    ):
        registry.build("broken")


def test_a_wrong_word_is_refused_by_a_part_that_a_decorator_of_another_module_wraps(registry):
    @registry.register("wrapped")
    @torch.no_grad()
    def wrapped(logp, *, form: Form = "token"):
        return form

    assert registry.build({"name": "wrapped", "form": "sequence"})({"logp": 0}) == "sequence"
    with pytest.raises(
        RegistryError,
        match=r"option 'form' of loss 'wrapped' takes .*'token', 'sequence'.*, got 'tokn' \(did you mean 'token'\?\)\.",
    ):
        registry.build({"name": "wrapped", "form": "tokn"})


def test_every_option_of_the_librarys_own_parts_has_a_type_that_is_checked():
    for kind in MODULES:
        for entry in registry_of(kind).own_entries():
            unread = [option.name for option in entry.options.values() if isinstance(option.annotation, str)]
            unread += [name for name in entry.options if name not in _type_hints(_takes_options(entry.target))]
            assert not unread, (kind, entry.name, unread)


def _takes_options(target):
    return target.__init__ if isinstance(target, type) else target
