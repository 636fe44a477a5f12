"""Run the command `scaling`: `python src/scaling.py --help`."""

if __name__ == "__main__":
    __import__("sys").path.insert(0, __import__("os").path.realpath(f"{__file__}/../.."))
    __import__("src").main("scaling")
