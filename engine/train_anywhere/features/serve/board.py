"""Run a TensorBoard server that prints its port and exits at the end of its input.

python -m train_anywhere.features.serve.board FOLDER ADDRESS
"""

import sys
import types
from collections.abc import Sequence


def main(arguments: Sequence[str]) -> None:
    """Serve the event files of a folder on a free port of an address."""
    folder, address = arguments
    # unless this module exists, tensorboard imports TensorFlow, if installed, for its file functions
    sys.modules["tensorboard.compat.notf"] = types.ModuleType("tensorboard.compat.notf")
    try:
        from tensorboard.program import TensorBoard

        board = TensorBoard()
        # load_fast would start another process, which could outlive this one
        board.configure(
            logdir=folder, host=address, port=0, load_fast="false", reload_interval=10, reload_multifile=True
        )
        url = board.launch()
    except Exception as error:
        print(" ".join(str(error).split()) or type(error).__name__, flush=True)
        return
    print(url.rstrip("/").rpartition(":")[2], flush=True)
    sys.stdin.read()  # until the process that started this one exits


if __name__ == "__main__":
    main(sys.argv[1:])
