"""Start a rank of a job, whose code has the engine next to this folder."""

if __name__ == "__main__":
    __import__("sys").path[0] = __import__("os").path.realpath(f"{__file__}/../..")
    __import__("train_anywhere.commands.train", fromlist=["run"]).run()
