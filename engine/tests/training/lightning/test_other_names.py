"""`pytorch_lightning` is `lightning.pytorch`, installed or not, and in workers."""

from pathlib import Path

import pytest

from tools.testing.processes import run_python

USER_CODE = """
import pytorch_lightning as pl
import pytorch_lightning.loggers as loggers
import pytorch_lightning.callbacks.early_stopping
from pytorch_lightning import LightningModule, seed_everything
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint
from pytorch_lightning.utilities.rank_zero import rank_zero_only
from lightning_fabric.utilities.seed import seed_everything as other

class Net(LightningModule):
    pass
"""
PROGRAM = """
import sys
{hide}
import train_anywhere.training.lightning
import user_code
import lightning.pytorch as lp
from lightning.pytorch.utilities.rank_zero import rank_zero_only

assert issubclass(user_code.Net, lp.LightningModule)
assert user_code.pl is lp and user_code.EarlyStopping is lp.callbacks.EarlyStopping
assert user_code.loggers.CSVLogger is lp.loggers.CSVLogger
assert user_code.rank_zero_only is rank_zero_only
assert user_code.pl.__version__ == lp.__version__
assert user_code.pl.callbacks.early_stopping.EarlyStopping is lp.callbacks.EarlyStopping
try:
    import pytorch_lightning.no_such_module
except ModuleNotFoundError as error:
    assert error.name == "pytorch_lightning.no_such_module", error.name
else:
    raise AssertionError
"""
HIDE = """
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("pytorch_lightning", "lightning_fabric"):
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Hide())
"""


@pytest.mark.parametrize("hide", [HIDE, pytest.param("", marks=pytest.mark.slow)])
def test_both_names_are_the_same_classes(hide: str, tmp_path: Path) -> None:
    (tmp_path / "user_code.py").write_text(USER_CODE)
    script = tmp_path / "program.py"
    script.write_text(PROGRAM.format(hide=hide))
    done = run_python(script)
    assert done.returncode == 0, done.stderr
