"""State that training changes and no state_dict holds."""

import collections
import dataclasses
import enum
import io
import random
import threading
import time
import types
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from torch import nn
from torchmetrics import MeanMetric

from train_anywhere.errors import CheckpointError
from train_anywhere.training import attributes as attribute_state
from train_anywhere.training.attributes import Attributes, pack, unpack, walk
from train_anywhere.training.lightning.checkpoint.rank_state import Torch


class Step(NamedTuple):
    state: np.ndarray
    reward: float


@dataclasses.dataclass
class Best:
    loss: float = 9.0
    weights: list[torch.Tensor] = dataclasses.field(default_factory=list)


class Plain:
    """An object of user code."""


class Proxy:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


class Slots:
    __slots__ = ("count", "rows")

    def __init__(self) -> None:
        self.count, self.rows = 0, [1]


class Phase(enum.Enum):
    WARM, DONE = 1, 2


def module() -> Any:
    """Return a module with attributes of many kinds, as a new process would make it."""
    made: Any = nn.Linear(2, 2)
    made.register_buffer("seen_rows", torch.zeros(1), persistent=False)
    made.count, made.best, made.text, made.nothing = 0, None, "a", None
    made.history, made.window, made.words = [], collections.deque(maxlen=3), set()
    made.table, made.counter = {"a": [1]}, collections.Counter()
    made.array, made.tensor, made.half = np.zeros(3), torch.zeros(3), torch.zeros(2, dtype=torch.bfloat16)
    made.python, made.numpy, made.old = random.Random(1), np.random.default_rng(1), np.random.RandomState(1)
    made.generator = torch.Generator().manual_seed(1)
    made.steps, made.record, made.own = [], Best(), Plain()
    made.own.rows, made.own.inner = [1], Plain()
    made.own.inner.depth = 1
    made.pair = (made.own, [Plain()])
    made.pair[1][0].level = 0
    made.alias = made.history
    made.teacher = [nn.Linear(2, 2)]
    made.drop, made.slots, made.phase = nn.Dropout(0.1), [Slots()], Phase.WARM
    made.space = types.SimpleNamespace(rate=0.1)
    made.metric = MeanMetric()
    parameters = [nn.Parameter(torch.ones(2))]
    made.inner = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    made.schedule = torch.optim.lr_scheduler.StepLR(made.inner, 1, 0.5)
    return made


def train(made: Any) -> None:
    """Change all attributes."""
    made.count, made.best, made.text, made.nothing = 3, float("nan"), "b", (1, "x", 1j, b"y")
    made.history += [1.5, None, "z"]
    made.window.extend(range(5))
    made.words |= {"u", "v"}
    made.table["b"] = {"c": (1, 2)}
    made.table["a"].append(2)
    made.counter.update("aab")
    made.array += 1
    made.tensor += 1
    made.half += 1
    made.seen_rows += 5
    for one in (made.python, made.numpy, made.old):
        one.random()
    torch.rand(1, generator=made.generator)
    made.steps.append(Step(np.ones(2), 0.5))
    made.record.loss = 0.5
    made.record.weights.append(torch.ones(2))
    made.own.rows.append(2)
    made.own.inner.depth = 2
    made.own.new = 7
    made.pair[1][0].level = 4
    made.drop.p, made.phase, made.space.rate = 0.4, Phase.DONE, 0.2
    made.slots[0].rows.append(2)
    made.metric.update(torch.tensor(3.0))
    with torch.no_grad():
        made.teacher[0].weight += 1
    made.inner.param_groups[0]["params"][0].grad = torch.ones(2)
    made.inner.step()
    made.schedule.step()


def watch(made: Any, lines: list[str], **more: Any) -> Attributes:
    held = dict(nn.Module.named_parameters(made)) if isinstance(made, nn.Module) else {}
    return Attributes({"module": made, **more}, Torch([]), lambda: held, lines.append)


def show(made: Any) -> list[Any]:
    """Return all attributes in a form that can be compared."""
    inner = made.inner
    return [
        made.count, str(made.best), made.text, made.nothing, made.history, made.window, sorted(made.words), made.table, made.counter,
        made.array.tolist(), made.tensor.tolist(), made.half.tolist(), made.seen_rows.tolist(), made.python.random(),
        made.numpy.random(), made.old.random(), torch.rand(1, generator=made.generator).item(),
        [(step.state.tolist(), step.reward, type(step)) for step in made.steps], made.record.loss,
        [w.tolist() for w in made.record.weights], made.own.rows, made.own.inner.depth, getattr(made.own, "new", None),
        made.pair[1][0].level, made.drop.p, made.phase, made.space.rate, made.slots[0].rows, Phase.WARM.value,
        made.metric.compute().item(), made.metric._update_count,
        made.alias is made.history, made.pair[0] is made.own, inner.param_groups[0]["lr"],
        [s["momentum_buffer"].tolist() for s in inner.state.values()], made.schedule.last_epoch,
    ]  # fmt: skip


def test_all_kinds_come_back() -> None:
    lines: list[str] = []
    made, resumed = module(), module()
    resumed.teacher[0].load_state_dict(made.teacher[0].state_dict())
    first, second = watch(made, lines), watch(resumed, lines)
    assert first.save() == b""
    train(made)
    second.restore([first.save()])
    for name, value in made.metric.metric_state.items():  # the checkpoint holds them
        setattr(resumed.metric, name, value)
    assert lines == []
    assert show(resumed) == show(made)
    assert torch.equal(resumed.teacher[0].weight, made.teacher[0].weight)
    # a run that is resumed twice keeps them, too
    third = module()
    again = watch(third, lines)
    again.restore([second.save()])
    assert third.count == 3 and third.history == [1.5, None, "z"] and third.window.maxlen == 3


def quiet_things() -> Any:
    made: Any = nn.Linear(2, 2)
    made.lock, made.file, made.lambda_ = threading.Lock(), io.StringIO(), lambda: 1
    made.proxy, made.slots, made.reference = Proxy(), Slots(), weakref.ref(made)
    made.cycle = [Plain()]
    made.cycle[0].back = made.cycle
    made.cycle[0].owner = made
    made.meta = torch.zeros(3, device="meta")
    made.weights = [made.weight]
    made.metric = MeanMetric()
    made.big = [nn.Linear(2000, 2000)]
    made.started, made.path = None, None
    made.run = type("Run", (), {"__module__": "wandb.sdk"})()
    return made


def test_programs_that_need_no_line_get_none() -> None:
    from tqdm import tqdm

    lines: list[str] = []
    made = quiet_things()
    made.bar = tqdm(total=3, file=io.StringIO())
    attributes = watch(made, lines)
    made.bar.update(1)
    made.started, made.path = time.time(), "/tmp/x"
    made.lambda_ = lambda: 2
    made.run.step = 5
    made.lock.acquire()
    with torch.no_grad():
        made.weight += 1
    assert attributes.save() == b""
    assert lines == []


def test_values_with_names_like_times_and_ports_are_kept() -> None:
    lines: list[str] = []
    made, resumed = Plain(), Plain()
    for one in (made, resumed):
        vars(one).update(last_loss=0.0, start_rate=0.0, support=0, last=0.0, master_port=1)
    first, second = watch(made, lines), watch(resumed, lines)
    vars(made).update(last_loss=2.5, start_rate=1.5, support=7, last=time.perf_counter(), master_port=2)
    second.restore([first.save()])
    assert lines == []
    assert vars(resumed) == {"last_loss": 2.5, "start_rate": 1.5, "support": 7, "last": 0.0, "master_port": 1}


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda m: setattr(m, "thing", Proxy()), "module.thing (Proxy) changes in training"),
        (lambda m: setattr(m, "own", Plain()), "module.own (Plain) changes in training"),
        (lambda m: setattr(m, "kind", Plain()), "module.kind (Plain) changes in training"),
        (lambda m: m.bytes.extend(b"x"), "module.bytes (bytearray)"),
        (lambda m: m.objects.put(0, 2), "module.objects (array without values)"),
        (lambda m: m.layers.update({"new": nn.Linear(2, 2)}), "module.layers.new (Linear)"),
        (lambda m: m.rows.extend([("a", 1)] * 20_000), "module.rows (list with 20,000 entries)"),
        (lambda m: setattr(m, "much", np.ones(9 * 2**20)), "module.much (beyond 64 MB in all)"),
        (lambda m: setattr(m, "parts", [object()]), "module.parts[0] (object)"),
        (lambda m: next(m.rest), "module.rest (list_iterator)"),
    ],
)
def test_what_cannot_be_kept_gets_one_line(change: Callable[[Any], Any], line: str) -> None:
    lines: list[str] = []
    made: Any = nn.Linear(2, 2)
    made.rows, made.rest, made.kind = [], iter([1, 2]) if "rest" in line else None, Best()
    made.bytes, made.objects, made.layers = bytearray(b"a"), np.array([None, {}]), nn.ModuleDict()
    attributes = watch(made, lines)
    change(made)
    made.count = 1
    saved = attributes.save()
    assert attributes.save() == saved
    assert len(lines) == 1 and lines[0].startswith(line)
    resumed: Any = nn.Linear(2, 2)
    resumed.rows, resumed.rest = [], None
    watch(resumed, lines).restore([saved])
    assert resumed.count == 1


@pytest.mark.parametrize("values", [[8, 0], [0, 8], [(8, 0), (0, 8)]], ids=str)
def test_a_set_of_numbers_keeps_its_order(values: list[Any]) -> None:
    made, resumed = Plain(), Plain()
    for one in (made, resumed):
        vars(one)["seen"] = set()
    first, second = watch(made, []), watch(resumed, [])
    vars(made)["seen"].update(values)
    second.restore([first.save()])
    assert [*vars(resumed)["seen"]] == [*vars(made)["seen"]]


def test_a_set_of_strings_keeps_its_order_with_a_fixed_hash_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attribute_state, "SAME_HASHES", True)
    alike = [word for word in map(str, range(100)) if hash(word) % 8 == 0][:2]
    test_a_set_of_numbers_keeps_its_order(alike)
    test_a_set_of_numbers_keeps_its_order(alike[::-1])


def test_only_what_is_equal_on_all_ranks_is_restored_on_another_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attribute_state, "SAME_HASHES", False)
    lines: list[str] = []
    saved = []
    alike = [word for word in map(str, range(100)) if hash(word) % 8 == 0][
        :2
    ]  # in a small set their order is that of their arrival
    for rank in range(2):
        made: Any = Plain()
        made.same, made.other, made.seen = 0, np.zeros(2), set()
        attributes = watch(made, lines)
        made.same, made.other[0] = 5, rank
        made.seen.update(reversed(alike) if rank else alike)  # an order in each process
        saved.append(attributes.save())
    resumed: Any = Plain()
    resumed.same, resumed.other, resumed.seen = 0, np.zeros(2), set()
    watch(resumed, lines).restore(saved)
    assert (resumed.same, resumed.other.tolist(), resumed.seen) == (5, [0, 0], {*alike})
    assert lines == [
        "module.other differed between the ranks, and the number of ranks has changed: it starts anew."
    ]


def test_a_removed_attribute_is_removed_again() -> None:
    made, resumed = Plain(), Plain()
    vars(made).update(gone=1)
    vars(resumed).update(gone=1)
    first, second = watch(made, []), watch(resumed, [])
    del vars(made)["gone"]
    second.restore([first.save()])
    assert "gone" not in vars(resumed)


def test_a_walk_stops_at_its_limits() -> None:
    lines: list[str] = []
    made = Plain()
    vars(made).update(objects=[[Plain()] for _ in range(9_999)], more=[[Plain()] for _ in range(9_999)])
    attributes = watch(made, lines)
    vars(made)["count"] = 1
    assert attributes.save() == b""
    assert len(lines) == 1 and "more objects than can be compared" in lines[0]


@pytest.mark.parametrize(
    "tree",
    [
        {"module.x": [{"fields": {}, "class": "os:path"}, True]},
        {"module.x": [{"array": "no"}, True]},
        {"module.x": [{}, True]},
    ],
)
def test_damaged_data_is_refused(tree: dict[str, Any]) -> None:
    made = Plain()
    vars(made)["x"] = 1
    with pytest.raises(CheckpointError, match="can't be read"):
        watch(made, []).restore([pack(tree, {})])
    with pytest.raises(CheckpointError, match="can't be read"):
        unpack(b"damaged")


def test_hyperparameters_that_training_changes_are_kept() -> None:
    class Net(pl.LightningModule):
        def __init__(self, rate: float = 0.1) -> None:
            super().__init__()
            self.save_hyperparameters()

    made, resumed = Net(), Net()
    first, second = watch(made, []), watch(resumed, [])
    made.hparams.rate = 0.2
    second.restore([first.save()])
    assert resumed.hparams.rate == 0.2


class Broken(list[int]):
    """A list of user code that can't be read."""

    def __len__(self) -> int:
        raise RuntimeError("no length")


@pytest.mark.parametrize("early", [True, False])
def test_objects_that_fail_do_not_stop_the_training(early: bool) -> None:
    lines: list[str] = []
    made = Plain()
    vars(made).update(count=0, odd=Broken() if early else None)
    attributes = watch(made, lines)
    vars(made).update(count=1, odd=Broken())
    assert attributes.save() == b"" and attributes.save() == b""
    assert lines == [
        "attributes that training changes are not in the checkpoints: reading them failed (RuntimeError('no length'))."
    ]


def test_without_a_start_to_compare_with_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    made = Plain()
    vars(made).update(count=0, rows=[])
    with monkeypatch.context() as small:
        small.setattr(walk, "OBJECTS", 0)
        attributes = watch(made, lines)
    vars(made)["count"] = 1
    assert attributes.save() == b"" and len(lines) == 1


def test_properties_are_not_read() -> None:
    class Loud:
        @property
        def data(self) -> None:
            raise AssertionError("read")

    made: Any = Loud()
    made.count = 0
    attributes = watch(made, [])
    made.count = 1
    assert attributes.save()
