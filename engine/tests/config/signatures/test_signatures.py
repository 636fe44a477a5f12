"""Real names, names that do not exist, and strings that are not names. Nothing is imported."""

import inspect
import pkgutil

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from engine.tests.config.signatures.conftest import Project
from tools.testing.processes import run_python
from train_anywhere.config.signatures import Definition, TargetError, read

NAMES = {
    "torch.optim.AdamW": ("torch.optim.adamw.AdamW", "lightning"),
    "torch.optim.Muon": ("torch.optim._muon.Muon", "lightning"),
    "torch.optim.lr_scheduler.OneCycleLR": ("torch.optim.lr_scheduler.OneCycleLR", "lightning"),
    "torch.nn.Linear": ("torch.nn.modules.linear.Linear", "lightning"),
    "torch.nn.CrossEntropyLoss": ("torch.nn.modules.loss.CrossEntropyLoss", "lightning"),
    "torchmetrics.classification.BinaryAccuracy": ("torchmetrics.classification.accuracy.BinaryAccuracy", "lightning"),
    "lightning.pytorch.callbacks.LearningRateMonitor": ("lightning.pytorch.callbacks.lr_monitor.LearningRateMonitor", "lightning"),
    "lightning.pytorch.callbacks.EarlyStopping": ("lightning.pytorch.callbacks.early_stopping.EarlyStopping", "lightning"),
    "lightning.pytorch.loggers.WandbLogger": ("lightning.pytorch.loggers.wandb.WandbLogger", "lightning"),
    "lightning.pytorch.LightningModule": ("lightning.pytorch.core.module.LightningModule", "lightning"),
    "keras.optimizers.Lion": ("keras.src.optimizers.lion.Lion", "keras"),
    "keras.optimizers.SGD": ("keras.src.optimizers.sgd.SGD", "keras"),
    "keras.callbacks.EarlyStopping": ("keras.src.callbacks.early_stopping.EarlyStopping", "keras"),
    "keras.Model": ("keras.src.models.model.Model", "keras"),
    "src.data.digits.open_digits": ("src.data.digits.open_digits", None),
}  # fmt: skip
"""Name -> where it is defined, and its framework."""


def test_where_a_real_name_is_defined() -> None:
    assert {dotted: (read(dotted).name, read(dotted).framework) for dotted in NAMES} == NAMES
    kinds = {dotted: read(dotted).kind for dotted in NAMES}
    assert kinds == {dotted: "function" if dotted.endswith("open_digits") else "class" for dotted in NAMES}


def test_a_real_signature_is_the_one_that_an_import_shows() -> None:
    for dotted in NAMES:
        if dotted.startswith(("torch.", "lightning.pytorch.callbacks", "torchmetrics")):
            real = inspect.signature(pkgutil.resolve_name(dotted)).parameters.values()
            named = [p for p in real if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
            found = [(p.name, p.required) for p in read(dotted).parameters.values()][: len(named)]
            assert found == [(p.name, p.default is p.empty) for p in named], dotted


def test_a_keras_optimizer_takes_no_other_names_than_it_and_its_bases() -> None:
    found = read("keras.optimizers.SGD")
    assert {"learning_rate", "momentum", "clipnorm", "name"} <= found.parameters.keys()
    assert not found.takes_any
    assert "lr" not in found.parameters


def test_bases_and_attributes_of_a_lightning_module(project: Project) -> None:
    found = project(
        "import lightning.pytorch as pl\nclass LitModule(pl.LightningModule):\n    batches = 'index'\n"
        "    def __init__(self, width: int = 8, **kwargs):\n        super().__init__(**kwargs)\n"
    )("mine.LitModule")
    assert found.bases[0] == "lightning.pytorch.core.module.LightningModule"
    assert found.bases[-1] == "torch.nn.modules.module.Module"
    assert found.framework == "lightning"
    assert found.attributes["batches"] == "index"
    assert found.attributes["CHECKPOINT_HYPER_PARAMS_KEY"] == "hyper_parameters"
    assert found.parameters["width"].hint is int


def test_a_name_is_read_in_few_function_calls() -> None:
    """At most 75,000 were counted for one name. An import of torch makes 100 times as many."""
    program = (
        "import sys; from train_anywhere.config.signatures import read\n"
        f"for name in {list(NAMES)}:\n"
        "    calls = []; sys.setprofile(lambda *_: calls.append(1)); read(name); sys.setprofile(None)\n"
        "    print(name, len(calls))\n"
    )
    done = run_python("-c", program, check=True)
    calls = {name: int(count) for name, count in map(str.split, done.stdout.splitlines())}
    assert calls.keys() == NAMES.keys()
    assert {name: count for name, count in calls.items() if count > 300_000} == {}


WRONG = {
    "torch.optim.AddamW": "torch.optim has no AddamW. Did you mean 'AdamW'?",
    "torch.optim.adamww.AdamW": "torch.optim has no adamww. Did you mean 'AdamW'?",
    "torhc.optim.AdamW": "package 'torhc' is not found in this project or its environment. Did you mean 'torch'?",
    "timm.create_model": "package 'timm' is not found in this project or its environment; a file of your own must be below the project "
    "or on PYTHONPATH; another package: pip install timm.",
    "keras.optimizers.Lionn": "keras.optimizers has no Lionn. Did you mean 'Lion'?",
    "torch.optim.AdamW.buildd": None,
    "src.data.digits": "src.data.digits is a module; name a class or function in it: open_digits.",
    "src.data.digits.open_digit": "src.data.digits has no open_digit. Did you mean 'open_digits'?",
    "src": None,
    "builtins.prnt": "builtins has no prnt. Did you mean 'print'?",
    "src/mine.py": "'src/mine.py' is a path; write the name with dots, such as src.mine.Name.",
    "./src/mine.py:Lit": "'./src/mine.py:Lit' is a path; write the name with dots, such as src.mine.Name.",
    ".mine.Lit": "'.mine.Lit' has nothing before, after or between two of its dots.",
    "mine..Lit": "'mine..Lit' has nothing before, after or between two of its dots.",
    "mine.class": "'mine.class' can't be a name in Python because of 'class'.",
    "mine.2d": "'mine.2d' can't be a name in Python because of '2d'.",
    "": "is not a name; write it with dots, such as mine.Network.",
    "a" * 1000: "is not a name; write it with dots, such as mine.Network.",
}


def test_what_does_not_exist_is_refused() -> None:
    said = {}
    for dotted in WRONG:
        with pytest.raises(TargetError) as refused:
            read(dotted)
        said[dotted] = str(refused.value)
    assert said == {dotted: sentence or said[dotted] for dotted, sentence in WRONG.items()}
    assert [sentence for sentence in said.values() if not sentence.endswith((".", "?"))] == []


def test_what_source_does_not_tell_is_unreadable_and_no_error() -> None:
    names = [
        "builtins.print", "tensorflow.keras.Model", "torch.randn", "math.sqrt", "torch._C.Generator", "train_anywhere.files.ROOT",
        "sys.path",
    ]  # fmt: skip
    found = {dotted: read(dotted) for dotted in names}
    known = {name: (f.kind, f.takes_any, dict(f.parameters)) for name, f in found.items()}
    assert known == dict.fromkeys(names, ("unreadable", True, {}))


def test_messages_about_own_files(project: Project) -> None:
    mine = project("class LitModule:\n    def build(self): ...\nlr = 3\n", broken="def f(:\n")
    for dotted, words in {
        "mine.LitModul": "mine has no LitModul. Did you mean 'LitModule'?",
        "mine.LitModule.bild": "mine.LitModule has no bild. Did you mean 'build'?",
        "mine": "mine is a module; name a class or function in it: LitModule.",
        "broken.f": "broken.py is not valid Python (line 1): ",
    }.items():
        with pytest.raises(TargetError) as refused:
            mine(dotted)
        assert words in str(refused.value)
    assert mine("mine.lr").kind == "unreadable"


WORDS = st.sampled_from(
    [
        *(
            "torch",
            "optim",
            "keras",
            "src",
            "data",
            "AdamW",
            "__init__",
            "__main__",
            "builtins",
            "",
            "é",
            "encodings",
        )
    ]
)


@settings(max_examples=150, deadline=None)
@given(st.text() | st.lists(WORDS, min_size=1, max_size=4).map(".".join))
@example("__main__.x")
@example("distutils.core.setup")
@example("\0.\ud800")
def test_any_text_as_a_name(dotted: str) -> None:
    try:
        assert isinstance(read(dotted), Definition)
    except TargetError as refused:
        assert str(refused)


PIECES = st.sampled_from(
    """class A(B):
class A(A):
class B(A, metaclass=M):
def f(a, *, b: 'int' = 3, **kw):
    def __init__(self, *a, **kw): super().__init__(*a, **kw)
    x: int = field(default=1)
    from x import A
    pass
from mine import *
from . import A
from mine import A as B
import mine as A
A = B.A
A = A
B = A
@dataclass
if TYPE_CHECKING:
try:
except E:
'''""".splitlines()
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(source=st.text() | st.lists(PIECES, max_size=8).map("\n".join), name=st.sampled_from("ABf"))
@example("A = " + "(" * 500, "A")
@example("A = " + "1+" * 50_000 + "1", "A")
@example("class A" + "(A" * 80 + ")" * 80 + ": pass", "A")
@example("\n".join(f"class A{i}(A{i + 1}): pass" for i in range(3000)) + "\nA = A0", "A")
def test_any_source(tmp_path_factory: pytest.TempPathFactory, source: str, name: str) -> None:
    root = tmp_path_factory.mktemp("any")
    (root / "mine.py").write_bytes(source.encode(errors="surrogatepass"))
    try:
        found = read(f"mine.{name}", root)
        assert isinstance(found, Definition)
    except TargetError as refused:
        assert str(refused)
